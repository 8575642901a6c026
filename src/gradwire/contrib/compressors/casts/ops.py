"""INCEPTIONN's tagged codes: 0, 8, 16 or 32 bits for each element, by its magnitude.

    tag 0: |x| < 2**-bound                nothing, decoded as 0
    tag 1: |x| < 2**(7 - bound), and < 1  sign << 7 | q, q = min(round(|x| 2**bound), 127), decoded as q 2**-bound
    tag 2: |x| < 1                        sign << 15 | q, q = min(round(|x| 2**15), 32767), decoded as q 2**-15
    tag 3: all others, and NaN            the float32

A stream is one byte of form; in form 1 the float32 of all elements follow, in form 0 the tags, element i in the bits
2 (i % 4) of byte i // 4, and then the codes of all elements, one after the other, little-endian.
"""

from typing import Annotated

import torch
from torch import Tensor

from gradwire.kernels.arguments import Flat, Floats, Rows, Status, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.bits import pack, unpack
from gradwire.kernels.feedback import compensate
from gradwire.kernels.float32 import float32

__all__ = [
    "capacity",
    "inceptionn_add_decoded",
    "inceptionn_encode",
    "inceptionn_encode_feedback",
]

_ONE = 127 << 23

Bound = Annotated[int, Where("1 <= bound <= 15", "an integer from 1 to 15")]
Used = Annotated[Tensor, Flat(torch.int32, "1", written=True)]
Stream = Annotated[Tensor, Flat(torch.uint8, "capacity(n)", written=True)]


