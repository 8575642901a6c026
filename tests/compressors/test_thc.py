import math
import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.transforms.thc import THC
from gradwire.errors import ConfigError
from gradwire.testing._expect import payload_for
from gradwire.testing.inputs import SPECIAL, gaussian
from gradwire.testing.ranks import mean_rounds
from gradwire.vocabulary import Key
from tests.cases import together
from tests.compressors.rounding import decoded, relative_error


def mean_of(code, xs, step=0):
    """The tensor that each rank decodes."""
    keys = [[Key(step=step, rank=rank)] for rank in range(len(xs))]
    payloads = mean_rounds(code, [[x] for x in xs], [[{}] for _ in xs], keys)
    outs = [torch.zeros_like(x) for x in xs]
    for out, (payload,) in zip(outs, payloads, strict=True):
        code.add_decoded(payload, out)
    return outs


@together
@pytest.mark.parametrize(("n", "coordinates"), [(1, 16), (33, 64), (1024, 1024), (1025, 1040), (1100, 1024 + 128)])
def test_a_payload_is_a_byte_for_each_coordinate_of_padded_blocks(n, coordinates):
    blocks = -(-n // 1024)
    assert THC().layout((n,)).fields[2].count == coordinates // 4 + 1
    assert THC().layout((n,)).fields[1].count == blocks


def test_the_rotation_keeps_the_noise_of_heavy_tails_small():
    x = gaussian(8192) ** 3
    assert relative_error(THC(levels=15), x, 10) == pytest.approx(0.02, abs=0.006)


def test_the_same_for_the_mean_over_ranks():
    xs = [gaussian(4096, seed) ** 3 for seed in range(4)]
    outs, mean = mean_of(THC(levels=15), xs), torch.stack(xs).mean(0)
    error = float((outs[0] - mean).square().sum() / mean.square().sum())
    assert error < 0.04
    assert all(torch.equal(out, outs[0]) for out in outs)


def test_ranks_of_very_different_length_share_a_grid():
    xs = [gaussian(1024), 100 * gaussian(1024, 1), torch.zeros(1024)]
    out, mean = mean_of(THC(levels=85), xs)[0], torch.stack(xs).mean(0)
    assert float((out - mean).square().sum() / mean.square().sum()) < 0.02


def test_inside_the_clip_it_is_right_on_average():
    code, x = THC(levels=3, clip=6.0, block=256), gaussian(256)
    mean = torch.stack([decoded(code, x, Key(step=step)) for step in range(3000)]).mean(0)
    spread = math.sqrt(relative_error(code, x, 50) / 3000)
    assert float((mean - x).square().mean().sqrt()) < 1.15 * spread * float(x.square().mean().sqrt())


def test_what_is_cut_off_is_its_share_of_the_gradient():
    code, x = THC(levels=255, clip=1.0), gaussian(4096)
    mean = torch.stack([decoded(code, x, Key(step=step)) for step in range(100)]).mean(0)
    along = float(mean @ x / x.square().sum())
    assert 1 - along == pytest.approx(2 * (1 - 0.841345), abs=0.02)


def residuals_of(code, grads, steps, subtract):
    """Each rank's residual after ``steps`` of the same gradients."""
    residuals = [torch.zeros_like(grad) for grad in grads]
    for step in range(steps):
        xs = [residual + grad for residual, grad in zip(residuals, grads, strict=True)]
        keys = [[Key(step=step, rank=rank)] for rank in range(len(xs))]
        payloads = mean_rounds(code, [[x] for x in xs], [[{}] for _ in xs], keys)
        for x, (payload,) in zip(xs, payloads, strict=True):
            getattr(code, subtract)(payload, x, -1.0)
        residuals = xs
    return residuals


def test_a_residual_keeps_what_the_own_codes_leave_and_not_how_the_rank_differs():
    grads = [gaussian(512), 3 * gaussian(512, 1), -gaussian(512, 2)]
    own = residuals_of(THC(), grads, 40, "add_own")
    assert max(float(residual.square().mean().sqrt()) for residual in own) < 3
    mixed = residuals_of(THC(), grads, 40, "add_decoded")
    assert max(float(residual.square().mean().sqrt()) for residual in mixed) > 50


def test_what_was_cut_off_arrives_later():
    code, x = THC(levels=85, clip=1.0), gaussian(512)
    residual, total = torch.zeros(512), torch.zeros(512)
    payload = code.layout((512,)).views(torch.zeros(code.layout((512,)).nbytes, dtype=torch.uint8))
    for step in range(60):
        code.encode_feedback(x.clone(), residual, payload, {}, Key(step=step))
        code.add_decoded(payload, total)
    torch.testing.assert_close(total + residual, 60 * x, rtol=1e-4, atol=1e-3)
    assert float((total / 60 - x).norm() / x.norm()) < 0.05


def test_the_own_codes_do_not_travel():
    assert capabilities.traffic(THC(), (4096,)) == 4096 + 4 + 4 * 4
    assert THC().layout((4096,)).nbytes == 16 + 4 * 4 + 2 * (4096 + 4)


def test_noise_of_ranks_is_independent_and_signs_are_common():
    code, x = THC(), gaussian(4096)
    first = code.layout((4096,)).views(code.compress(x, key=Key(rank=0)))
    second = code.layout((4096,)).views(code.compress(x, key=Key(rank=1)))
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[2], second[2])
    alone = float((decoded(code, x) - x).square().sum())
    together = float((mean_of(code, [x] * 8)[0] - x).square().sum())
    clipped = float((decoded(THC(levels=255), x) - x).square().sum())
    assert together - clipped == pytest.approx((alone - clipped) / 8, rel=0.3)


