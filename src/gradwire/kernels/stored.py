"""Forms in which a memory stores its tensors: as numbers, or as codes of 8 or 4 bits with a scale for each block.

    value = code * scale;    scale = up(N / top), N the largest magnitude of the block;    code = round(value / scale)

with top = 127, or 7 for 4 bits.

Invariants:
    * What is kept of a parameter under one name is one plain tensor, which shows by its dtype and shape how it is
      stored. So a copy, a select and a checkpoint need not know the form; code that needs numbers reads and writes them
      here.
    * Codes are a row of bytes for each block of B elements, counted from the parameter's first element: B codes in
      two's complement, and then their scale, a float32 in the machine's byte order. Codes of 4 bits are stored two to a
      byte, the first in its lower half, as code + 8. A tensor of them is int8, one of 8 bits uint8.
    * ``up`` leaves 17 significant bits, so a code times its scale is exact in float32, and values that were read and
      are written again have the same bytes. So a step that is undone through float32 is undone bit for bit.
    * A scale is at most the largest of these numbers of which ``top`` times is finite, so whatever is finite is read as
      finite. N below 2**-100 counts as zero.

Failure modes:
    If N is not finite, the scale is infinite, and the block is read as NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import torch
from torch import Tensor

from gradwire.kernels.pieces import Pieces

__all__ = [
    "FLOAT32",
    "LEAST",
    "StoredForm",
    "accumulate_into",
    "add_to",
    "copy_into",
    "form_of",
    "holds",
    "keep_unless",
    "mix_into",
    "multiply",
    "part_of",
    "quantised",
    "read",
    "row_bytes",
    "scale_of",
    "shaped",
    "stored_like",
    "swap_with",
    "write",
]

LEAST = 2.0**-100
"""A block whose largest magnitude is smaller is stored as zeros."""

_SCALE = 4
_CHUNK = 1 << 16
"""Elements that are converted at once: who reads and writes needs no room of the tensor's size."""


_TOPS = {torch.uint8: 127, torch.int8: 7}
"""The largest code, by the type of what holds it."""

_MOST = {127: float.fromhex("0x1.0204p+121"), 7: float.fromhex("0x1.2492p+125")}
"""The largest scale, by the largest code: of the next number of 17 bits the product would be infinite."""