def _tag_bytes(n: int) -> int:
    return -(-n // 4)


def capacity(n: int) -> int:
    """The most bytes that a stream of ``n`` elements takes: its form byte and the unchanged elements."""
    return 1 + 4 * n if n else 0


def _write_stream(x: Tensor, used: Tensor, stream: Tensor, bound: int) -> None:
    """Write the stream and its length; bytes behind it are not changed."""
    n, start = x.numel(), 1 + _tag_bytes(x.numel())
    used.zero_()
    if n == 0:
        return
    tag, word = _classify(x, bound)
    size = 1 << tag >> 1
    end = size.cumsum(0)
    coded = torch.zeros(start + 4 * n + 1, dtype=torch.uint8, device=x.device)
    coded[1:start] = pack(tag, 2)
    for byte in range(4):
        # Bytes that an element does not need go to the last place, which nobody reads.
        place = torch.where(size > byte, start + end - size + byte, start + 4 * n)
        coded[place] = (word >> 8 * byte & 0xFF).to(torch.uint8)
    raw = torch.cat([torch.ones(1, dtype=torch.uint8, device=x.device), x.view(torch.uint8)])
    fits = start + end[-1:] < 1 + 4 * n
    used.copy_(torch.where(fits, start + end[-1:], 1 + 4 * n))
    inside = torch.arange(1 + 4 * n, device=x.device) < used
    stream.copy_(torch.where(inside, torch.where(fits, coded[: 1 + 4 * n], raw), stream))


def _read_stream(stream: Tensor, n: int, bound: int) -> Tensor:
    """Read the elements; those that a truncated stream lacks are zero."""
    start = 1 + _tag_bytes(n)
    padded = torch.nn.functional.pad(stream, (0, max(0, start + 4 * n - stream.numel())))
    tag = unpack(padded[1:start], 2, n).long()
    size = 1 << tag >> 1
    begin = start + size.cumsum(0) - size
    parts = [torch.where(size > byte, padded[begin + byte].long() << 8 * byte, 0) for byte in range(4)]
    word = torch.stack(parts).sum(0)
    coded = _values_of(tag, word, bound)
    raw = padded[1 : 1 + 4 * n].clone().view(torch.float32)
    return torch.where(padded[0] == 1, raw, coded)


def _classify(x: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """Compute the tag of each element, and its code in the lowest bits of an int64."""
    bits = x.view(torch.int32).long() & 0xFFFFFFFF
    magnitude, sign = bits & 0x7FFFFFFF, bits >> 31
    borders = 127 - bound << 23, min(134 - bound << 23, _ONE), _ONE
    tag = torch.stack([magnitude >= border for border in borders]).sum(0)
    below = torch.where(magnitude < _ONE, x.abs(), 0.0)
    byte = (below * 2.0**bound).round().clamp_(max=127).long() | sign << 7
    short = (below * 2.0**15).round().clamp_(max=32767).long() | sign << 15
    return tag, torch.where(tag == 1, byte, torch.where(tag == 2, short, bits))


def _values_of(tag: Tensor, word: Tensor, bound: int) -> Tensor:
    byte = (word & 0x7F).float() * 2.0**-bound * (1 - (word >> 6 & 2)).float()
    short = (word & 0x7FFF).float() * 2.0**-15 * (1 - (word >> 14 & 2)).float()
    whole = ((word ^ 2**31) - 2**31).to(torch.int32).view(torch.float32)
    fixed = torch.where(tag == 1, byte, torch.where(tag == 2, short, 0.0))
    return torch.where(tag == 3, whole, fixed)


@declared
def inceptionn_encode(x: Floats, used: Used, stream: Stream, bound: Bound) -> None:
    """Write nothing, 8 bits, 16 bits or the float32 of each element, so that the error of each is below 2**-bound.

    Elements below 2**-bound are dropped; those below 2**(7 - bound) travel as 7 bits of fixed point and a sign, those
    below 1 as 15, larger ones and what is not finite as they are. Where that takes more bytes than the tensor, the
    tensor itself is sent.

    Args:
        x: float32, n elements; not changed.
        used: int32, 1 element: how many bytes of the stream are in use.
        stream: uint8, 1 + 4 n, or none where n is 0; what is beyond ``used`` is of no meaning.
        bound: 1 to 15; a larger one means a smaller error and more bytes.

    >>> used, stream = torch.empty(1, dtype=torch.int32), torch.empty(17, dtype=torch.uint8)
    >>> inceptionn_encode(torch.tensor([0.0, 0.01, -0.5, 2.0]), used, stream, bound=10)
    >>> used.item(), bytes(stream[:9].tolist()).hex()
    (9, '00e40a00c000000040')

    Source: Y. Li et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep
    Neural Networks", MICRO 2018.
    """
    _write_stream(x, used, stream, bound)


@declared
def inceptionn_encode_feedback(
    grad: Written, residual: Written, used: Used, stream: Stream, bound: Bound, status: Status = None
) -> None:
    """Encode residual + grad as ``inceptionn_encode`` does, and keep the rest.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the codes do not say.
        used: int32, 1 element: how many bytes of the stream are in use.
        stream: uint8, 1 + 4 n, or none where n is 0; what is beyond ``used`` is of no meaning.
        bound: 1 to 15.
        status: int32, 1 element, or None: bit 0 is set where residual + grad is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.

    >>> residual, used, stream = torch.zeros(4), torch.empty(1, dtype=torch.int32), torch.empty(17, dtype=torch.uint8)
    >>> inceptionn_encode_feedback(torch.tensor([0.0005, 0.25, -0.5, 2.0]), residual, used, stream, bound=10)
    >>> residual.tolist() == [torch.tensor(0.0005).item(), 0.0, 0.0, 0.0]
    True

    Source: as ``inceptionn_encode``.
    """
    x = compensate(grad, residual, status)
    _write_stream(x, used, stream, bound)
    residual.copy_(x - _read_stream(stream, x.numel(), bound) if x.numel() else x)


@declared
def inceptionn_add_decoded(
    streams: Annotated[Tensor, Rows(torch.uint8, "length")], out: Written, bound: Bound, scale: float
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + scale * decoded.

    Args:
        streams: uint8, (W, bytes) with contiguous rows: what ``inceptionn_encode`` wrote; the part in use suffices.
            Any bytes are safe: those that are missing are read as zeros.
        out: float32, n elements.
        bound: 1 to 15, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    >>> out, stream = torch.zeros(4), torch.tensor(list(bytes.fromhex("00e40a00c000000040")), dtype=torch.uint8)
    >>> inceptionn_add_decoded(stream[None], out, 10, 0.5)
    >>> out.tolist()
    [0.0, 0.0048828125, -0.25, 1.0]

    Source: as ``inceptionn_encode``.
    """
    for stream in streams:
        out += _read_stream(stream, out.numel(), bound) * float32(scale)