def test_too_many_ranks_for_the_sums_decode_to_nan():
    code = THC(levels=100)
    assert mean_of(code, [gaussian(64)] * 2)[0].isfinite().all()
    assert mean_of(code, [gaussian(64)] * 3)[0].isnan().all()


@together
@pytest.mark.parametrize(("levels", "ranks"), [(15, 17), (255, 1), (1, 255), (13, 19)])
def test_as_many_ranks_as_are_allowed_have_a_mean(levels, ranks):
    code = THC(levels=levels)
    capabilities.check_world(code, ranks)
    assert mean_of(code, [gaussian(64)] * ranks)[0].isfinite().all()
    with pytest.raises(ConfigError, match=re.escape(f"THC.levels must be at most 255 // {ranks + 1} = ")):
        capabilities.check_world(code, ranks + 1)


def test_more_ranks_than_any_levels_serve_are_sent_to_another_method():
    with pytest.raises(ConfigError, match="got 1: up to 255 workers fit, at levels=1: use a method that sums no codes"):
        capabilities.check_world(THC(levels=1), 4096)


@pytest.mark.parametrize("ranks", [1, 255])
def test_sums_use_the_whole_byte(ranks):
    code = THC(levels=255 // ranks, clip=0.01)
    payload = payload_for(code, x := gaussian(16))[1]
    code.encode(x, payload, {}, Key())
    payload[2].mul_(ranks)
    out = torch.zeros(16)
    code.add_decoded(payload, out)
    assert out.isfinite().all()
    assert float(out.norm()) == pytest.approx(0.01 * float(x.norm()), rel=0.1)


@pytest.mark.parametrize("kind", ["zero", "negative zero", "denormal"])
def test_nothing_decodes_to_nothing(kind):
    assert decoded(THC(), SPECIAL[kind](1500)).eq(0).all()


@together
@pytest.mark.parametrize("bad", [0, 256, 15.0, True, None])
def test_bad_levels(bad):
    with pytest.raises(ConfigError, match=re.escape(f"THC.levels must be an integer in [1, 255], got {bad!r}")):
        THC(levels=bad)


@together
@pytest.mark.parametrize("bad", [8, 48, 32768, 1024.0, True, None])
def test_bad_block(bad):
    with pytest.raises(ConfigError, match=re.escape(f"THC.block must be a power of two in [16, 16384], got {bad!r}")):
        THC(block=bad)


@together
@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, True, None])
def test_bad_clip(bad):
    with pytest.raises(ConfigError, match=re.escape(f"THC.clip must be a finite number > 0 in float32, got {bad!r}")):
        THC(clip=bad)
