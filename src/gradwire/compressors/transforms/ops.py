"""Operations on transformed blocks: EDEN's and THC's rotations, and DeMo's waves.

``_eden`` and ``_thc`` say how the blocks of a tensor lie, and what their codes stand for.
"""

import math
from typing import Annotated

import torch
from torch import Tensor

from gradwire.compressors.transforms import _eden
from gradwire.errors import require
from gradwire.kernels.arguments import Flat, Floats, Rows, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.float32 import float32
from gradwire.kernels.hadamard import LONGEST, hadamard  # noqa: F401 (annotations name it)
from gradwire.kernels.levels import TINY, pack_levels, unpack_levels
from gradwire.kernels.sums import lane_sums
from gradwire.kernels.units import exponent_of, power_of_two

__all__ = [
    "eden_add_decoded",
    "eden_encode",
]

Seed = Annotated[Tensor, Flat(torch.int32, "min(n, 1)")]
Turned = Annotated[
    int,
    Where(
        "_eden.SMALLEST <= block <= LONGEST and block & (block - 1) == 0",
        "a power of two from {_eden.SMALLEST} to {LONGEST}",
    ),
]
Group = Annotated[int, Where("group == 1 or group in _eden.FORMS", "1, 16, 32 or 64")]


def _check_form(op: str, block: int, bits: int, sent: int, group: int) -> None:
    fits = 1 <= bits <= 4 if group == 1 else bits == 8
    require(fits, f"{op}.bits", "an integer from 1 to 4" if group == 1 else f"8 for groups of {group}", bits)
    step = max(_eden.STEP, group)
    whole = step <= sent <= block and sent % step == 0
    require(whole, f"{op}.sent", f"a multiple of {step} from {step} to {block}", sent)


