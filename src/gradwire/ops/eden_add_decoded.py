"""Adds a tensor that EDEN codes stand for."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector, float32
from gradwire.ops._eden import check_form, flip, kept, parts, quantiser, sign_words, words
from gradwire.ops._qsgd import unpack_levels
from gradwire.ops._thc import hadamard
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["eden_add_decoded"]


def _check(
    seed: Tensor,
    scales: Tensor,
    codes: Tensor,
    out: Tensor,
    block: int,
    bits: int,
    sent: int,
    scale: float,  # noqa: ARG001
    group: int = 1,
) -> None:
    check_vector("eden_add_decoded.out", out, torch.float32, out)
    check_form("eden_add_decoded", out, seed, scales, codes, block, bits, sent, group)


@operation(
    "eden_add_decoded(Tensor seed, Tensor scales, Tensor codes, Tensor(a!) out, int block, int bits, int sent,"
    " float scale, int group=1) -> ()",
    _check,
)
def eden_add_decoded(
    seed: Tensor,
    scales: Tensor,
    codes: Tensor,
    out: Tensor,
    block: int,
    bits: int,
    sent: int,
    scale: float,
    group: int = 1,
) -> None:
    """Turn the coordinates back and add them.

        out = out + scale D H E H (c s / B)

    with s the block's entry of ``scales``, c = 0 where nothing was sent, and D c in place of c for groups.

    Args:
        seed: int32, as encoded; empty if n = 0.
        scales: float32, as ``eden_encode`` writes them. One that is not finite gives NaN.
        codes: uint8, as ``eden_encode`` writes them; any bytes stand for something.
        out: float32, n elements.
        block: a power of two from 64 to 16384, as encoded.
        bits: of a code, as encoded.
        sent: coordinates of a whole block, as encoded.
        scale: 1 to decode, -1 to subtract; rounded to float32.
        group: coordinates that share a code, as encoded.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> seed, scales, out = torch.ones(1, dtype=torch.int32), torch.zeros(1), torch.ones(3)
    >>> eden_add_decoded(seed, scales, torch.ones(8, dtype=torch.uint8), out, block=64, bits=1, sent=64, scale=1.0)
    >>> out.tolist()
    [1.0, 1.0, 1.0]

    Source: as ``eden_encode``.
    """
    if out.numel() == 0:
        return
    decoded = []
    blocks = parts(out.numel(), block, sent, group)
    signs = torch.ones(blocks[-1].begin + blocks[-1].rows * blocks[-1].size, device=out.device)
    first, second = flip(signs, seed, 0), flip(signs, seed, 1)
    for part in blocks:
        count, first_byte = kept(part.size, block, sent, group), part.code // group * bits // 8
        read = codes[first_byte : first_byte + part.rows * count // group * bits // 8]
        level = unpack_levels(read, bits, part.rows * count // group).long() & (1 << bits) - 1
        if group == 1:
            values = quantiser(bits, out.device)[level]
        else:
            values = words(group, out.device)[level & 127] * (1.0 - 2.0 * (level >> 7)).unsqueeze(1)
        unit = scales[part.scale : part.scale + part.rows].unsqueeze(1) * (1 / part.size)
        y = torch.nn.functional.pad(values.view(part.rows, count) * unit, (0, part.size - count))
        here = slice(part.begin, part.begin + part.rows * part.size)
        y = y if group == 1 else y * first[here].view_as(y)
        y = hadamard(hadamard(y) * second[here].view_as(y)) * first[here].view_as(y)
        decoded.append(y.view(-1) * float32(scale))
    out += torch.cat(decoded)[: out.numel()]


@eden_add_decoded.kernel("CPU")
def _cpu(
    seed: Tensor,
    scales: Tensor,
    codes: Tensor,
    out: Tensor,
    block: int,
    bits: int,
    sent: int,
    scale: float,
    group: int = 1,
) -> None:
    addresses = seed.data_ptr(), scales.data_ptr(), codes.data_ptr(), out.data_ptr()
    tables = (quantiser(bits, out.device).data_ptr(), 0) if group == 1 else (0, sign_words(group).data_ptr())
    kernels.eden_add_decoded(*addresses, block, bits, sent, group, *tables, scale, out.numel(), torch.get_num_threads())
