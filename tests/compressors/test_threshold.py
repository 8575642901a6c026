import math
import re

import pytest
import torch

from gradwire.contrib.compressors.sparse.threshold import Threshold
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key
from tests.cases import together


def used(code, x):
    return int(code.compress(x)[:4].view(torch.int32))


def test_what_is_above_is_sent_and_what_equals_is_not():
    x = torch.tensor([1.0, -5.0, 2.0, -2.5, -2.0, 0.0])
    code = Threshold(2.0)
    assert code.decompress(code.compress(x), (6,)).tolist() == [0.0, -5.0, 0.0, -2.5, 0.0, 0.0]


@together
@pytest.mark.parametrize("v", [0.0, 0.5, 1.0, 3.0])
def test_the_error_is_below_what_the_threshold_allows(v):
    x, code = gaussian(5000), Threshold(v)
    out = code.decompress(code.compress(x), (5000,))
    unsent = int((out == 0).sum())
    assert torch.equal(out[out != 0], x[out != 0])
    assert float((out - x).square().sum()) <= v**2 * unsent
    assert unsent == int((x.abs() <= v).sum())


def test_a_tensor_without_positive_elements_is_not_sent_whole():
    """Comparing with min(v, max(x)) selected everything there."""
    x = -gaussian(100).abs()
    assert int((Threshold(1.0).decompress(Threshold(1.0).compress(x), (100,)) != 0).sum()) == int((x < -1.0).sum())


@pytest.mark.parametrize("v", [0.0, 1.0])
def test_zeros_send_nothing(v):
    code = Threshold(v)
    assert used(code, torch.zeros(10_000)) == 8 + 4
    assert not bool(code.decompress(code.compress(torch.zeros(10_000)), (10_000,)).any())


@pytest.mark.parametrize(
    ("share", "size"),
    [(0.001, lambda _, k: 8 + 6 * k + 4 * 2), (0.3, lambda n, k: 8 + 4 * k + n // 8), (1.0, lambda n, _: 8 + 4 * n)],
)
def test_the_smallest_form_is_taken(share, size):
    n = 80_000
    k = int(share * n)
    x = torch.zeros(n)
    x[torch.randperm(n, generator=torch.Generator().manual_seed(0))[:k]] = 3.0
    code = Threshold(1.0)
    assert used(code, x) == size(n, k) <= 8 + 4 * n
    assert torch.equal(code.decompress(code.compress(x), (n,)), x)


def test_nan_and_infinity_are_sent():
    x = torch.tensor([0.1, math.nan, -math.inf, 0.2])
    out = Threshold(1.0).decompress(Threshold(1.0).compress(x), (4,))
    assert out.isnan().tolist() == [False, True, False, False]
    assert out[2] == -math.inf


def test_small_gradients_arrive_once_they_add_up():
    code, residual, total = Threshold(1.0), torch.zeros(3), torch.zeros(3)
    layout = code.layout((3,))
    payload = layout.views(torch.empty(layout.nbytes, dtype=torch.uint8))
    for _ in range(10):
        code.encode_feedback(torch.tensor([0.25, -0.5, 0.0]), residual, payload, {}, Key())
        code.add_decoded(payload, total)
    assert total.tolist() == [2.5, -4.5, 0.0]
    assert residual.tolist() == [0.0, -0.5, 0.0]


def flipped(place, value):
    code, x = Threshold(1.0), gaussian(500)
    buffer = code.compress(x)
    buffer[place] = value
    return code, buffer


@together
@pytest.mark.parametrize(("place", "value"), [(0, 1), (4, 7), (8, 255), (11, 127), (15, 0)])
def test_bytes_that_are_not_as_written_are_refused(place, value):
    code, buffer = flipped(place, value)
    with pytest.raises(WireError, match=r"threshold stream of -?\d+ bytes is not as written"):
        code.decompress(buffer, (500,))


def test_what_lies_behind_the_stream_is_not_read():
    code, buffer = flipped(-1, 77)
    assert torch.equal(code.decompress(buffer, (500,)), code.decompress(flipped(-1, 0)[1], (500,)))


@together
@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, True, "1"])
def test_bad_threshold(bad):
    with pytest.raises(
        ConfigError, match=re.escape(f"Threshold.v must be a finite number >= 0 in float32, or 'auto', got {bad!r}")
    ):
        Threshold(v=bad)
