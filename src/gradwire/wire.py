"""The message inside a group: a status word and the payloads.

Inside a group nobody sends what everybody knows. Each payload lies at an aligned place that follows from the layouts
alone; there is no header and nothing to validate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradwire.errors import WireError
from gradwire.vocabulary import Layout, Payload, align

if TYPE_CHECKING:
    from gradwire.compressors.base import Compressor

__all__ = ["Packing", "nbytes_in_use", "sent_nbytes", "used_of"]

_STATUS = 4
"""Bytes of the status word."""


@dataclass(frozen=True)
class Packing:
    """Several payloads in one message: a status word, then each payload, all of them at multiples of ``ALIGNMENT``.

    The status is an int32 at offset 0 in a slot of ``ALIGNMENT`` bytes. A rank sets it when its gradient is not
    finite, so that the others learn it from the message itself and every rank treats the step in the same way.

    Args:
        layouts: layouts of the payloads, in the order in which they travel.

    Example:
        >>> from gradwire.vocabulary import Field
        >>> packing = Packing((Layout((Field("codes", torch.uint8, 5),)), Layout((Field("values", torch.half, 3),))))
        >>> packing.offsets, packing.nbytes
        ((8, 16), 24)
        >>> [view.shape for view in packing.payload(torch.zeros(2, 24, dtype=torch.uint8), 1)]
        [torch.Size([2, 3])]
    """

    layouts: tuple[Layout, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The places at which payloads start, in bytes."""
        return self._edges[:-1]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole message, a multiple of ``ALIGNMENT``."""
        return self._edges[-1]

    def status(self, buffer: Tensor) -> Tensor:
        """The status word of ``buffer``: an int32 view of shape ``(1,)`` or ``(ranks, 1)``."""
        return buffer[..., :_STATUS].view(torch.int32)

    def payload(self, buffer: Tensor, i: int) -> Payload:
        """Typed views of payload ``i``.

        Args:
            buffer: uint8, shape ``(nbytes,)`` or ``(ranks, nbytes)``.
            i: index into ``layouts``.
        """
        layout, start = self.layouts[i], self.offsets[i]
        return layout.views(buffer[..., start : start + layout.nbytes])

    @cached_property
    def _edges(self) -> tuple[int, ...]:
        edges = [align(_STATUS)]
        for layout in self.layouts:
            edges.append(align(edges[-1] + layout.nbytes))
        return tuple(edges)


def sent_nbytes(compressor: Compressor, layout: Layout, payload: Tensor) -> int:
    """The number of bytes of a payload that travel: all of them, or for a variable size those that are in use.

    Args:
        compressor: compressor that made the payload.
        layout: layout of the payload.
        payload: uint8 of one dimension, at least up to the last field.

    Raises:
        WireError: the payload claims more than its capacity.
    """
    return layout.nbytes if compressor.fixed_size else nbytes_in_use(compressor, layout, int(used_of(payload)))


def used_of(payload: Tensor) -> Tensor:
    """View the number of bytes of its stream that a payload of variable size uses: int32, 1 element."""
    return payload[:4].view(torch.int32)


def nbytes_in_use(compressor: Compressor, layout: Layout, used: int) -> int:
    """The number of bytes of a payload of variable size that travel, as ``sent_nbytes`` counts them.

    Args:
        used: bytes of its stream that it claims to use.

    Raises:
        WireError: the payload claims more than its capacity.
    """
    capacity = layout.fields[-1].count
    if not 0 <= used <= capacity:
        raise WireError(f"a payload of {compressor.name!r} uses at most {capacity} bytes of its stream, not {used}")
    return layout.offsets[-1] + used
