import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.compressors.topk import TopK
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from gradwire.testing.strategies import gradients
from gradwire.types import Key


def views(code: TopK, buffer: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
    return code.layout((n,)).views(buffer)


def sent_indices(code: TopK, x: torch.Tensor) -> list[int]:
    return code.decompress(code.compress(x), x.shape).nonzero().view(-1).tolist()


def test_the_largest_magnitudes_are_sent_exactly():
    x = torch.tensor([1.0, -5.0, 3.0, -2.0, 4.0])
    assert TopK(0.4).decompress(TopK(0.4).compress(x), (5,)).tolist() == [0.0, -5.0, 0.0, 0.0, 4.0]


def test_ties_go_to_the_lower_index():
    assert sent_indices(TopK(0.5), torch.tensor([1.0, -2.0, 2.0, 2.0, -2.0, 1.0])) == [1, 2, 3]
    assert sent_indices(TopK(0.1), torch.ones(100)) == list(range(10))


def test_nan_is_sent_first():
    x = gaussian(100)
    x[70] = math.nan
    assert TopK(0.01).decompress(TopK(0.01).compress(x), (100,)).isnan().nonzero().tolist() == [[70]]


@pytest.mark.parametrize(
    ("ratio", "n", "k"),
    [(0.01, 0, 0), (0.01, 1, 1), (0.01, 100, 1), (0.01, 101, 2), (0.07, 100, 7), (1, 9, 9), (1e-9, 10, 1), (0.5, 3, 2)],
)
def test_how_many_are_sent(ratio, n, k):
    assert TopK(ratio).count(n) == k


@pytest.mark.parametrize("n", [1, 65535, 65536, 65537, 200000])
def test_indices_beyond_16_bits(n):
    x = torch.zeros(n)
    places = sorted({0, n // 3, n // 2, n - 1})
    x[places] = torch.arange(1.0, len(places) + 1)
    code = TopK(len(places) / n)
    buffer = code.compress(x)
    assert torch.equal(code.decompress(buffer, (n,)), x)
    assert buffer.numel() == 6 * len(places) + 4 * math.ceil(n / 65536)


@given(x=gradients(min_size=1), ratio=st.floats(0.01, 1))
@settings(max_examples=60, deadline=None)
def test_nothing_left_is_larger_than_anything_sent(x, ratio):
    code = TopK(ratio)
    out = code.decompress(code.compress(x), x.shape)
    left, k = (x - out).abs(), code.count(len(x))
    assert torch.equal(out[out != 0], x[out != 0])
    assert int((out != 0).sum()) <= k
    assert bool((left <= x.abs().sort(descending=True).values[k - 1]).all())
    assert float(left.double().square().sum()) <= (1 - k / len(x)) * float(x.double().square().sum()) * (1 + 1e-12)


def test_compressing_what_was_compressed_changes_nothing():
    code, x = TopK(0.1), gaussian(1000)
    once = code.decompress(code.compress(x), x.shape)
    assert torch.equal(code.decompress(code.compress(once), x.shape), once)


def test_ranks_that_send_the_same_index_are_added():
    code, n, ranks = TopK(0.1), 200, 4
    xs = [gaussian(n, seed=rank) for rank in range(ranks)]
    payloads = views(code, torch.stack([code.compress(x) for x in xs]), n)
    out = torch.zeros(n)
    code.add_decoded_many(payloads, out, 1 / ranks)
    expected = sum(code.decompress(code.compress(x), (n,)) for x in xs) / ranks
    assert torch.allclose(out, expected, rtol=1e-6)


def test_every_element_gets_its_turn_with_feedback():
    code, n = TopK(0.1), 50
    grad, residual, total = gaussian(n), torch.zeros(n), torch.zeros(n)
    payload = views(code, torch.empty(code.layout((n,)).nbytes, dtype=torch.uint8), n)
    for _ in range(200):
        code.encode_feedback(grad, residual, payload, {}, Key())
        code.add_decoded(payload, total)
    assert torch.allclose(total + residual, 200 * grad, rtol=1e-4, atol=1e-4)
    assert float((total - 200 * grad).abs().amax()) < 20 * float(grad.abs().amax())


def test_it_does_not_pay_for_a_high_ratio_or_a_scalar():
    assert TopK(0.6).pays_for((1000,))
    assert not TopK(0.7).pays_for((1000,))
    assert not TopK(0.01).pays_for(())


def tampered(change) -> tuple[TopK, torch.Tensor]:
    """A payload of 3 out of 70000 elements in two segments, with ``change(counts, indices)`` applied."""
    code, x = TopK(3 / 70000), torch.zeros(70000)
    x[[5, 9, 69999]] = 1.0
    buffer = code.compress(x)
    _, counts, indices = views(code, buffer, 70000)
    change(counts, indices)
    return code, buffer


def test_an_untampered_payload_is_accepted():
    code, buffer = tampered(lambda _counts, _indices: None)
    assert code.decompress(buffer, (70000,)).nonzero().view(-1).tolist() == [5, 9, 69999]


@pytest.mark.parametrize(
    "change",
    [
        lambda counts, _: counts.copy_(torch.tensor([-1, 4])),
        lambda counts, _: counts.copy_(torch.tensor([4, -1])),
        lambda counts, _: counts.copy_(torch.tensor([2, 2])),
        lambda counts, _: counts.copy_(torch.tensor([0, 0])),
        lambda counts, _: counts.copy_(torch.tensor([2**31 - 1, 2**31 - 1])),
    ],
)
def test_counts_that_do_not_add_up_are_refused(change):
    code, buffer = tampered(change)
    with pytest.raises(WireError, match=r"topk counts must be >= 0 and sum to 3, got \["):
        code.decompress(buffer, (70000,))


@pytest.mark.parametrize(
    "change",
    [
        lambda _, indices: indices.copy_(torch.tensor([9, 5, 4463], dtype=torch.int16)),
        lambda _, indices: indices.copy_(torch.tensor([5, 5, 4463], dtype=torch.int16)),
        lambda _, indices: indices.copy_(torch.tensor([5, 9, 4464], dtype=torch.int16)),
        lambda _, indices: indices.copy_(torch.tensor([5, 9, -1], dtype=torch.int16)),
    ],
    ids=["decreasing", "twice", "beyond", "far beyond"],
)
def test_indices_that_cannot_be_are_refused(change):
    code, buffer = tampered(change)
    with pytest.raises(WireError, match=r"topk indices must increase and stay below 70000, got \["):
        code.decompress(buffer, (70000,))


@pytest.mark.parametrize("bad", [0, 0.0, -0.1, 1.5, 2, math.nan, math.inf, True, "0.1", None])
def test_bad_ratio(bad):
    with pytest.raises(ConfigError, match=re.escape(f"TopK.ratio must be in (0, 1], got {bad!r}")):
        TopK(ratio=bad)
