"""Building blocks for a researcher's own method: quantise, select, and pack to the true number of bits.

They are plain torch, run on any device and allocate what they return. The compressors that ship do the same work in
fused kernels; these are for ``SimpleCompressor`` and for notebooks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.errors import ConfigError, Verbatim, is_float32, is_int, require
from gradwire.kernels import bits as _bits

__all__ = ["count_of", "dequantize", "desparsify", "pack", "quantize", "sparsify", "unpack"]


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack integers into a stream of ``bits`` bits each, least significant bit first.

    Element i occupies bits ``i * bits`` to ``i * bits + bits - 1``; bit j of the stream is bit ``j % 8`` of byte
    ``j // 8``. Negative integers are stored in two's complement, the bits of an unfinished last byte are 0.

    Args:
        codes: integers or bools of any shape, all in [0, 2^bits) or all in [-2^(bits-1), 2^(bits-1)).
        bits: 1 to 8.

    Returns:
        uint8, shape ``(ceil(n * bits / 8),)``.

    Raises:
        ConfigError: ``bits`` out of range, float codes, or a code that does not fit.

    Example:
        >>> pack(torch.tensor([1, 0, 3, 2]), 2).tolist()
        [177]
    """
    _check_bits("pack", bits)
    require(isinstance(codes, Tensor), "pack.codes", "a tensor", codes)
    ok = not (codes.dtype.is_floating_point or codes.dtype.is_complex)
    require(ok, "pack.codes", "integers or bools", codes.dtype)
    flat = codes.flatten().to(torch.int64)
    if flat.numel():
        half = 2 ** (bits - 1)
        low, high = (int(edge) for edge in torch.aminmax(flat))
        fits = min(low + half, half - 1 - high) >= 0 or min(low, 2 * half - 1 - high) >= 0
        require(fits, "pack.codes", f"within {bits} bits, all signed or all unsigned", Verbatim(f"{low} to {high}"))
    return _bits.pack(flat, bits)


