"""Valid arguments of an operation that is declared by its annotations, made from them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire.ops.arguments import Flat, Names, Rows, Where
from gradwire.ops.base import Op
from tests.ops.example_tensors import RANKS, N

VALUES = {
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
"""Of numbers and of symbols, by name; a flag is False."""

LONGER = {"eden_add_decoded": 2 * N, "eden_encode": 2 * N}
"""Elements of those whose blocks are longer than N."""

SIZES = {"block": (16, 32, 64)}
"""Of those that differ between operations: the first that one allows."""

FILLED = {
    "bitmap": 1,
    "counts": 4,
    "ranks": 1,
    "table": 16,
    "thc_add_decoded.codes": 1,
    "tops": 4,
    "used": 4,
    "when": 1,
}
"""What integers in a tensor of this name are, where 0 would have no meaning; in one of this operation alone."""

COUNTED = {"indices"}
"""Of those that differ."""


def example(op: Op) -> dict[str, Any]:
    """Floats that differ, and zeros of every other kind where they have a meaning."""
    return {name: argument(op, name) for name in op.declaration.types}


def values(op: Op) -> dict[str, Any]:
    """Numbers that fulfil what the operation says of them."""
    found = VALUES | {"n": LONGER.get(op.name, N)}
    for name, allowed in SIZES.items():
        mark, known = op.declaration.marks.get(name), {**op.reference.__globals__, **found}
        condition = mark.condition if isinstance(mark, Where) else "True"
        found[name] = next(size for size in allowed if eval(condition, {**known, name: size}))
    return found


def argument(op: Op, name: str) -> Any:
    mark = op.declaration.marks.get(name)
    if isinstance(mark, Names):
        return mark.known[0]
    if not isinstance(mark, Flat | Rows):
        return False if op.declaration.types[name] is bool else values(op)[name]
    size = eval(mark.size if isinstance(mark, Flat) else mark.length, {**op.reference.__globals__, **values(op)})
    dtype = mark.dtype[0] if isinstance(mark.dtype, tuple) else mark.dtype
    shape = (size,) if isinstance(mark, Flat) else (RANKS, size)
    if not dtype.is_floating_point:
        if name in COUNTED:
            return torch.arange(size, dtype=dtype).expand(shape).contiguous()
        return torch.full(shape, FILLED.get(name, FILLED.get(f"{op.name}.{name}", 0)), dtype=dtype)
    return torch.linspace(-1, 1, size, dtype=dtype).expand(shape).contiguous() if size > 1 else torch.ones(shape)


def variants(op: Op) -> Iterator[dict[str, Any]]:
    """What else an operation may be called with: nothing in place of a tensor, a flag that is set, another dtype."""
    said = op.declaration
    for name, kind in said.types.items():
        mark = said.marks.get(name)
        if name in said.optional:
            yield {name: None}
        elif kind is bool:
            yield {name: True}
        elif kind is Tensor and isinstance(mark.dtype, tuple):
            yield from ({name: argument(op, name).to(dtype)} for dtype in mark.dtype[1:])
        elif isinstance(mark, Names):
            yield from ({name: word} for word in mark.known[1:])


def examples(ops: dict[str, Op]) -> dict[str, Callable[[], dict[str, Any]]]:
    return {name: partial(example, op) for name, op in ops.items() if op.declaration is not None}
