"""Valid arguments for every operation, made from its annotations, for tests that run all of them.

Invariants:
    An example has ``N`` elements and ``RANKS`` ranks, floats that differ, and zeros of every other kind where they have
    a meaning. Its results are those of the reference on every device.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

import gradwire.compressors
import gradwire.contrib.compressors
import gradwire.kernels
from gradwire import registry
from gradwire.kernels.arguments import Flat, Names, Rows, Where
from gradwire.kernels.base import OPERATIONS, Op

__all__ = ["RANKS", "N", "example", "modules", "operations", "variants"]

N, RANKS = 32, 2

BY_HAND = ("parts_add_decoded",)
"""Operations whose arguments do not follow from their annotations."""

_VALUES = {
    "a": 2,
    "across": 1,
    "b": 8,
    "beta": 0.9,
    "bits": 4,
    "bound": 10,
    "buckets": 16,
    "clip": 2.0,
    "counters": 3 * N,
    "down": 2,
    "floor": 0.5,
    "high": 0.75,
    "k": 4,
    "group": 1,
    "key": 1,
    "lefts": 8,
    "length": 9,
    "levels": 7,
    "low": 0.5,
    "n": N,
    "named": 4,
    "offset": 0,
    "pairs": 2,
    "pitch": 8,
    "rank": 2,
    "rights": 16,
    "room": 128,
    "run": 2,
    "s": 0.5,
    "rows": 3,
    "scale": 0.5,
    "seed": 7,
    "sent": 64,
    "shrink": 1.0,
    "size": 16,
    "sparsity": 1.0,
    "step": 2,
    "target": 0.1,
    "threshold": 0.5,
    "tie": 1.0,
    "top": 127,
    "unit": 1.0,
    "value": 0.25,
    "whole_k": 4,
}
"""Values of numbers and of symbols, by name; a flag is False."""

_LONGER = {"eden_add_decoded": 2 * N, "eden_encode": 2 * N}
"""Elements of those whose blocks are longer than N."""

_SIZES = {"block": (16, 32, 64)}
"""Candidates for values that differ between operations: the first that one allows is taken."""

_FILLED = {
    "bitmap": 1,
    "counts": 4,
    "ranks": 1,
    "table": 16,
    "thc_add_decoded.codes": 1,
    "tops": 4,
    "used": 4,
    "when": 1,
}
"""Values of integers in a tensor of this name, where 0 would have no meaning; or in one of this operation alone."""

_COUNTED = {"indices"}
"""Names of tensors of integers that are all different."""


def example(op: Op[Any]) -> dict[str, Any]:
    """Make valid arguments by name, in new tensors of the CPU: floats that differ, and zeros of every other kind if
    they have a meaning.

    Args:
        op: one of ``operations()``.

    Example:
        >>> arguments = example(operations()["twobit_encode"])
        >>> {name: tuple(value.shape) for name, value in arguments.items() if name in ("x", "codes")}
        {'x': (32,), 'codes': (8,)}
    """
    return _parts() if op.name in BY_HAND else _made(op)


def _parts() -> dict[str, Any]:
    """The relations that annotations do not express: how the sizes of several lists belong together."""
    return {
        "values": [torch.ones(4), torch.tensor([5], dtype=torch.uint8)],
        "indices": [torch.arange(4, dtype=torch.int16)] * RANKS,
        "counts": [torch.full((1,), 4, dtype=torch.int32)] * RANKS,
        "levels": [torch.empty(0), torch.tensor([1.0, -1.0])],
        "out": torch.linspace(-1, 1, N),
        "scale": 0.5,
    }


_COUNTS_RANKS = {"sums_add_decoded": "codes"}
"""Tensors whose last element is the number of ranks that were added up, by operation."""


def _made(op: Op[Any]) -> dict[str, Any]:
    made = {name: _argument(op, name) for name in op.declaration.types}
    if op.name in _COUNTS_RANKS:
        made[_COUNTS_RANKS[op.name]][-1] = 1
    return made


def _values(op: Op[Any]) -> dict[str, Any]:
    """Choose numbers that fulfil the conditions of the operation."""
    named = {name: 0.5 for name, kind in op.declaration.types.items() if kind is float}
    found = named | _VALUES | {"n": _LONGER.get(op.name, N)}
    for name, allowed in _SIZES.items():
        mark, known = op.declaration.marks.get(name), {**op.reference.__globals__, **found}
        condition = mark.condition if isinstance(mark, Where) else "True"
        found[name] = next(size for size in allowed if eval(condition, {**known, name: size}))
    return found


def _argument(op: Op[Any], name: str) -> Any:
    mark = op.declaration.marks.get(name)
    if isinstance(mark, Names):
        return mark.known[0]
    if not isinstance(mark, Flat | Rows):
        return False if op.declaration.types[name] is bool else _values(op)[name]
    expression = mark.size if isinstance(mark, Flat) else mark.length
    size = eval(expression or "n", {**op.reference.__globals__, **_values(op)})
    dtype = mark.dtype[0] if isinstance(mark.dtype, tuple) else mark.dtype
    shape = (size,) if isinstance(mark, Flat) else (RANKS, size)
    if not dtype.is_floating_point:
        if name in _COUNTED:
            return torch.arange(size, dtype=dtype).expand(shape).contiguous()
        return torch.full(shape, _FILLED.get(name, _FILLED.get(f"{op.name}.{name}", 0)), dtype=dtype)
    return torch.linspace(-1, 1, size, dtype=dtype).expand(shape).contiguous() if size > 1 else torch.ones(shape)


def variants(op: Op[Any]) -> Iterator[dict[str, Any]]:
    """The other allowed calls of an operation: with None in place of a tensor, with a flag set, or with another dtype.

    Args:
        op: one of ``operations()``.

    Yields:
        The arguments that take the place of those of ``example``.
    """
    said = op.declaration
    if op.name in BY_HAND:
        return
    for name, kind in said.types.items():
        mark = said.marks.get(name)
        if name in said.optional:
            yield {name: None}
        elif kind is bool:
            yield {name: True}
        elif isinstance(mark, Flat | Rows) and isinstance(mark.dtype, tuple):
            yield from ({name: _argument(op, name).to(dtype)} for dtype in mark.dtype[1:])
        elif isinstance(mark, Names):
            yield from ({name: word} for word in mark.known[1:])


@cache
def modules() -> tuple[str, ...]:
    """The modules that declare operations: those that all families share, and one in the folder of a family."""
    kernels = registry.folders_in(gradwire.kernels.__path__)
    return (
        *(f"gradwire.kernels.{name}" for name in registry.names_in(gradwire.kernels.__path__) if name not in kernels),
        *(
            f"{tier.__name__}.{family}.ops"
            for tier in (gradwire.compressors, gradwire.contrib.compressors)
            for family in registry.folders_in(tier.__path__)
            if find_spec(f"{tier.__name__}.{family}.ops")
        ),
    )


@cache
def operations() -> dict[str, Op[Any]]:
    """Map the name of every operation of gradwire to the operation.

    >>> "twobit_encode" in operations()
    True
    """
    for name in modules():
        importlib.import_module(name)
    return dict(OPERATIONS)
