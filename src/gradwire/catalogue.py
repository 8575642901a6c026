"""Declared properties of every registered method, as rows for ``gradwire methods`` and for the docs.

Nothing here knows a method by its name. What a row says is declared by the compressor or by its memory, except the
bits of a payload of variable size: those follow from the data, and are those of a gradient of normal random values.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.plan import default_strategy
from gradwire.memory.base import Memory, default_memory
from gradwire.vocabulary import Key, State
from gradwire.wire import sent_nbytes

__all__ = ["FLAGS", "describe", "methods", "shown_bits", "shown_state", "state_bytes"]

FLAGS = ("summable", "unbiased", "contraction", "random", "elementwise")
"""Promises that are either made or not, in the order of the tables."""

WORKERS = (4, 5)
"""Numbers of workers to show: at the last of them the choice of a strategy changes."""

_DECLARED_AT = (1024, 1024)
_MEASURED_AT = (256, 256)


def methods() -> list[dict[str, Any]]:
    """A row for each registered compressor at its default parameters, in the order of their names."""
    return [describe(registry.build("compressors", name)) for name in registry.usable("compressors")]


def describe(compressor: Compressor) -> dict[str, Any]:
    """Collect everything that a compressor declares, and what follows from it.

    Example:
        >>> from gradwire.compressors.ternary.twobit import TwoBit
        >>> row = describe(TwoBit())
        >>> row["nature"], row["memory"], row["state_bytes_per_element"], row["aggregation"]
        ('deterministic', 'residual', 4.0, ['allgather', 'two_phase'])
    """
    declared, depends = capabilities.properties(compressor), not declares_traffic(compressor)
    return declared | {
        "bits_per_element": _measured_bits(compressor) if depends else declared["bits_per_element"],
        "bits_depend_on_data": depends,
        "nature": "random" if compressor.random else "deterministic",
        "memory": default_memory(compressor),
        "state_bytes_per_element": round(state_bytes(compressor, _DECLARED_AT), 4),
        "aggregation": list(dict.fromkeys(default_strategy(compressor, workers) for workers in WORKERS)),
    }


def declares_traffic(compressor: Compressor) -> bool:
    """Return whether configuration and shape alone determine how many bytes travel."""
    capacity = compressor.layout(_DECLARED_AT).nbytes
    return compressor.fixed_size or capabilities.traffic(compressor, _DECLARED_AT) != capacity


def state_bytes(compressor: Compressor, shape: tuple[int, ...], state: State | None = None) -> float:
    """Bytes kept for each element: the compressor's state, and the buffers of the memory it is used with by default.

    Args:
        compressor: compressor with any parameters.
        shape: shape of the gradient, not empty.
        state: the compressor's, if there is one already; else it is made.
    """
    memory: Memory = registry.build("memory", default_memory(compressor))
    own = sum(tensor.nbytes for tensor in (compressor.init_state(shape, Key()) if state is None else state).values())
    return own / math.prod(shape) + len(memory.buffers) * memory.form.nbytes(math.prod(shape)) / math.prod(shape)


def shown_bits(row: dict[str, Any]) -> str:
    """Format bits for a table; "~" stands before a number that depends on the data.

    >>> shown_bits({"bits_per_element": 0.4805, "bits_depend_on_data": False})
    '0.4805'
    >>> shown_bits({"bits_per_element": 0.586, "bits_depend_on_data": True})
    '~0.59'
    """
    bits = row["bits_per_element"]
    return f"~{bits:.2g}" if row["bits_depend_on_data"] else f"{bits:g}"


def shown_state(row: dict[str, Any]) -> str:
    """Format state for a table, in bytes an element with as many digits as matter.

    >>> shown_state({"state_bytes_per_element": 4.0078}), shown_state({"state_bytes_per_element": 0.0})
    ('4.01', '0')
    """
    return f"{row['state_bytes_per_element']:.3g}"


def _measured_bits(compressor: Compressor) -> float:
    """The bits of a payload of variable size, measured on a gradient of normal random values."""
    x, layout = _normal(), compressor.layout(_MEASURED_AT)
    return round(8 * sent_nbytes(compressor, layout, compressor.compress(x)) / x.numel(), 4)


@cache
def _normal() -> Tensor:
    return torch.randn(_MEASURED_AT, generator=torch.Generator().manual_seed(0))
