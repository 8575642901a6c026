"""EDEN codes of a tensor."""

import math

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._eden import check_form, flip, kept, limits, parts, quantiser, sign_words, words
from gradwire.ops._lanes import lane_sums
from gradwire.ops._qsgd import TINY, pack_levels
from gradwire.ops._thc import hadamard
from gradwire.ops._units import exponent_of, power_of_two
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["eden_encode"]


def _check(
    x: Tensor, seed: Tensor, scales: Tensor, codes: Tensor, block: int, bits: int, sent: int, group: int = 1
) -> None:
    check_vector("eden_encode.x", x, torch.float32, x)
    check_form("eden_encode", x, seed, scales, codes, block, bits, sent, group)


@operation(
    "eden_encode(Tensor x, Tensor seed, Tensor(a!) scales, Tensor(b!) codes, int block, int bits, int sent,"
    " int group=1) -> ()",
    _check,
)
def eden_encode(
    x: Tensor, seed: Tensor, scales: Tensor, codes: Tensor, block: int, bits: int, sent: int, group: int = 1
) -> None:
    """Rotate each block twice and round the coordinates that are sent to the nearest values of a normal quantiser.

        y = H E H D x;  r = sqrt(|y|^2 / k);  code = nearest c to y / r;  scale = (|y|^2 / <y, c>) / k

    or, of D y, the word c with the largest product with each group; as ``ops._eden`` has it, with sums over the first k
    coordinates of y. A block whose largest element is below 2**-120 has the scale 0, one that holds an infinity or a
    NaN has NaN, and the codes of both are 0.

    Args:
        x: float32, n elements; not changed.
        seed: int32, of the streams of signs; empty if n = 0.
        scales: float32, one for each block of ``parts(n, block, sent)``.
        codes: uint8; code i in bits i * bits .. of the stream, lowest first: which magnitude, or which word, and above
            it the sign.
        block: a power of two from 64 to 16384.
        bits: of a code, from 1 to 4, or 8 for groups; more mean less noise and more bytes.
        sent: coordinates of a whole block, a multiple of 16 and of the group; fewer mean fewer bytes and more noise.
        group: coordinates that share a code: 1, or 16, 32 or 64.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> scales, codes = torch.empty(1), torch.empty(8, dtype=torch.uint8)
    >>> eden_encode(torch.zeros(3), torch.ones(1, dtype=torch.int32), scales, codes, block=64, bits=1, sent=64)
    >>> scales.item(), codes.sum().item()
    (0.0, 0)

    Source: S. Vargaftik, R. Ben Basat, A. Portnoy, G. Mendelson, Y. Ben-Itzhak, M. Mitzenmacher, "EDEN:
    Communication-Efficient and Robust Distributed Mean Estimation for Federated Learning", ICML 2022.
    """
    if x.numel() == 0:
        return
    blocks = parts(x.numel(), block, sent, group)
    coordinates = blocks[-1].begin + blocks[-1].rows * blocks[-1].size
    padded = torch.nn.functional.pad(x, (0, coordinates - x.numel()))
    signs = flip(torch.ones_like(padded), seed, 0), flip(torch.ones_like(padded), seed, 1)
    for part in blocks:
        here = slice(part.begin, part.begin + part.rows * part.size)
        rows, count = padded[here].view(-1, part.size), kept(part.size, block, sent, group)
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
    """The code of each coordinate, and the product of each row with what its codes stand for."""
    magnitudes, level = y.abs(), torch.zeros_like(y, dtype=torch.int64)
    root = (squares / torch.full_like(squares, y.size(1))).double().sqrt_().float().unsqueeze(1)
    for limit in limits(bits).tolist():
        level += magnitudes >= root * limit
    return level + (y < 0) * (1 << bits - 1), lane_sums(magnitudes * quantiser(bits, y.device)[level])


def _words(y: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """The same for each group; of words with equal products the first."""
    groups = y.reshape(-1, 1, group)
    products = hadamard((groups * words(group, y.device)[::group]).view(-1, group)).view(y.size(0), -1, 128)
    word = products.abs().argmax(2, keepdim=True)
    best = products.gather(2, word).squeeze(2)
    sums = lane_sums(torch.nn.functional.pad(best.abs(), (0, -best.size(1) % 16)))
    return word.squeeze(2) + (best < 0) * 128, sums


@eden_encode.kernel("CPU")
def _cpu(
    x: Tensor, seed: Tensor, scales: Tensor, codes: Tensor, block: int, bits: int, sent: int, group: int = 1
) -> None:
    addresses = x.data_ptr(), seed.data_ptr(), scales.data_ptr(), codes.data_ptr()
    tables = (
        (quantiser(bits, x.device).data_ptr(), limits(bits).data_ptr(), 0)
        if group == 1
        else (0, 0, sign_words(group).data_ptr())
    )
    kernels.eden_encode(*addresses, block, bits, sent, group, *tables, x.numel(), torch.get_num_threads())