@declared(check=_check_form, tables=("_eden.table(bits, group)",), merges=True)
def eden_encode(
    x: Floats,
    seed: Seed,
    scales: Annotated[Tensor, Flat(torch.float32, "_eden.blocks_of(n, block)", written=True)],
    codes: Annotated[Tensor, Flat(torch.uint8, "_eden.code_bytes(n, block, bits, sent, group)", written=True)],
    block: Turned,
    bits: int,
    sent: int,
    group: Group = 1,
) -> None:
    """Rotate each block twice and round the coordinates that are sent to the nearest values of a normal quantiser.

        y = H E H D x;  r = sqrt(|y|^2 / k);  code = nearest c to y / r;  scale = (|y|^2 / <y, c>) / k

    or, of D y, the word c with the largest product with each group; as ``_eden`` has it, with sums over the first k
    coordinates of y. A block whose largest element is below 2**-120 has the scale 0, one that holds an infinity or a
    NaN has NaN, and the codes of both are 0.

    Args:
        x: float32, n elements; not changed.
        seed: int32, of the streams of signs; empty if n = 0.
        scales: float32, one for each block of ``parts(n, block, sent)``.
        codes: uint8; code i in bits i * bits .. of the stream, lowest first: which magnitude, or which word, and above
            it the sign.
        block: a power of two from 64 to 16384.
        bits: bits of a code, 1 to 4, or 8 for groups; more mean less noise and more bytes.
        sent: coordinates of a whole block, a multiple of 16 and of the group; fewer mean fewer bytes and more noise.
        group: coordinates that share a code: 1, or 16, 32 or 64.

    >>> scales, codes = torch.empty(1), torch.empty(8, dtype=torch.uint8)
    >>> eden_encode(torch.zeros(3), torch.ones(1, dtype=torch.int32), scales, codes, block=64, bits=1, sent=64)
    >>> scales.item(), codes.sum().item()
    (0.0, 0)

    Source: S. Vargaftik, R. Ben Basat, A. Portnoy, G. Mendelson, Y. Ben-Itzhak, M. Mitzenmacher, "EDEN:
    Communication-Efficient and Robust Distributed Mean Estimation for Federated Learning", ICML 2022.
    """
    if x.numel() == 0:
        return
    blocks = _eden.parts(x.numel(), block, sent, group)
    padded = torch.nn.functional.pad(x, (0, blocks[-1].begin + blocks[-1].rows * blocks[-1].size - x.numel()))
    signs = _eden.signs_of(padded.numel(), seed)
    for part in blocks:
        here = slice(part.begin, part.begin + part.rows * part.size)
        rows, count = padded[here].view(-1, part.size), _eden.kept(part.size, block, sent, group)
        largest = (rows.view(torch.int32) & 0x7FFFFFFF).amax(1).view(torch.float32)
        usable = largest.isfinite() & (largest >= TINY)
        exponents = exponent_of(largest)
        first, second = (sign[here].view_as(rows) for sign in signs)
        y = rows * power_of_two(-exponents).unsqueeze(1)
        y = hadamard(hadamard(y * first) * second)
        y = (y if group == 1 else y * first)[:, :count].masked_fill(~usable.unsqueeze(1), 0.0)
        squares = lane_sums(y * y)
        level, products = _values(y, squares, bits) if group == 1 else _words(y, group)
        found = squares / products.masked_fill(products == 0, math.inf) / torch.full_like(squares, count)
        missing = torch.where(largest.isfinite(), 0.0, math.nan)
        scales[part.scale : part.scale + part.rows] = torch.where(usable, found * power_of_two(exponents), missing)
        first_byte, level = part.code // group * bits // 8, level.masked_fill(~usable.unsqueeze(1), 0)
        pack_levels(level.view(-1), bits, codes[first_byte : first_byte + level.numel() * bits // 8])


def _values(y: Tensor, squares: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Compute the code of each coordinate, and the dot product of each row with the values of its codes."""
    magnitudes, level = y.abs(), torch.zeros_like(y, dtype=torch.int64)
    root = (squares / torch.full_like(squares, y.size(1))).double().sqrt_().float().unsqueeze(1)
    for limit in _eden.limits(bits):
        level += magnitudes >= root * limit
    return level + (y < 0) * (1 << bits - 1), lane_sums(magnitudes * _eden.quantiser(bits, y.device)[level])


def _words(y: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Compute the same as ``_values`` for groups; of words with equal products the first is taken."""
    groups = y.reshape(-1, 1, group)
    products = hadamard((groups * _eden.words(group, y.device)[::group]).view(-1, group)).view(y.size(0), -1, 128)
    word = products.abs().argmax(2, keepdim=True)
    best = products.gather(2, word).squeeze(2)
    sums = lane_sums(torch.nn.functional.pad(best.abs(), (0, -best.size(1) % 16)))
    return word.squeeze(2) + (best < 0) * 128, sums


@declared(check=_check_form, tables=("_eden.table(bits, group)",), merges=True)
def eden_add_decoded(
    seed: Annotated[Tensor, Rows(torch.int32, "min(n, 1)")],
    scales: Annotated[Tensor, Rows(torch.float32, "_eden.blocks_of(n, block)")],
    codes: Annotated[Tensor, Rows(torch.uint8, "_eden.code_bytes(n, block, bits, sent, group)")],
    out: Written,
    block: Turned,
    bits: int,
    sent: int,
    scale: float,
    group: Group = 1,
) -> None:
    """Rotate the coordinates of each rank back and add them, rank 0 first.

        out = out + scale D H E H (c s / B)

    with s the block's entry of ``scales``, c = 0 where nothing was sent, and D c in place of c for groups.

    Args:
        seed: int32, (W, 1), as encoded; of rows without elements if n = 0.
        scales: float32, (W, blocks), rows contiguous, as ``eden_encode`` writes them. One that is not finite gives NaN.
        codes: uint8, (W, bytes), rows contiguous, as ``eden_encode`` writes them; any bytes stand for something.
        out: float32, n elements.
        block: a power of two from 64 to 16384, as encoded.
        bits: bits of a code, as encoded.
        sent: coordinates of a whole block, as encoded.
        scale: 1 to decode, -1 to subtract; rounded to float32.
        group: coordinates that share a code, as encoded.

    >>> seed, scales, out = torch.ones(1, 1, dtype=torch.int32), torch.zeros(1, 1), torch.ones(3)
    >>> eden_add_decoded(seed, scales, torch.ones(1, 8, dtype=torch.uint8), out, block=64, bits=1, sent=64, scale=1.0)
    >>> out.tolist()
    [1.0, 1.0, 1.0]

    Source: as ``eden_encode``.
    """
    if out.numel():
        for rank in range(codes.size(0)):
            out += _decoded(seed[rank], scales[rank], codes[rank], out.numel(), block, bits, sent, group) * float32(
                scale
            )


def _decoded(
    seed: Tensor, scales: Tensor, codes: Tensor, n: int, block: int, bits: int, sent: int, group: int
) -> Tensor:
    """Decode the n > 0 elements of a rank."""
    decoded = []
    blocks = _eden.parts(n, block, sent, group)
    first, second = _eden.signs_of(blocks[-1].begin + blocks[-1].rows * blocks[-1].size, seed)
    for part in blocks:
        count, first_byte = _eden.kept(part.size, block, sent, group), part.code // group * bits // 8
        read = codes[first_byte : first_byte + part.rows * count // group * bits // 8]
        level = unpack_levels(read, bits, part.rows * count // group).long() & (1 << bits) - 1
        if group == 1:
            values = _eden.quantiser(bits, codes.device)[level]
        else:
            values = _eden.words(group, codes.device)[level & 127] * (1.0 - 2.0 * (level >> 7)).unsqueeze(1)
        unit = scales[part.scale : part.scale + part.rows].unsqueeze(1) * (1 / part.size)
        y = torch.nn.functional.pad(values.view(part.rows, count) * unit, (0, part.size - count))
        here = slice(part.begin, part.begin + part.rows * part.size)
        y = y if group == 1 else y * first[here].view_as(y)
        y = hadamard(hadamard(y) * second[here].view_as(y)) * first[here].view_as(y)
        decoded.append(y.view(-1))
    return torch.cat(decoded)[:n]
