"""The building blocks for researchers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.compressors.sparse.topk import TopK
from gradwire.errors import ConfigError
from gradwire.helpers import count_of, dequantize, desparsify, pack, quantize, sparsify, unpack
from gradwire.testing.inputs import SPECIAL, gaussian

BITS = st.integers(1, 8)


@given(BITS, st.integers(0, 70), st.booleans(), st.integers(0, 2**32))
def test_pack_round_trip(bits, n, signed, seed):
    low = -(2 ** (bits - 1)) if signed else 0
    codes = torch.randint(low, low + 2**bits, (n,), generator=torch.Generator().manual_seed(seed))
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.numel() == (n * bits + 7) // 8
    assert torch.equal(unpack(packed, bits, n, signed=signed).long(), codes)


@given(BITS, st.lists(st.integers(0, 255), max_size=40))
def test_pack_is_a_bit_stream_with_the_lowest_bit_first(bits, codes):
    codes = [code % 2**bits for code in codes]
    stream = sum(code << (i * bits) for i, code in enumerate(codes))
    packed = pack(torch.tensor(codes, dtype=torch.int64), bits)
    assert bytes(packed.tolist()) == stream.to_bytes((len(codes) * bits + 7) // 8, "little")


def test_pack_takes_bools_and_shapes():
    bits = torch.tensor([[True, False, True], [False, True, True]])
    assert pack(bits, 1).tolist() == [0b110101]
    expected = np.packbits(bits.numpy().ravel(), bitorder="little")
    np.testing.assert_array_equal(pack(bits, 1).numpy(), expected)


@pytest.mark.parametrize(
    ("codes", "bits", "message"),
    [
        (torch.tensor([4]), 2, r"pack\.codes must be within 2 bits, .* got 4 to 4"),
        (torch.tensor([-1, 2]), 2, r"got -1 to 2"),
        (torch.tensor([-3]), 2, r"within 2 bits"),
        (torch.tensor([1.0]), 2, r"pack\.codes must be integers or bools, got torch\.float32"),
        (torch.tensor([1]), 9, r"pack\.bits must be an integer from 1 to 8, got 9"),
    ],
)
def test_pack_refuses_what_does_not_fit(codes, bits, message):
    with pytest.raises(ConfigError, match=message):
        pack(codes, bits)


@pytest.mark.parametrize(("packed", "count"), [(torch.zeros(2, dtype=torch.uint8), 4), (torch.zeros(1), 4)])
def test_unpack_refuses_another_size(packed, count):
    with pytest.raises(ConfigError, match=r"unpack\.packed must be 1 uint8"):
        unpack(packed, 2, count)
    with pytest.raises(ConfigError, match=r"unpack\.count must be an integer >= 0"):
        unpack(packed, 2, -1)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("bits", range(2, 9))
def test_quantize_is_within_half_a_step(kind, bits):
    x = SPECIAL[kind](101)
    codes, step = quantize(x, bits)
    assert int(codes.abs().max()) <= 2 ** (bits - 1) - 1
    assert torch.equal(unpack(pack(codes, bits), bits, 101, signed=True), codes)
    error = (dequantize(codes, step) - x).abs().max()
    assert error <= 0.5 * step * (1 + 1e-5) + 1e-40


def test_quantize_at_random_has_the_right_mean():
    x, generator = gaussian(50), torch.Generator().manual_seed(3)
    draws = torch.stack([dequantize(*quantize(x, 3, stochastic=True, generator=generator)) for _ in range(2000)])
    step = quantize(x, 3)[1]
    assert float((draws - x).abs().max()) <= float(step) * (1 + 1e-5)
    # The mean of 2000 draws is off by at most half a step over sqrt(2000), times five.
    assert float((draws.mean(0) - x).abs().max()) < 5 * 0.5 * float(step) / 2000**0.5


def test_quantize_says_that_a_tensor_was_not_finite():
    for bad in (torch.nan, torch.inf):
        codes, step = quantize(torch.tensor([1.0, bad]), 4)
        assert not bool(dequantize(codes, step).isfinite().any())
    codes, step = quantize(torch.zeros(0), 4)
    assert (codes.numel(), float(step)) == (0, 0.0)
    with pytest.raises(ConfigError, match=r"quantize\.bits must be an integer from 2 to 8, got 1"):
        quantize(torch.ones(2), 1)


@given(st.integers(1, 60), st.floats(0.01, 1.0), st.integers(0, 2**32))
def test_sparsify_keeps_the_largest(n, ratio, seed):
    x = gaussian(n, seed)
    values, indices = sparsify(x, ratio)
    dense = desparsify(values, indices, n)
    assert values.numel() == max(1, int(np.ceil(ratio * n)))
    assert indices.dtype == torch.int32
    assert bool((indices.diff() > 0).all())
    assert torch.equal(dense[indices.long()], x[indices.long()])
    left = x - dense
    assert float(left.abs().max()) <= float(values.abs().min())


@pytest.mark.parametrize(("ratio", "n"), [(0.07, 100), (0.29, 100), (1e-9, 50), (0.1, 30), (1.0, 7), (0.5, 0)])
def test_sparsify_keeps_as_many_as_topk_sends(ratio, n):
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    values, indices = sparsify(x, ratio)
    sent = TopK(ratio).decompress(TopK(ratio).compress(x), (n,))
    assert values.numel() == TopK(ratio).count(n) == count_of(ratio, n)
    assert torch.equal(desparsify(values, indices, n), sent)


def test_sparsify_by_count_and_shape():
    x = torch.tensor([[1.0, -5.0], [3.0, -2.0]])
    values, indices = sparsify(x, k=2)
    assert desparsify(values, indices, x.shape).tolist() == [[0.0, -5.0], [3.0, 0.0]]
    assert sparsify(x, k=9)[0].numel() == 4
    assert sparsify(torch.zeros(0), ratio=0.5)[0].numel() == 0
    assert desparsify(torch.ones(2), torch.tensor([1, 1]), 3).tolist() == [0.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "takes either ratio or k"),
        ({"ratio": 0.5, "k": 2}, "takes either ratio or k"),
        ({"ratio": 0.0}, r"sparsify\.ratio must be in \(0, 1\], got 0.0"),
        ({"ratio": 1.5}, r"sparsify\.ratio must be in \(0, 1\], got 1.5"),
        ({"k": 0}, r"sparsify\.k must be an integer >= 1, got 0"),
    ],
)
def test_sparsify_refuses(arguments, message):
    with pytest.raises(ConfigError, match=message):
        sparsify(torch.ones(4), **arguments)


@pytest.mark.parametrize("index", [4, -5])
def test_desparsify_never_writes_outside(index):
    with pytest.raises(IndexError):
        desparsify(torch.ones(1), torch.tensor([index]), 4)
