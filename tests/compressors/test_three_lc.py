import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.ternary.three_lc import ThreeLC
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import SPECIAL, gaussian
from tests.cases import together
from tests.compressors.rounding import decoded, memory_after, relative_error


def used(code, x):
    return int(code.compress(x)[:4].view(torch.int32))


def bits(code, x):
    """The size of a payload, in bits an element."""
    return 8 * code.layout(x.shape).cut(used(code, x)).nbytes / x.numel()


def stream(code, x):
    return code.layout(x.shape).views(code.compress(x))[3][: used(code, x)].tolist()


def test_the_worked_example():
    code, x = ThreeLC(), torch.tensor([4.0, -2.0, 2.1, -4.0, 0.1])
    assert stream(code, x) == [208]
    assert decoded(code, x).tolist() == [4.0, 0.0, 4.0, -4.0, 0.0]


def test_thirty_groups_of_zeros_are_three_bytes():
    x = torch.cat([torch.tensor([1.0, 0, 0, 0, 0]), torch.zeros(150), torch.tensor([0, 0, 0, 0, -1.0])])
    assert stream(ThreeLC(), x) == [81 + 121, 255, 255, 243, 120]


@pytest.mark.parametrize("sparsity", [1.0, 1.5, 1.9])
def test_delta_is_what_a_block_keeps_at_least(sparsity):
    """One element is the largest, and the others just too small to be sent: they are lost."""
    code = ThreeLC(sparsity, block=16)
    x = torch.full((16,), sparsity / 2 - 1e-3)
    x[5] = 1.0
    kept = 1 - relative_error(code, x, draws=1)
    assert capabilities.delta(code, 16) == pytest.approx(sparsity * (2 - sparsity) / 16)
    assert kept == pytest.approx(sparsity * (2 - sparsity) / x.square().sum().item(), rel=1e-4)
    assert capabilities.delta(code, 16) <= kept


def test_an_all_zero_block_has_no_bytes_and_a_lone_zero_group_one():
    x = torch.zeros(48)
    x[16], x[31] = 1.0, 1.0
    assert stream(ThreeLC(block=16), x) == [81 + 121, 243, 81 + 121]
    assert decoded(ThreeLC(block=16), x).tolist() == x.tolist()


@together
@pytest.mark.parametrize("sparsity", [1.0, 1.5, 1.75, 1.99])
@pytest.mark.parametrize("kind", ["heavy tail", "sorted", "spike", "alternating", "one hot"])
def test_the_largest_element_is_always_sent_and_the_bound_holds(sparsity, kind):
    code, x = ThreeLC(sparsity=sparsity, block=64), SPECIAL[kind](64)
    out = decoded(code, x)
    largest = float(x.abs().amax())
    assert float(out.abs().amax()) == pytest.approx(sparsity * largest)
    lost, size = float((out - x).double().square().sum()), float(x.double().square().sum())
    assert lost <= size * (1 + 1e-6) - sparsity * (2 - sparsity) * largest**2


def test_the_size_is_between_its_limits():
    worst = SPECIAL["alternating"](80_000)
    assert 1.6 <= bits(ThreeLC(), worst) < 1.63
    best = torch.zeros(65536)
    best[0] = 1.0
    assert bits(ThreeLC(block=65536), best) == pytest.approx(0.1143, abs=0.002)
    assert 0.55 < bits(ThreeLC(), gaussian(200_000)) < 0.75


def test_more_sparsity_sends_less():
    x = gaussian(100_000)
    sizes = [bits(ThreeLC(sparsity=s), x) for s in (1.0, 1.5, 1.75, 1.9)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 2 * sizes[-1]


def test_the_residual_is_bounded_and_grows_with_sparsity():
    one, more = (ThreeLC(sparsity=s, block=4096) for s in (1.0, 1.9))
    assert memory_after(one, 50, 4096) == pytest.approx(1.7, rel=0.2)
    assert memory_after(more, 50, 4096) == pytest.approx(7.1, rel=0.2)


def test_it_contracts_normal_gradients():
    assert relative_error(ThreeLC(), gaussian(50_000), 1) < 1


def test_a_scale_that_overflows_is_reported():
    code, status = ThreeLC(sparsity=1.9), torch.zeros(1, dtype=torch.int32)
    grad, residual = torch.full((20,), 3e38), torch.full((20,), 0.5)
    layout = code.layout((20,))
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    code.encode_feedback(grad, residual, payload, {}, None, status)
    assert status.item() == 1
    assert grad.tolist() == [0.5] * 20


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 2, "lengths add up to 1 bytes, but 2 are used"),
        (8, 0, "lengths add up to 0 bytes, but 1 are used"),
        (10, 243, "block 0 holds 2 groups of five, not 1"),
    ],
)
def test_inconsistent_bytes_are_refused(at, value, message):
    code, x = ThreeLC(), torch.tensor([4.0, -2.0, 2.1])
    payload = code.compress(x)
    payload[at] = value
    with pytest.raises(WireError, match=re.escape(message)):
        code.decompress(payload, (3,))


@together
@pytest.mark.parametrize("bad", [0.5, 2.0, -1.0, float("nan"), True, "1", None])
def test_bad_sparsity(bad):
    with pytest.raises(ConfigError, match=re.escape(f"ThreeLC.sparsity must be in [1, 1.99], got {bad!r}")):
        ThreeLC(sparsity=bad)


@together
@pytest.mark.parametrize("bad", [0, 24, 131072, 512.0, True, None])
def test_bad_block(bad):
    message = f"ThreeLC.block must be a multiple of 16 in [16, 65536], got {bad!r}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        ThreeLC(block=bad)
