"""Check that an encode does not wait for its device."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.compressors.base import Compressor
from gradwire.kernels.base import find
from gradwire.testing._expect import expect, payload_for
from gradwire.vocabulary import Key

__all__ = ["check_no_sync", "is_wait", "synchronisations"]

_WAITING = {
    "aten::_local_scalar_dense",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::item",
    "aten::masked_select",
    "aten::nonzero",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
"""Operations that ask an accelerator for a number, or for a size that follows from the data."""


_TORCH = torch.__file__.removesuffix("__init__.py")
_TRITON = "/triton/runtime/"


def synchronisations(work: Callable[[], object], *, kernels: bool = False) -> list[str]:
    """List the calls in ``work`` that would wait for an accelerator, each with its place; found on the CPU.

    An operation of gradwire is looked into: its plain-torch reference runs, which is what an accelerator has
    where there is no kernel of its own.

    Args:
        work: function that is called once.
        kernels: true: where an operation has a GPU kernel, what that does on the host runs instead. Triton must then
            interpret the kernels.

    >>> [call.split(" ")[0] for call in synchronisations(lambda: float(torch.ones(3).sum()))]
    ['aten::_local_scalar_dense']
    """
    watch = _Watch(kernels)
    with watch, _lists_noted(watch.note):
        work()
    return watch.seen


@contextmanager
def _lists_noted(note: Callable[[str], None]) -> Iterator[None]:
    """Tell of each list that is made of a tensor, which on the CPU no dispatcher sees."""
    tolist = Tensor.tolist

    def tolist_noted(tensor: Tensor) -> Any:
        note("tolist")
        return tolist(tensor)

    Tensor.tolist = tolist_noted  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Tensor.tolist = tolist  # type: ignore[method-assign]


def check_no_sync(compressor: Compressor, x: Tensor) -> None:
    """Check that ``encode`` and ``encode_feedback`` of a method of fixed size never wait for the device."""
    if not compressor.fixed_size:
        return
    payload, state = payload_for(compressor, x)[1], compressor.init_state(x.shape, Key())
    status = torch.zeros(1, dtype=torch.int32)

    def work() -> None:
        compressor.encode(x, payload, state, Key(step=1))
        for told in (None, status):
            compressor.encode_feedback(x.clone(), x.clone(), payload, state, Key(step=1), told)

    work()  # Tables are made once.
    seen = synchronisations(work)
    expect(not seen, compressor, f"an encode of fixed size waits for the device: {'; '.join(sorted(set(seen)))}")


class _Watch(TorchDispatchMode):
    def __init__(self, kernels: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []
        self._kernels = kernels

    def note(self, name: str) -> None:
        """Note a call that would wait, with its place; not what Triton does to interpret a kernel."""
        frames = [frame for frame in traceback.extract_stack() if frame.filename != __file__]
        if not any(_TRITON in frame.filename for frame in frames):
            here = [frame for frame in frames if _TORCH not in frame.filename][-1]
            self.seen.append(f"{name} at {here.filename.rpartition('/')[2]}:{here.lineno}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name, kwargs or {}
        library, _, own = name.partition("::")
        if library == "gradwire":
            with self:
                op, many = find(own)
                run = (op.gpu_kernel if self._kernels else None) or op.reference
                return op.many.one_by_one(run, *args) if many else run(*args, **kwargs)
        if is_wait(name, args, kwargs):
            self.note(name)
        return func(*args, **kwargs)


def is_wait(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether a call of torch asks an accelerator for a number, for a size that follows from data, or for room
    for a list of the host's numbers.

    Args:
        name: name of the operator's schema, such as "aten::item".
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.

    >>> is_wait("aten::nonzero", (torch.ones(3),), {}), is_wait("aten::sum", (torch.ones(3),), {})
    (True, False)
    """
    return name in _WAITING or _picks_by_mask(name, args) or _counts_repeats(name, kwargs) or _lists(name, args)


def _picks_by_mask(name: str, args: Any) -> bool:
    indexes = name.startswith("aten::index") and len(args) > 1 and isinstance(args[1], list | tuple)
    return indexes and any(isinstance(index, Tensor) and index.dtype is torch.bool for index in args[1])


def _counts_repeats(name: str, kwargs: Any) -> bool:
    return name == "aten::repeat_interleave" and kwargs.get("output_size") is None


def _lists(name: str, args: Any) -> bool:
    """Return whether numbers of the host are copied to a tensor. A single number is only filled in."""
    return name == "aten::lift_fresh" and args[0].dim() > 0


def __getattr__(name: str) -> Any:
    """Lead ``waits`` to its new name, until version 0.2."""
    if name == "waits":
        warnings.warn(f"{__name__}.waits is synchronisations now", DeprecationWarning, stacklevel=2)
        return synchronisations
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
