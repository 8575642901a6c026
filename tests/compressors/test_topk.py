import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.compressors import capabilities
from gradwire.compressors.sparse.topk import TopK
from gradwire.errors import ConfigError, WireError
from gradwire.testing.bounds import check_contraction
from gradwire.testing.inputs import gaussian
from gradwire.testing.strategies import gradients
from gradwire.vocabulary import Key
from tests.cases import together


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


@together
@pytest.mark.parametrize(
    ("ratio", "n", "k"),
    [(0.01, 0, 0), (0.01, 1, 1), (0.01, 100, 1), (0.01, 101, 2), (0.07, 100, 7), (1, 9, 9), (1e-9, 10, 1), (0.5, 3, 2)],
)
def test_how_many_are_sent(ratio, n, k):
    assert TopK(ratio).count(n) == k


@together
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
    assert capabilities.pays_for(TopK(0.6), (1000,))
    assert not capabilities.pays_for(TopK(0.7), (1000,))
    assert not capabilities.pays_for(TopK(0.01), ())


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


@together
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


@together
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


FORMS = ("block", "raw", "rice", "bitmap", "auto")


@together
@pytest.mark.parametrize("indices", FORMS)
@pytest.mark.parametrize("values", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("n", "ratio"), [(1, 1), (7, 0.3), (200_000, 0.0003), (5000, 0.6), (4096, 1.0)])
def test_every_form_says_the_same(n, ratio, values, indices):
    x = gaussian(n)
    code, plain = TopK(ratio, values, indices), TopK(ratio, values)
    assert torch.equal(code.decompress(code.compress(x), (n,)), plain.decompress(plain.compress(x), (n,)))


@pytest.mark.parametrize("values", ["float16", "bfloat16"])
def test_what_rounding_loses_stays_in_the_residual(values):
    code, n = TopK(0.1, values, "rice"), 1000
    grad, residual = gaussian(n), gaussian(n, seed=1)
    total, payload = grad + residual, views(code, torch.empty(code.layout((n,)).nbytes, dtype=torch.uint8), n)
    code.encode_feedback(grad, residual, payload, {}, Key())
    sent = code.decompress(code.compress(total), (n,))
    assert torch.equal(residual, total - sent)
    assert int(((residual != 0) & (sent != 0)).sum()) > 50


def test_a_value_that_overflows_drops_the_step():
    code, grad, residual = TopK(0.5, "float16"), torch.tensor([1e6, 1.0]), torch.tensor([0.5, 0.25])
    payload, status = views(code, torch.empty(code.layout((2,)).nbytes, dtype=torch.uint8), 2), torch.zeros(1).int()
    code.encode_feedback(grad, residual, payload, {}, Key(), status)
    assert status.item() == 1
    assert grad.tolist() == [0.5, 0.25]


@given(n=st.integers(1, 10**7), ratio=st.floats(1e-6, 1))
@settings(max_examples=200, deadline=None)
def test_rice_is_near_the_entropy_and_auto_is_the_smallest(n, ratio):
    bits = {name: 8 * TopK(ratio, indices=name).layout((n,)).nbytes for name in FORMS}
    assert bits["auto"] == min(bits.values())
    k = TopK(ratio).count(n)
    density = k / n
    entropy = 0 if k == n else n * (-density * math.log2(density) - (1 - density) * math.log2(1 - density))
    if density < 0.1:
        assert bits["rice"] - 32 * k <= 1.1 * entropy + 17


@together
@pytest.mark.parametrize("places", [[0, 1, 2], [69997, 69998, 69999], [0, 35000, 69999], [0, 69998, 69999]])
def test_no_places_overflow_their_rice_code(places):
    x = torch.zeros(70000)
    x[places] = 1.0
    code = TopK(3 / 70000, indices="rice")
    assert code.decompress(code.compress(x), (70000,)).nonzero().view(-1).tolist() == places


@pytest.mark.parametrize("indices", ["raw", "rice", "bitmap"])
def test_a_flipped_bit_of_the_places_is_refused_or_means_other_places(indices):
    code, x = TopK(0.05, indices=indices), gaussian(100)
    buffer = code.compress(x)
    fine = code.decompress(buffer, (100,))
    for bit in range(8 * 20, 8 * buffer.numel()):
        bad = buffer.clone()
        bad[bit // 8] ^= 1 << bit % 8
        try:
            out = code.decompress(bad, (100,))
        except WireError:
            continue
        assert int((out != 0).sum()) == 5
        assert not torch.equal(out, fine)


@pytest.mark.parametrize(("name", "bad"), [("values", "int8"), ("indices", "huffman"), ("indices", None)])
def test_unknown_forms(name, bad):
    with pytest.raises(ConfigError, match=rf"TopK\.{name} must be one of .*, got {bad!r}"):
        TopK(**{name: bad})


@together
@pytest.mark.parametrize("bad", [0, 0.0, -0.1, 1.5, 2, math.nan, math.inf, True, "0.1", None])
def test_bad_ratio(bad):
    with pytest.raises(ConfigError, match=re.escape(f"TopK.ratio must be in (0, 1], got {bad!r}")):
        TopK(ratio=bad)


def test_raw_indices_are_of_31_bits():
    """The number of an element beyond them would be read as the end of the list, and the element be lost."""
    code = TopK(ratio=1e-9, indices="raw")
    assert code.layout((2**31,)).nbytes == 8 * 3
    with pytest.raises(
        ConfigError, match=r"^TopK\.indices must be 'block' or 'rice' for a tensor of more than 2,147,483,648"
    ):
        code.layout((2**31 + 1,))


def test_the_smallest_indices_of_a_tensor_of_more_elements_are_not_raw():
    """Nobody who wrote "auto" has asked for them."""
    shape = (2**31 + 1,)
    assert TopK(0.01, indices="auto").layout(shape) == TopK(0.01, indices="rice").layout(shape)
    assert capabilities.pays_for(TopK(0.01, indices="auto"), shape)


@pytest.mark.parametrize("indices", ["block", "auto"])
def test_values_in_bfloat16_lose_no_more_than_is_declared(indices):
    code = TopK(0.1, "bfloat16", indices)
    assert capabilities.delta(code, 1000) == pytest.approx(0.1 * (1 - 2.0**-16), rel=1e-12)
    halfway = torch.full((1000,), 1 + 2.0**-8)  # the worst relative error of a cast
    for x in (gaussian(1000), halfway, gaussian(1000) * 1e-30):
        check_contraction(code, x)
        check_contraction(TopK(1.0, "bfloat16", indices), x)
