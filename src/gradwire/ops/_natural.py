"""Natural compression: powers of two in a byte, of a window of exponents that ends above each block's largest element.

An element is rounded to a power of two by its bits: the biased exponent of |x| after a random 23-bit number, or half
of 2**23, was added to the bits of |x| carries exactly where it should. The window of a block starts above the biased
exponent ``base`` = max(E - 126, 0), with E that of the block's largest element, so that even rounded up it is inside:

    code = sign << 7 | m,    m = max(exponent - base, 0),    decoded = sign 2**(base + m - 127), 0 for m = 0

What is 2**126 times smaller than the largest of its block becomes 0. Exponents end at 254, 2**127. A block that holds
an infinity or a NaN has base 255 and decodes to NaN.
"""

import torch
from torch import Tensor

from gradwire.errors import is_int, require
from gradwire.ops._checks import check_vector
from gradwire.ops._philox import philox_words
from gradwire.ops._qsgd import spread

__all__ = ["ROUNDINGS", "check_block", "check_codes", "check_parameters", "dequantise", "encode"]

ROUNDINGS = ("random", "nearest")
_FRACTION = 23
_NONFINITE = 255


def check_parameters(op: str, rounding: str, block: int) -> None:
    require(rounding in ROUNDINGS, f"{op}.rounding", "'random' or 'nearest'", rounding)
    check_block(op, block)


def check_block(op: str, block: int) -> None:
    multiple = is_int(block, 16, 65536) and block % 16 == 0
    require(multiple, f"{op}.block", "a multiple of 16 from 16 to 65536", block)


def check_codes(op: str, x: Tensor, bases: Tensor, codes: Tensor, block: int) -> None:
    check_vector(f"{op}.bases", bases, torch.uint8, x, -(-x.numel() // block))
    check_vector(f"{op}.codes", codes, torch.uint8, x, x.numel())


def encode(x: Tensor, bases: Tensor, codes: Tensor, rounding: str, block: int, key: int, step: int) -> None:
    """Write bases and codes."""
    n, word = x.numel(), x.view(torch.int32)
    magnitude = word & 0x7FFFFFFF
    largest = torch.nn.functional.pad(magnitude, (0, -n % block)).view(-1, block).amax(dim=1) >> _FRACTION
    base = (largest - 126).clamp_(min=0).masked_fill_(largest == _NONFINITE, _NONFINITE)
    bases.copy_(base.to(torch.uint8))
    exponent = (magnitude + _carries(n, rounding, key, step, x.device) >> _FRACTION).clamp_(max=254)
    code = (exponent - spread(base, n, block)).clamp_(min=0) | (word >> 24 & 0x80)
    codes.copy_(code.masked_fill_(spread(base == _NONFINITE, n, block), 0).to(torch.uint8))


def dequantise(bases: Tensor, codes: Tensor, block: int, scale: float) -> Tensor:
    """``scale`` times the decoded elements; ``scale`` is a float32."""
    n, code = codes.numel(), codes.to(torch.int32)
    exponent = (spread(bases.to(torch.int32), n, block) + (code & 0x7F)).clamp_(max=255)
    power = (exponent << _FRACTION).view(torch.float32).masked_fill_(code & 0x7F == 0, 0.0)
    scales = torch.full_like(bases, scale, dtype=torch.float32).masked_fill_(bases == _NONFINITE, torch.nan)
    return spread(scales, n, block) * torch.where(code > 0x7F, -power, power)


def _carries(n: int, rounding: str, key: int, step: int, device: torch.device) -> Tensor:
    """What is added to the bits of each element."""
    if rounding == "nearest":
        return torch.full((n,), 1 << _FRACTION - 1, dtype=torch.int32, device=device)
    words = philox_words(0, -(-n // 4), key, step, device).view(-1)[:n]
    return (words & (1 << _FRACTION) - 1).to(torch.int32)
