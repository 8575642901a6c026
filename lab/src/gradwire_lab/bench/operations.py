"""A count of what an exchange asks of its device: operations, the bytes that they move, and waits of the host.

Every operation that torch dispatches is counted once, in one of these kinds:

    work         it reads or writes elements: a launch on an accelerator
    view         it only gives another shape, or another name, to memory that is there
    allocation   it makes memory and writes nothing into it
    host         none of its tensors is on the device that is counted
    collective   torch.distributed's own

An operation of gradwire is one operation, whatever its kernel does, on many pieces, too, where a GPU takes them in one
launch: what a GPU launches is measured with ``gradwire check gpu``.

Bytes of an operation are the sizes of the tensors that it reads and of those that it writes. What it changes in place
counts as read and as written, even where it is overwritten (``zero_``, ``copy_``); ``out=`` counts as written; an
element that an expanded tensor shows several times counts once; of a tensor in which pieces lie only these count, and
of one from which rows are selected by their numbers (``index_select``) only the selected ones. What undoes a bad step
(``copy_where``, ``fill_where``, ``write_codes``) looks at a flag first, and counts as that flag; of ``begin_sum`` what
it fills counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.errors import GradwireError
from gradwire.kernels.base import find
from gradwire.testing.sync import is_wait

__all__ = ["OperationCount", "WouldWaitError"]

_EMPTY = ("aten::empty", "aten::new_empty", "aten::resize_", "aten::set_", "aten::_empty")
_FACTORIES = ("aten::new_", "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::rand", "aten::zeros")
"""Operations that take only the form of a tensor, and read nothing."""

_SELECTS = "aten::index_select"
"""Operations that read of their first tensor what the result has."""

_TAKEN_BACK = {"gradwire::begin_sum": "residual", "gradwire::begin_sum_each": "residual"}
"""Arguments that are only touched where a step is taken back, by their operation."""

_VIEWS = ("aten::_unsafe_view", "aten::_reshape_alias", "aten::detach", "aten::lift_fresh", "aten::alias")


class WouldWaitError(GradwireError):
    """A device would have to give the host a value for which the host must wait, and there is no value."""


class OperationCount(TorchDispatchMode):
    """A context that counts the operations of this thread.

    Attributes:
        device: the type of the device that is counted; on ``meta`` what would wait ends with ``WouldWaitError``.
        names: number of times that each operation was work, by name.
        views: operations that only gave a view.
        allocations: memory that was made and not written.
        host: operations on tensors of the host alone.
        synchronisations: number of times that the host would wait for the device, by reason: a value read back, a size
            that follows from data, a tensor of the host's numbers copied.
        collectives: torch.distributed's, as far as this thread asks for them.
        nbytes: read and written by work.

    Example:
        >>> import torch
        >>> x = torch.ones(1000)
        >>> with OperationCount("cpu") as count:
        ...     y = x.view(10, 100).add(1).mul_(2)
        ...     float(y.sum()) > 0
        True
        >>> dict(count.names), count.views, count.synchronisations
        ({'aten::add': 1, 'aten::mul_': 1, 'aten::sum': 1}, 1, 1)
        >>> count.nbytes == 4 * (2000 + 2000 + 1001)
        True
    """

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.names: Counter[str] = Counter()
        self.views = self.allocations = self.host = self.synchronisations = self.collectives = self.nbytes = 0

    @property
    def operations(self) -> int:
        """The number of operations that do work on the device."""
        return self.names.total()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        name: str = func._schema.name
        if name.startswith("c10d::"):
            self.collectives += 1
            return func(*args, **given)
        taken = list(_tensors((args, given.values())))
        ours = any(each.device.type == self.device for each in taken)
        if ours and (is_wait(name, args, given) or self._goes_to_host(name, args, given)):
            self.synchronisations += 1
            if self.device == "meta":
                raise WouldWaitError(f"{name} reads a value back, or a size that follows from data")
            return func(*args, **given)
        result = func(*args, **given)
        made = list(_tensors((result,)))
        if not any(each.device.type == self.device for each in (*taken, *made)):
            self.host += 1
        elif name.startswith(_EMPTY):
            self.allocations += 1
        elif name.startswith(_VIEWS) or _is_view(func, taken, made):
            self.views += 1
        else:
            self.names[name] += 1
            self.nbytes += self._moved(func, args, given, made)
        return result

    def _goes_to_host(self, name: str, args: tuple[Any, ...], given: dict[str, Any]) -> bool:
        """Return whether a device's tensor is copied into the host's memory."""
        if self.device == "cpu":
            return False
        to = given.get("device") if name == "aten::_to_copy" else args[0].device if name == "aten::copy_" else None
        return to is not None and to.type == "cpu"

    def _moved(self, func: Any, args: tuple[Any, ...], given: dict[str, Any], made: list[Tensor]) -> int:
        total, changed = 0, set()
        if self._does_nothing_yet(func, args, given):
            return 1
        if func._schema.name.startswith(_FACTORIES):
            return sum(map(self._size, made))
        own, selects = _elements_of_pieces(func._schema.name, args), func._schema.name.startswith(_SELECTS)
        for number, argument in enumerate(func._schema.arguments):
            if argument.name == _TAKEN_BACK.get(func._schema.name):
                continue
            value = args[number] if number < len(args) else given.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            for each in _tensors((value,)):
                rows = each.itemsize * (each.size(0) if each.dim() == 2 else 1)
                # The first one is the table of the pieces, whatever else has that name.
                size = rows * own[argument.name] if number and argument.name in own else self._size(each)
                if selects and not number:
                    size = min(size, sum(map(self._size, made)))
                total += size * (2 if written and not argument.is_out else 1)
                if written:
                    changed.add(id(each))
        return total + sum(self._size(each) for each in made if id(each) not in changed)

    def _does_nothing_yet(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> bool:
        """Return whether an operation first checks a flag that is not set in a counted step, so
        that it does nothing.
        """
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | given
        return func._schema.name.startswith("gradwire::") and isinstance(named.get("when"), Tensor)

    def _size(self, tensor: Tensor) -> int:
        if tensor.device.type != self.device:
            return 0
        lengths = (length for length, step in zip(tensor.shape, tensor.stride(), strict=True) if step or length == 0)
        return tensor.itemsize * math.prod(lengths)


def _elements_of_pieces(name: str, args: tuple[Any, ...]) -> dict[str, int]:
    """Count, for each argument that is the tensor in which pieces lie, the elements of a row that pieces have."""
    operation, several = find(name.removeprefix("gradwire::")) if name.startswith("gradwire::") else (None, False)
    return operation.many.sizes(args[0]) if operation is not None and several else {}


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
            yield from _tensors(value)


def _is_view(func: Any, taken: list[Tensor], made: list[Tensor]) -> bool:
    """Return whether nothing is written, and all returned tensors share memory that existed before."""
    if func._schema.is_mutable:
        return False
    known = {each.untyped_storage()._cdata for each in taken}
    return bool(made) and all(each.untyped_storage()._cdata in known for each in made)
