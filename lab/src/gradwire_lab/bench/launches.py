"""Count of the launches of a step on a GPU, without one: Triton's kernels are recorded where they would be launched.

Everything runs on torch's ``meta`` device, which stores no elements, so the exchange takes the way of an accelerator.
An operation of gradwire counts as the kernels that its GPU version launches; where it has none, as the operations of
its reference. An operation of torch counts once, though some are several launches: of the 102 that torch's profiler saw
in a step of ``powersgd`` on an H200 this counted 80.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gradwire._extras import install
from gradwire.compressors.base import Compressor
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named
from gradwire.errors import ConfigError, GradwireError
from gradwire.kernels.base import find
from gradwire_lab.bench.gpu_kernels import with_kernels
from gradwire_lab.bench.operations import OperationCount
from gradwire_lab.bench.pretended import pretended_exchange

__all__ = ["LaunchCount", "launch_rows"]

WARM_UP = 3
"""Steps that are not counted."""

Row = dict[str, Any]


class LaunchCount(OperationCount):  # type: ignore[no-untyped-call]
    """A context that counts what this thread would launch on a GPU; its tensors are on ``meta``.

    Attributes:
        kernels: number of launches of each of gradwire's kernels, by the name of its function.
        torch: number of torch's operations that do work, by name, those in the wrappers of kernels among them.
    """

    def __init__(self) -> None:
        super().__init__("meta")
        self.kernels: Counter[str] = Counter()
        self.torch: Counter[str] = Counter()

    @property
    def launches(self) -> int:
        """The number of launches."""
        return self.kernels.total() + self.torch.total()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = self.operations
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "gradwire":
            self._launch(func._schema.name.partition("::")[2], args, kwargs or {})
        elif self.operations > before:
            self.torch[func._schema.name] += 1
        return result

    def _launch(self, name: str, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Record what the GPU version of an operation launches."""
        from gradwire.kernels.triton.kernel_launch import recorded

        op, several = find(name)
        run = op.on_gpu if not several else op.many.on_gpu
        inside = LaunchCount()

        def launched() -> None:
            with inside:
                run(*args, **given)

        steps = recorded(launched).steps
        self.kernels.update(_name_of(step.kernel) for step in steps if 0 not in step.grid)
        self.kernels += inside.kernels
        self.torch += inside.torch


def _name_of(kernel: Any) -> str:
    """The name of a kernel's function; of one that is made for many pieces, that of the kernel for one."""
    named: str = kernel.fn.__globals__["kernel"].fn.__name__ if kernel.fn.__name__ == "many" else kernel.fn.__name__
    return named


def launch_rows(compressors: Sequence[Compressor], shapes: Sequence[tuple[int, ...]], ranks: int = 1) -> Iterator[Row]:
    """Yield a row for each method: its launches in a step of one bucket. A failure is a row with an ``error``.

    Args:
        compressors: methods.
        shapes: shapes of the parameters in the bucket.
        ranks: number of ranks, of which this is the first; the collectives move nothing and do not count.

    Raises:
        ConfigError: Triton is not installed.
    """
    if not with_kernels():
        raise ConfigError(f"Triton is needed, and it is not installed here: {install('triton')}")
    params = [(f"{number}", tuple(shape)) for number, shape in enumerate(shapes)]
    for compressor in compressors:
        row: Row = {"method": compressor.name, "parameters": sum(map(math.prod, shapes)), "tensors": len(shapes)}
        try:
            row |= _counted(compressor, params, ranks)
        except (GradwireError, RuntimeError, NotImplementedError) as error:
            row["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        yield row | {"ranks": ranks}


def _counted(compressor: Compressor, params: Sequence[Named], ranks: int) -> Row:
    exchange = Exchange(compressor, device="meta") if ranks == 1 else pretended_exchange(compressor, ranks)
    flat = torch.empty(sum(math.prod(shape) for _, shape in params), device="meta")

    def step() -> None:
        exchange.begin_step()
        exchange.run(flat, params)

    with LaunchCount():
        # Buffers, and tables of pieces, are made in the first step, and never again.
        for _ in range(WARM_UP):
            step()
    with LaunchCount() as count:
        step()
    return {
        "launches": count.launches,
        "operations": count.operations,
        "kernels": dict(count.kernels.most_common()),
        "torch": dict(count.torch.most_common()),
    }
