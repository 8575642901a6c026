import math
import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.compressors.ternary.terngrad import TernGrad
from gradwire.contrib.compressors.levels.global_qsgd import GlobalQSGD
from gradwire.errors import ConfigError
from gradwire.testing._expect import decode
from gradwire.testing.inputs import gaussian
from gradwire.testing.ranks import mean_rounds
from gradwire.vocabulary import Key
from tests.cases import together
from tests.compressors.rounding import decoded, relative_error


def exchanged(code, xs, step=0):
    """Each rank's payload."""
    keys = [[Key(step=step, rank=rank)] for rank in range(len(xs))]
    return [payload for (payload,) in mean_rounds(code, [[x] for x in xs], [[{}] for _ in xs], keys)]


def own(code, payload, like):
    out = torch.zeros_like(like)
    capabilities.add_own(code, payload, out)
    return out


def test_a_payload_is_a_byte_an_element_the_norm_and_the_count():
    assert capabilities.traffic(GlobalQSGD(), (1001,)) == 4 + 4 * 251 + 4


def test_the_norm_is_that_of_the_largest_rank_and_the_mean_is_exact():
    xs = [gaussian(999), 5 * gaussian(999, 1), torch.zeros(999)]
    code = GlobalQSGD()
    payloads = exchanged(code, xs)
    outs = [decode(code, payload, xs[0]) for payload in payloads]
    parts = torch.stack([own(code, payload, x) for payload, x in zip(payloads, xs, strict=True)])
    assert all(float(payload[0]) == float(xs[1].abs().amax()) for payload in payloads)
    assert all(torch.equal(out, outs[0]) for out in outs)
    torch.testing.assert_close(outs[0], parts.mean(0))
    assert float((parts - torch.stack(xs)).abs().max()) <= float(xs[1].abs().amax()) / 7 * (1 + 1e-6)
    assert not parts[2].any()


@pytest.mark.parametrize("clip", [0.0, 2.5])
def test_alone_with_one_level_it_is_terngrad(clip):
    x = gaussian(3000)
    for step in range(3):
        key = Key(step=step)
        assert torch.equal(decoded(GlobalQSGD(1, clip), x, key), decoded(TernGrad(clip), x, key))


def test_noise_of_ranks_averages_out():
    x, code = gaussian(4096), GlobalQSGD(levels=3)
    errors = [float((decode(code, exchanged(code, [x] * ranks)[0], x) - x).square().mean()) for ranks in (1, 16)]
    assert errors[1] == pytest.approx(errors[0] / 16, rel=0.15)


def test_the_noise_is_the_closed_formula():
    x = gaussian(512)
    place = 7 * x.abs() / x.abs().amax()
    share = place - place.floor()
    expected = (x.abs().amax() / 7) ** 2 * (share * (1 - share)).sum() / x.square().sum()
    assert relative_error(GlobalQSGD(levels=7), x, 200) == pytest.approx(float(expected), rel=0.05)


def noise_of(code, xs, draws=60):
    """E|C(x_i) - x_i|^2 of each rank."""
    totals = torch.zeros(len(xs))
    for step in range(draws):
        for rank, payload in enumerate(exchanged(code, xs, step)):
            totals[rank] += (own(code, payload, xs[rank]) - xs[rank]).square().sum()
    return totals / draws


def test_omega_bounds_the_noise_of_all_ranks_together_and_of_none_alone():
    code, xs = GlobalQSGD(levels=3), [gaussian(256), 0.05 * gaussian(256, 1), gaussian(256, 2)]
    noise, sizes = noise_of(code, xs), torch.stack([x.square().sum() for x in xs])
    assert float(noise.sum()) <= capabilities.omega(code, 3 * 256) * float(sizes.sum())
    assert float(noise[1]) > 2 * capabilities.omega(code, 256) * float(sizes[1])
    means = torch.stack([decode(code, exchanged(code, xs, step)[0], xs[0]) for step in range(60)])
    error = (means - sum(xs) / 3).square().sum(1).mean()
    assert float(error) == pytest.approx(float(noise.sum()) / 9, rel=0.1)


@together
@pytest.mark.parametrize(("levels", "ranks"), [(7, 18), (127, 1), (1, 127), (6, 21)])
def test_as_many_ranks_as_are_allowed_have_a_mean(levels, ranks):
    code = GlobalQSGD(levels=levels)
    capabilities.check_world(code, ranks)
    assert decode(code, exchanged(code, [gaussian(64)] * ranks)[0], torch.zeros(64)).isfinite().all()
    with pytest.raises(ConfigError, match=re.escape(f"GlobalQSGD.levels must be at most 127 // {ranks + 1} = ")):
        capabilities.check_world(code, ranks + 1)


@pytest.mark.parametrize("levels", [1, 3, 127])
def test_sums_use_the_whole_byte_and_no_more(levels):
    code, most = GlobalQSGD(levels), 255 // (2 * levels)
    payload = exchanged(code, [torch.tensor([1.0, -1.0])])[0]
    for ranks, finite in ((1, True), (most, True), (most + 1, False), (0, False)):
        summed = (payload[0], payload[1] * ranks, payload[2])
        assert bool(decode(code, summed, torch.zeros(2)).isfinite().all()) == finite
    torch.testing.assert_close(decode(code, payload, torch.zeros(2)), torch.tensor([1.0, -1.0]))


def test_a_residual_stays_below_its_bound():
    code, residuals = GlobalQSGD(levels=3), [torch.zeros(512)] * 2
    for step in range(60):
        xs = [residual + gaussian(512, 2 * step + rank) for rank, residual in enumerate(residuals)]
        for x, payload in zip(xs, exchanged(code, xs, step), strict=True):
            capabilities.add_own(code, payload, x, -1.0)
        residuals = xs
    assert max(float(residual.abs().amax()) for residual in residuals) < 5 / (3 - 1)


@together
@pytest.mark.parametrize("bad", [0, 128, 7.0, True, None])
def test_bad_levels(bad):
    with pytest.raises(ConfigError, match=re.escape(f"GlobalQSGD.levels must be an integer in [1, 127], got {bad!r}")):
        GlobalQSGD(levels=bad)


@together
@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, True, None])
def test_bad_clip(bad):
    with pytest.raises(ConfigError, match=re.escape(f"GlobalQSGD.clip must be a finite number >= 0, got {bad!r}")):
        GlobalQSGD(clip=bad)
