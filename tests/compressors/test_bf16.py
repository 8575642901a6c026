import torch
from hypothesis import given, settings

from gradwire.compressors.bf16 import BF16
from gradwire.testing.strategies import gradients
from gradwire.types import Key


def test_rounds_to_nearest_and_ties_to_even():
    x = torch.tensor([257.0, 259.0, -257.0, 1.0 + 2.0**-8 + 2.0**-20])
    assert BF16().decompress(BF16().compress(x), (4,)).tolist() == [256.0, 260.0, -256.0, 1.0 + 2.0**-7]


@given(x=gradients(min_size=1))
@settings(max_examples=50, deadline=None)
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