def unpack(packed: Tensor, bits: int, count: int, *, signed: bool = False) -> Tensor:
    """The inverse of ``pack``.

    Args:
        packed: uint8, shape ``(ceil(count * bits / 8),)``.
        bits: 1 to 8.
        count: number of integers, >= 0.
        signed: read them as two's complement.

    Returns:
        uint8, or int8 if ``signed``; shape ``(count,)``.

    Raises:
        ConfigError: ``packed`` is not of that size.

    Example:
        >>> unpack(torch.tensor([177], dtype=torch.uint8), 2, 4).tolist()
        [1, 0, 3, 2]
    """
    _check_bits("unpack", bits)
    require(is_int(count, 0), "unpack.count", "an integer >= 0", count)
    size = -(-count * bits // 8)
    ok = packed.dtype == torch.uint8 and packed.numel() == size
    require(ok, "unpack.packed", f"{size} uint8", Verbatim(f"{packed.numel()} {packed.dtype}"))
    codes = _bits.unpack(packed, bits, count)
    if not signed:
        return codes
    half = 2 ** (bits - 1)
    return codes.to(torch.int16).bitwise_xor_(half).sub_(half).to(torch.int8)


def quantize(
    tensor: Tensor, bits: int, *, stochastic: bool = False, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Round to 2 s + 1 equal steps between -max|x| and max|x|: code = round(x / step), s = 2^(bits-1) - 1.

    Args:
        tensor: float, any shape.
        bits: 2 to 8; the codes fit into ``pack(codes, bits)``. Each bit less doubles the step.
        stochastic: round up or down at random, so that the mean is exact; else to the nearest, half to even.
        generator: random generator for ``stochastic``; None draws from torch's global generator.

    Returns:
        Codes in [-s, s], int8, in the shape of ``tensor``; and the step, float32, 0-dimensional. A tensor of zeros
        has step 0; one with a NaN or an infinity has that for its step, and decodes to NaN.

    Raises:
        ConfigError: ``bits`` out of range.

    Example:
        >>> codes, step = quantize(torch.tensor([3.0, -1.4, 0.0]), 3)
        >>> codes.tolist(), step.item()
        ([3, -1, 0], 1.0)
    """
    require(is_int(bits, 2, 8), "quantize.bits", "an integer from 2 to 8", bits)
    levels = 2 ** (bits - 1) - 1
    values = tensor.to(torch.float32)
    step = values.abs().amax() / levels if values.numel() else values.new_zeros(())
    scaled = torch.where((step > 0) & step.isfinite(), values / step, 0.0)
    if stochastic:
        scaled = (
            scaled + torch.rand(scaled.shape, generator=generator, dtype=torch.float32, device=scaled.device)
        ).floor()
    return scaled.round().clamp(-levels, levels).to(torch.int8), step


def dequantize(codes: Tensor, step: Tensor) -> Tensor:
    """``codes * step`` in float32: the inverse of ``quantize`` but for the rounding.

    Example:
        >>> dequantize(torch.tensor([3, -1, 0], dtype=torch.int8), torch.tensor(0.5)).tolist()
        [1.5, -0.5, 0.0]
    """
    # An infinite step times code 0 is NaN: that is how a tensor that was not finite says so.
    return codes.to(torch.float32) * step


def count_of(ratio: float, n: int) -> int:
    """The number of elements in a share of ``n``: max(1, ceil(ratio n)), and at most n; every method counts like this.

    Args:
        ratio: share of the elements, in (0, 1].
        n: >= 0.

    Example:
        >>> count_of(0.25, 10), count_of(0.07, 100), count_of(1e-9, 100)
        (3, 7, 1)
    """
    # 0.07 * 100 is 7.000000000000001 in binary; its ceiling must not be 8.
    return min(n, max(1, math.ceil(round(ratio * n, 6))))


def sparsify(tensor: Tensor, ratio: float | None = None, *, k: int | None = None) -> tuple[Tensor, Tensor]:
    """The k entries of largest magnitude, in index order.

    Args:
        tensor: float, any shape, n elements.
        ratio: k = max(1, ceil(ratio * n)), as ``count_of`` counts, in (0, 1]. Lower: fewer bytes, and more
            is left for later steps.
        k: instead of ``ratio``; at least 1, cut to n.

    Returns:
        Values in the dtype of ``tensor``, and their flat indices, int32 (int64 from 2^31 elements on); shape ``(k,)``.

    Raises:
        ConfigError: the call has neither or both of ``ratio`` and ``k``, or one out of range.

    Example:
        >>> values, indices = sparsify(torch.tensor([1.0, -5.0, 3.0, -2.0, 4.0]), k=2)
        >>> values.tolist(), indices.tolist()
        ([-5.0, 4.0], [1, 4])
    """
    if (ratio is None) == (k is None):
        raise ConfigError(f"sparsify takes either ratio or k, got ratio={ratio!r} and k={k!r}")
    n = tensor.numel()
    if ratio is not None:
        require(is_float32(ratio) and 0 < ratio <= 1, "sparsify.ratio", "in (0, 1]", ratio)
        k = count_of(ratio, n)
    require(is_int(k, 0 if n == 0 else 1), "sparsify.k", "an integer >= 1", k)
    flat = tensor.flatten()
    indices = flat.abs().topk(min(k or 0, n), sorted=False).indices.sort().values
    return flat[indices], indices.to(torch.int32 if n < 2**31 else torch.int64)


def desparsify(values: Tensor, indices: Tensor, shape: int | Sequence[int]) -> Tensor:
    """A tensor of zeros with ``values`` at the flat ``indices``; values at the same index are added.

    Args:
        values: float, shape ``(k,)``.
        indices: integers in [0, n), shape ``(k,)``.
        shape: shape of the result, n elements.

    Raises:
        IndexError: an index out of range (on a GPU: torch's device-side assertion).

    Example:
        >>> desparsify(torch.tensor([-5.0, 4.0]), torch.tensor([1, 4]), 5).tolist()
        [0.0, -5.0, 0.0, 0.0, 4.0]
    """
    size = torch.Size([shape] if isinstance(shape, int) else shape)
    out = torch.zeros(size.numel(), dtype=values.dtype, device=values.device)
    return out.index_add_(0, indices.to(torch.int64), values).view(size)


def _check_bits(function: str, bits: int) -> None:
    require(is_int(bits, 1, 8), f"{function}.bits", "an integer from 1 to 8", bits)
