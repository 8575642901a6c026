"""The GPU kernels beside the references that define their bits: on a GPU, or on the CPU in Triton's interpreter.

Two kinds of comparison, and each names what it ran:

    operation    one operation with a kernel, with small arguments made from its annotations, and with each variant of
                 them (a flag that is set, nothing in place of a tensor, another dtype)
    method       what an exchange calls of a method, encode and decode, with a gradient of random values, at sizes at
                 the edges of bytes, words and programs

The expected result is that of plain torch on the CPU. Bits must be equal; a NaN equals a NaN. Where a method declares
that its bits depend on a BLAS (``portable``), values must be near.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError
from gradwire.kernels.base import Op, find
from gradwire_lab.bench.operation_examples import example, operations, variants
from gradwire_lab.bench.reference import Reference
from gradwire_lab.bench.steps import STEPS, Step
from gradwire_lab.bench.verify import first_difference

__all__ = ["INTERPRETED", "GpuKernels", "method_rows", "operation_rows", "with_kernels"]

INTERPRETED = "interpreter"
"""Name that stands in place of a device: the kernels run on CPU tensors, in Triton's interpreter."""

NEAR = 1e-3
"""The share of the largest value by which a method whose bits depend on a BLAS may differ."""

Row = dict[str, Any]


class GpuKernels(TorchDispatchMode):
    """A context in which, on this thread, operations of gradwire on CPU tensors run their GPU kernels in Triton's
    interpreter.

    The environment variable TRITON_INTERPRET=1 must have been set before Triton was imported.

    Attributes:
        names: names of the operations whose kernels ran.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        run: Callable[..., Any] = func
        if func.namespace == "gradwire":
            op, many = find(func._schema.name.partition("::")[2])
            run = op.gpu_kernel or op.reference
            if op.gpu_kernel is not None:
                self.names.add(op.name)
            if many:
                run = op.many.on_gpu if op.gpu_takes_many else partial(op.many.one_by_one, run)
        return run(*args, **(kwargs or {}))


class _Called(TorchDispatchMode):
    """A context that notes which operations of gradwire are called, whichever implementation runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "gradwire":
            self.names.add(find(func._schema.name.partition("::")[2])[0].name)
        return func(*args, **(kwargs or {}))


def with_kernels() -> dict[str, Op[Any]]:
    """The operations that have a GPU kernel, by name; empty if Triton is not installed."""
    return {name: op for name, op in sorted(operations().items()) if op.gpu_kernel is not None}


def operation_rows(device: str, names: Sequence[str] | None = None) -> Iterator[Row]:
    """Yield a row for each kernel and each variant of its arguments; ``difference`` describes the first difference, and
    is None if there is none.

    Args:
        device: "cuda", or ``INTERPRETED``.
        names: names of operations that have a kernel; None: every one.
    """
    known = {name: op for name, op in with_kernels().items() if names is None or name in names}
    plain: Iterator[tuple[Op[Any], dict[str, Any]]] = ((op, {}) for op in known.values())
    changed = ((op, change) for op in known.values() for change in variants(op))
    # Every kernel once before any of them again: the time may end.
    for op, change in chain(plain, changed):
        arguments = example(op) | change
        told = ", ".join(f"{key}={_said(value)}" for key, value in change.items())
        row: Row = {"operation": op.name, "variant": told}
        try:
            wanted = _after(op, copy.deepcopy(arguments), "cpu")
        except ConfigError as error:
            # Two arguments that do not go together, though each is allowed.
            yield row | {"left_out": str(error)}
            continue
        yield row | {"difference": _differences(_after(op, arguments, device), wanted)}


def _said(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else repr(value)


def _after(op: Op[Any], arguments: dict[str, Any], device: str) -> dict[str, Tensor]:
    """The outputs of an operation, on the CPU: computed there by its reference, and on any other
    device by its kernel.
    """
    if device == "cpu":
        with Reference():
            op(**arguments)
    elif device == INTERPRETED:
        with np.errstate(all="ignore"):
            assert op.gpu_kernel is not None
            op.gpu_kernel(**arguments)
    else:
        arguments = {name: _moved(value, device) for name, value in arguments.items()}
        op(**arguments)
    marks = op.declaration.marks
    written = [name for name, value in arguments.items() if isinstance(value, Tensor) and marks[name].written]
    found = {name: arguments[name].cpu() for name in written}
    if "used" in found and "stream" in found:
        # Bytes that are not in use have no meaning.
        found["stream"] = found["stream"][: int(found["used"])]
    return found


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [_moved(each, device) for each in value]
    return value.to(device) if isinstance(value, Tensor) else value


def _differences(found: dict[str, Tensor], wanted: dict[str, Tensor], *, portable: bool = True) -> str | None:
    said = []
    for name, want in wanted.items():
        got = found[name]
        if got.shape != want.shape:
            said.append(f"{name} has the shape {tuple(got.shape)} instead of {tuple(want.shape)}")
        elif not portable:
            # The choice of elements may follow from a last bit, so only numbers are compared.
            if not want.is_floating_point():
                continue
            far = (got - want).abs().max() if want.numel() else want.sum()
            if not float(far) <= NEAR * max(1.0, float(want.abs().max()) if want.numel() else 1.0):
                said.append(f"{name} is off by {float(far):.2g}")
        elif difference := first_difference(_nans_alike(got), _nans_alike(want)):
            said.append(f"{name} differs {difference}")
    return "; ".join(said) or None


def _nans_alike(tensor: Tensor) -> Tensor:
    """Replace every NaN by the same one, because the bits of a NaN are not specified."""
    return torch.where(tensor.isnan(), torch.nan, tensor) if tensor.is_floating_point() else tensor


def method_rows(device: str, sizes: Sequence[int], compressors: Sequence[Compressor] | None = None) -> Iterator[Row]:
    """Yield a row for each step of each method at each size; ``difference`` describes the first difference, and is None
    if there is none.

    Args:
        device: "cuda", or ``INTERPRETED``.
        sizes: numbers of elements.
        compressors: None: every registered one, at its default parameters.
    """
    known = with_kernels()
    chosen = compressors or [registry.build("compressors", name) for name in registry.usable("compressors")]
    for n in sizes:
        for compressor in chosen:
            for step in STEPS:
                if step.refusal(compressor) is None:
                    yield _compared(step, compressor, n, device, known)


def _compared(step: Step, compressor: Compressor, n: int, device: str, known: dict[str, Op[Any]]) -> Row:
    params = capabilities.properties(compressor)["params"]
    row: Row = {"method": compressor.name, "params": params, "size": n, "step": step.name}
    place = "cpu" if device == INTERPRETED else device
    # A byte that is not written differs.
    work = step.workload(compressor, n, poison=0x00, device=place)
    want = step.workload(compressor, n, poison=0xFF, own=True)
    mode = GpuKernels() if device == INTERPRETED else _Called()
    ignore: AbstractContextManager[Any] = np.errstate(all="ignore") if device == INTERPRETED else nullcontext()
    with ignore, mode:
        step.run(work)
    with Reference():
        step.run(want)
    found, wanted = dict(_cpu(work)), dict(_cpu(want))
    said = _differences(found, wanted, portable=capabilities.portable(compressor))
    return row | {"kernels": sorted(mode.names & set(known)), "difference": said}


def _cpu(work: Any) -> Iterator[tuple[str, Tensor]]:
    return ((name, tensor.cpu()) for name, tensor in work.tensors())
