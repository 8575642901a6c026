"""Valid arguments of an operation that is declared by its annotations, made from them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire.ops.arguments import Flat, Names, Rows
from gradwire.ops.base import Op
from tests.ops.example_tensors import RANKS, N

VALUES = {"block": 16, "length": 9, "n": N, "scale": 0.5, "sparsity": 1.0, "threshold": 0.5}
"""Of numbers and of symbols, by name; a flag is False."""


def example(op: Op) -> dict[str, Any]:
    """Floats that differ, and zeros of every other kind."""
    return {name: argument(op, name) for name in op.declaration.types}


def argument(op: Op, name: str) -> Any:
    mark = op.declaration.marks.get(name)
    if isinstance(mark, Names):
        return mark.known[0]
    if not isinstance(mark, Flat | Rows):
        return False if op.declaration.types[name] is bool else VALUES[name]
    size = eval(mark.size if isinstance(mark, Flat) else mark.length, {**op.reference.__globals__, **VALUES})
    dtype = mark.dtype[0] if isinstance(mark.dtype, tuple) else mark.dtype
    shape = (size,) if isinstance(mark, Flat) else (RANKS, size)
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype)
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
