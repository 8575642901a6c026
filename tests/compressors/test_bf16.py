import pytest
import torch
from hypothesis import given

from gradwire.compressors.casts.bf16 import BF16
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import default_strategy
from gradwire.errors import ConfigError
from gradwire.testing.strategies import gradients
from gradwire.vocabulary import Key


def test_rounds_to_nearest_and_ties_to_even():
    x = torch.tensor([257.0, 259.0, -257.0, 1.0 + 2.0**-8 + 2.0**-20])
    assert BF16().decompress(BF16().compress(x), (4,)).tolist() == [256.0, 260.0, -256.0, 1.0 + 2.0**-7]


@given(x=gradients(min_size=1))
def test_the_error_of_each_element_is_within_half_a_unit(x):
    error = (BF16().decompress(BF16().compress(x), x.shape) - x).abs().double()
    assert bool((error <= 2.0**-8 * x.abs().double() + 2.0**-134).all())


def test_keeps_the_range_of_float32():
    x = torch.tensor([1e-38, -3e38])
    assert torch.allclose(BF16().decompress(BF16().compress(x), (2,)), x, rtol=2**-8, atol=0.0)


def test_an_overflow_is_reported():
    grad, status = torch.tensor([3.4e38]), torch.zeros(1, dtype=torch.int32)
    BF16().encode_feedback(grad, torch.zeros(1), (torch.empty(1, dtype=torch.bfloat16),), {}, Key(), status)
    assert status.item() == 1


def rounded(x, step=0, rank=0):
    code, payload = BF16(rounding="random"), (torch.empty(x.numel(), dtype=torch.bfloat16),)
    code.encode(x, payload, {}, Key(step=step, rank=rank))
    return payload[0].float()


def test_random_rounding_goes_up_as_often_as_the_lost_bits_say():
    x = torch.full((1 << 16,), 1.0 + 0.25 * 2.0**-7)
    out = rounded(x)
    assert set(out.tolist()) == {1.0, 1.0 + 2.0**-7}
    assert float((out > 1).float().mean()) == pytest.approx(0.25, abs=0.01)


def test_what_is_too_small_for_8_bits_still_counts():
    total, exact = 256.0, 256.0
    for step in range(4000):
        total = float(rounded(torch.tensor([total + 0.1]), step))
        exact += 0.1
    assert total == pytest.approx(exact, abs=4 * 2 * (4000 * 0.05 * 0.95) ** 0.5)
    assert float(torch.tensor(256.1).bfloat16()) == 256.0


def test_pieces_and_ranks_have_noise_of_their_own():
    x = torch.full((1 << 17,), 1.0 + 0.5 * 2.0**-7)
    first, second, other = (rounded(x, step, rank) - x for step, rank in ((0, 0), (1, 0), (0, 1)))
    halves = first.split(1 << 16)
    for a, b in ((first, second), (first, other), halves, (first[1:], first[:-1])):
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.02


def test_random_rounding_hides_nothing_that_is_not_finite():
    bits = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7F800000, 0x7F800000 - (1 << 31)], dtype=torch.int64)
    out = rounded(bits.to(torch.int32).view(torch.float32))
    assert bool(out[:3].isnan().all())
    assert out[3:].tolist() == [float("inf"), float("-inf")]


def test_random_rounding_is_not_summed_in_16_bits():
    assert (default_strategy(BF16(), 8), default_strategy(BF16("random"), 8)) == ("allreduce", "two_phase")
    with pytest.raises(ConfigError, match="cannot be summed"):
        Exchange(BF16("random"), strategy="allreduce")


@pytest.mark.parametrize("bad", ["up", True, None])
def test_bad_rounding(bad):
    with pytest.raises(ConfigError, match=r"BF16\.rounding must be 'nearest' or 'random', got"):
        BF16(rounding=bad)