def row_bytes(block: int, dtype: torch.dtype = torch.uint8) -> int:
    """The number of bytes of a block of codes: of 8 bits, or of 4 in int8.

    >>> row_bytes(256), row_bytes(256, torch.int8)
    (260, 132)
    """
    return (block if dtype is torch.uint8 else block // 2) + _SCALE


@dataclass(frozen=True)
class StoredForm:
    """The form in which the tensors of a memory are stored.

    Args:
        dtype: dtype of the numbers; uint8 where codes of 8 bits are stored, int8 where codes of 4 bits are.
        block: elements that share a scale, a multiple of 4, or of 8 for 4 bits; 0: numbers are stored.

    Example:
        >>> StoredForm().zeros(3), StoredForm(torch.uint8, block=8).zeros(20).shape
        (tensor([0., 0., 0.]), torch.Size([3, 12]))
    """

    dtype: torch.dtype = torch.float32
    block: int = 0

    @property
    def grain(self) -> int:
        """The multiple of elements at which a tensor may be cut, and joined to another."""
        return self.block or 1

    def nbytes(self, numel: int) -> int:
        """The number of bytes of a tensor of ``numel`` elements.

        >>> StoredForm().nbytes(1000), StoredForm(torch.uint8, 256).nbytes(1000)
        (4000, 1040)
        """
        if not self.block:
            return numel * self.dtype.itemsize
        return -(-numel // self.block) * row_bytes(self.block, self.dtype)

    def zeros(self, numel: int, device: torch.device | str | None = None) -> Tensor:
        """Make a tensor that holds ``numel`` zeros."""
        shape = (-(-numel // self.block), row_bytes(self.block, self.dtype)) if self.block else (numel,)
        return torch.zeros(shape, dtype=self.dtype, device=device)


FLOAT32 = StoredForm()
"""Form of a memory that does not declare another."""


def form_of(tensor: Tensor) -> StoredForm:
    """The form in which a tensor, or each of several pieces, is stored."""
    many: object = tensor
    if isinstance(many, Pieces):
        return StoredForm(many.dtype, many.block)
    if tensor.dtype not in _TOPS or tensor.dim() != 2:
        return StoredForm(tensor.dtype, 0)
    codes = tensor.shape[1] - _SCALE
    return StoredForm(tensor.dtype, codes if tensor.dtype is torch.uint8 else 2 * codes)


def holds(tensor: Tensor, numel: int, parts: int = 1) -> bool:
    """Return whether a stored tensor has ``numel`` elements, in equal parts that each begin a block.

    >>> codes = StoredForm(torch.uint8, 8).zeros(20)
    >>> holds(torch.zeros(5), 5), holds(codes, 20), holds(codes, 25)
    (True, True, False)
    """
    form = form_of(tensor)
    return tensor.nbytes == (parts * form.nbytes(-(-numel // parts)) if form.block else form.nbytes(numel))


def shaped(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """View numbers in the shape of the gradient; codes stay as they are."""
    return tensor if form_of(tensor).block else tensor.view(tuple(shape))


def part_of(tensor: Tensor, lo: int, hi: int) -> Tensor:
    """View the elements [lo, hi): ``lo`` is a multiple of the form's grain, and so is ``hi``, or it is the end."""
    block = form_of(tensor).block
    return tensor[lo // block : -(-hi // block)] if block else tensor.view(-1)[lo:hi]


def read(tensor: Tensor, numel: int | None = None) -> Tensor:
    """Read the elements as flat float32; a tensor of that form is returned itself.

    Args:
        tensor: stored.
        numel: elements that it holds; None: with those that fill its last block, which are 0.

    >>> codes = StoredForm(torch.uint8, block=8).zeros(2)
    >>> write(codes, torch.tensor([127.0, -3.2]))
    >>> read(codes, 2)
    tensor([127.,  -3.])
    """
    if not form_of(tensor).block:
        return tensor.view(-1).float()
    room = len(tensor) * form_of(tensor).block
    out = torch.empty(room if numel is None else numel, dtype=torch.float32, device=tensor.device)
    read_into(tensor, out)
    return out


def read_into(tensor: Tensor, out: Tensor) -> None:
    """Write the elements into float32 ``out``, contiguous and of any shape."""
    for stored, values in _chunks(tensor, out):
        values.copy_(_decoded(stored, values.numel()))


def write(tensor: Tensor, values: Tensor) -> None:
    """Store floating-point values, contiguous and of any shape: rounded to nearest."""
    for stored, part in _chunks(tensor, values):
        _encode(stored, part)


def copy_into(tensor: Tensor, other: Tensor, numel: int) -> None:
    """Store the elements of another stored tensor: its bytes if both have one form."""
    if form_of(tensor) == form_of(other):
        tensor.view(-1).copy_(other.reshape(-1))
    else:
        write(tensor, read(other, numel))


def swap_with(wide: Tensor, tensor: Tensor) -> None:
    """Exchange float32 ``wide`` with the stored elements."""
    for stored, values in _chunks(tensor, wide):
        before = _decoded(stored, values.numel()).clone()
        _encode(stored, values)
        values.copy_(before)


def keep_unless(bad: Tensor, values: Tensor, tensor: Tensor) -> None:
    """Store float32 ``values`` unless ``bad``, a bool of one element, without waiting for the device."""
    if tensor.dtype == values.dtype:
        torch.where(bad, tensor, values.view_as(tensor), out=tensor)
        return
    for stored, part in _chunks(tensor, values):
        now = torch.empty_like(stored)
        _encode(now, part)
        torch.where(bad, stored, now, out=stored)


def accumulate_into(wide: Tensor, tensor: Tensor, weight: float) -> None:
    """Add ``weight`` times the stored elements to float32 ``wide``: wide = wide + weight * stored, rounded twice."""
    for stored, values in _chunks(tensor, wide):
        values.add_(_decoded(stored, values.numel()).mul(weight))


def mix_into(tensor: Tensor, share: float, wide: Tensor) -> None:
    """Store ``share * stored + wide``, float32 and rounded twice; ``wide`` becomes the old stored elements."""
    for stored, values in _chunks(tensor, wide):
        before = _decoded(stored, values.numel()).clone()
        _encode(stored, before.mul(share).add_(values))
        values.copy_(before)


def add_to(tensor: Tensor, lo: int, values: Tensor, alpha: float) -> None:
    """Add ``alpha * values`` to the elements from ``lo`` on; codes are all rounded anew."""
    flat = read(tensor)
    flat[lo : lo + values.numel()].add_(values.view(-1), alpha=alpha)
    if flat.data_ptr() != tensor.data_ptr():
        write(tensor, flat)


def stored_like(tensor: Tensor, values: Tensor) -> Tensor:
    """Make a tensor in the form of another one that holds these values, flat and floating-point."""
    form = form_of(tensor)
    new = form.zeros(values.numel(), values.device)
    write(new, values)
    return new


def multiply(tensor: Tensor, factor: float) -> None:
    """Multiply all elements; of codes only the scales change."""
    block = form_of(tensor).block
    if block:
        _scales(tensor).copy_(_seventeen_bits(_scales(tensor) * factor))
    else:
        tensor.mul_(factor)


def scale_of(largest: Tensor, top: int = 127) -> Tensor:
    """Compute the scale of a block from its largest magnitude, both float32, and the largest code."""
    usable = largest <= torch.finfo(torch.float32).max
    scale = _seventeen_bits(torch.where(largest < LEAST, 0.0, largest) / float(top))
    return torch.where(usable, scale.clamp(max=_MOST[top]), torch.inf)


def quantised(values: Tensor, scale: Tensor) -> Tensor:
    """Compute the codes of blocks, as float32.

    Args:
        values: float32, (blocks, B).
        scale: float32, (blocks,).
    """
    usable = (scale > 0) & (scale < torch.inf)
    inverse = torch.where(usable, 1.0 / scale, 0.0)
    return torch.where(usable[:, None], (values * inverse[:, None]).round(), 0.0)


def _encode(stored: Tensor, values: Tensor) -> None:
    block = form_of(stored).block
    if not block:
        stored.copy_(values)
        return
    blocks = torch.nn.functional.pad(values.float(), (0, -values.numel() % block)).view(-1, block)
    # The maximum is that of the bits as integers, of which that of a NaN is the largest.
    scale = scale_of((blocks.view(torch.int32) & 0x7FFFFFFF).amax(1).view(torch.float32), _TOPS[stored.dtype])
    codes = quantised(blocks, scale)
    if stored.dtype is torch.uint8:
        stored.view(torch.int8)[:, :block].copy_(codes)
    else:
        nibbles = (codes + 8.0).to(torch.uint8)
        stored.view(torch.uint8)[:, : block // 2].copy_(nibbles[:, 0::2] | nibbles[:, 1::2] << 4)
    _scales(stored).copy_(scale[:, None])


def _decoded(stored: Tensor, numel: int) -> Tensor:
    block = form_of(stored).block
    if not block:
        return stored.float()
    if stored.dtype is torch.uint8:
        codes = stored.view(torch.int8)[:, :block].float()
    else:
        pairs = stored.view(torch.uint8)[:, : block // 2]
        codes = torch.stack((pairs & 15, pairs >> 4), 2).view(-1, block).float() - 8.0
    return (codes * _scales(stored)).view(-1)[:numel]


def _scales(stored: Tensor) -> Tensor:
    """View the scales, (blocks, 1)."""
    return stored.view(torch.float32)[:, -1:]


def _seventeen_bits(scale: Tensor) -> Tensor:
    """Round away from zero to a number of 17 significant bits; infinity stays."""
    return (scale.contiguous().view(torch.int32) + 127 & ~127).view(torch.float32)


def _chunks(tensor: Tensor, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield parts of a stored tensor, or of pieces, each with its values, flat."""
    block = form_of(tensor).block
    many: object = tensor
    if isinstance(many, Pieces):
        pieces = (each.view(-1, row_bytes(block, many.dtype)) if block else each for each in many.each())
        yield from chain.from_iterable(map(_chunks, pieces, cast(Pieces, values).each()))
        return
    stored = torch.split(tensor, max(1, _CHUNK // block)) if block else torch.split(tensor.view(-1), _CHUNK)
    size = max(1, _CHUNK // block) * block if block else _CHUNK
    yield from zip(stored, torch.split(values.view(-1), size), strict=True)
