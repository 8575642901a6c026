"""Traffic of a run if its codes were not packed: each in the smallest integer type, a bit or two in a byte of its own.

Invariants:
    * The size of a payload without packing follows from its layout. Fields of floats and whole integers stay as they
      are; a field of bytes called ``codes`` that has fewer bytes than there are values holds several codes in a byte.
    * If the layout does not show it, because its size depends on the data or sums are packed into words, no figure is
      given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named, grouped
from gradwire.vocabulary import Layout, align

__all__ = ["unpacked_bytes", "unpacked_payload"]

_NAMING = ("indices", "places")
"""Fields that say which elements a payload has."""

_PACKED = ("codes",)
"""Fields in which several codes share a byte."""


def unpacked_payload(compressor: Compressor, shape: Sequence[int]) -> int | None:
    """The bytes of a payload with an integer type for each code; None if that is not known.

    Args:
        compressor: compressor with its parameters.
        shape: shape of the tensor.

    Example:
        >>> from gradwire.compressors.ternary.twobit import TwoBit
        >>> from gradwire.compressors.sparse.topk import TopK
        >>> unpacked_payload(TwoBit(), (1000,)), unpacked_payload(TopK(ratio=0.01), (1000,))
        (1000, 64)
    """
    layout = compressor.layout(shape)
    if capabilities.in_rounds(compressor):
        sent = [field for field in layout.fields if field.name not in capabilities.rounds_only(compressor)]
        return layout.nbytes if all(field.dtype.is_floating_point for field in sent) else None
    return _apart(layout, math.prod(shape)) if compressor.fixed_size else None


def _apart(layout: Layout, n: int) -> int:
    named = [field.count for field in layout.fields if field.name in _NAMING]
    codes = [field.count for field in layout.fields if field.name in _PACKED and field.dtype == torch.uint8]
    values = named[0] if named else n
    return layout.nbytes + sum(max(values - count, 0) for count in codes)


def unpacked_bytes(exchange: Exchange, params: Sequence[Named], sent: float) -> float | None:
    """The traffic of a step without packing; None if it is not known.

    Args:
        exchange: exchange after a step.
        params: names and shapes of the parameters that it averages.
        sent: bytes of a step as they were handed to collectives.
    """
    main, world = exchange.methods.policy.at(exchange.step - 1, exchange.methods.compressor), exchange.channel.world
    units, dense, _ = grouped(params, lambda _: main, exchange.methods.policy, exchange.methods.memory_for)
    wide = [unpacked_payload(unit.compressor, unit.shape) for unit in units]
    known = [align(nbytes) for nbytes in wide if nbytes is not None]
    if len(known) < len(wide):
        return None
    packed = sum(align(unit.compressor.layout(unit.shape).nbytes) for unit in units)
    uncompressed = 4 * sum(hi - lo for lo, hi in dense) * 2 * (world - 1) / world
    return sent + (sent - uncompressed) * (sum(known) / packed - 1) if packed else sent
