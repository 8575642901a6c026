"""Launch of one kernel for all pieces of a flat tensor: each program finds its piece in a table.

What is launched for a single piece is recorded first, for every piece; where that is the same kernel with other
addresses and sizes, the launches become one, of a kernel that is written here around it:

    program p of all:  piece = owners[p];  addresses += table[piece];  kernel(..., program = p - firsts[piece])

ScratchMemory memory of all pieces is one tensor, made in each call, in which every piece has its place.

So a kernel that can be merged takes the number of its program as its last parameter, ``program``, None in a launch of
its own; and its wrapper does nothing on the device but ask for scratch memory and launch. The operation is then
declared with ``merges=True``.
"""

import inspect
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire._once import once
from gradwire.kernels.triton.kernel_launch import LaunchCall, ScratchMemory, launch, recorded

__all__ = ["Merged"]


class Merged:
    """The launches of a wrapper for several pieces, merged into one for each kernel.

    Args:
        wrapper: function that is called with the arguments of each piece, and launches nothing while it is recorded.
        calls: the arguments of each piece; those that are no tensors and no piece's own are the same for all.

    Raises:
        ValueError: the pieces need different kernels, or differ in what no table holds.
    """

    def __init__(self, wrapper: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> None:
        self._wrapper = wrapper
        pieces, self._scratch = [], 0
        for call in calls:
            recording = recorded(wrapper, *call, start=self._scratch)
            pieces.append(recording.steps)
            self._scratch = recording.end
        if len({len(steps) for steps in pieces}) != 1:
            raise ValueError(f"{wrapper.__name__} launches more kernels for some pieces than for others")
        self._device = next(each for each in calls[0] if isinstance(each, Tensor)).device
        self._launches = [Launch(steps, self._device) for steps in zip(*pieces, strict=True)]

    def __call__(self, *call: Any) -> None:
        """Launch for all pieces.

        Args:
            call: the arguments of the first piece in this step.
        """
        memory = torch.empty(self._scratch, dtype=torch.uint8, device=self._device)
        for each, step in zip(self._launches, recorded(self._wrapper, *call).steps, strict=True):
            each(step, memory)


class Launch:
    """One kernel for all pieces."""

    def __init__(self, steps: Sequence[LaunchCall], device: torch.device) -> None:
        first = steps[0]
        alike = all(
            (each.kernel, each.constants, each.grid[1:], len(each.arguments))
            == (first.kernel, first.constants, first.grid[1:], len(first.arguments))
            for each in steps
        )
        if not alike:
            raise ValueError("the pieces need different kernels")
        names = list(inspect.signature(first.kernel.fn).parameters)[: len(first.arguments)]
        columns = zip(names, zip(*(each.arguments for each in steps), strict=True), strict=True)
        found = {name: differences(values) for name, values in columns}
        varying = {name: numbers for name, numbers in found.items() if numbers is not None}
        counts = torch.tensor([each.grid[0] for each in steps], device="cpu")
        self._grid = int(counts.sum())
        self._owners = torch.arange(len(steps), dtype=torch.int32, device="cpu").repeat_interleave(counts).to(device)
        self._firsts = (counts.cumsum(0) - counts).to(device)
        table = list(zip(*varying.values(), strict=True))
        self._table = torch.tensor(table, dtype=torch.int64, device="cpu").to(device)
        addresses = tuple(
            name for name in varying if isinstance(first.arguments[names.index(name)], Tensor | ScratchMemory)
        )
        floats = tuple(name for name in varying if isinstance(first.arguments[names.index(name)], float))
        self._kernel = around(first.kernel, tuple(varying), addresses, floats)

    def __call__(self, step: LaunchCall, memory: Tensor) -> None:
        tables = self._owners, self._firsts, self._table
        given = (each.inside(memory) if isinstance(each, ScratchMemory) else each for each in step.arguments)
        launch(self._kernel, (self._grid, *step.grid[1:]), *tables, *given, **step.constants)


def differences(values: Sequence[Any]) -> list[int] | None:
    """The table's numbers for an argument: address offsets from the first in elements, numbers, or the bits of float32;
    None if they are equal.

    Raises:
        ValueError: the argument is another kind of thing, and not the same for all.
    """
    first = values[0]
    if isinstance(first, Tensor):
        if not all(isinstance(each, Tensor) and each.dtype is first.dtype for each in values):
            raise ValueError("the pieces have tensors of different kinds")
        offsets = [each.data_ptr() - first.data_ptr() for each in values]
        return [offset // first.element_size() for offset in offsets] if any(offsets) else None
    if isinstance(first, ScratchMemory):
        if not all(isinstance(each, ScratchMemory) and each.dtype is first.dtype for each in values):
            raise ValueError("the pieces have scratch memory of different kinds")
        return [(each.offset - first.offset) // first.dtype.itemsize for each in values]
    if all(each == first for each in values):
        return None
    if all(isinstance(each, float) for each in values):
        return torch.tensor(values, dtype=torch.float32, device="cpu").view(torch.int32).tolist()
    if not all(isinstance(each, int) for each in values):
        raise ValueError(f"the pieces have numbers of their own: {values[:3]}")
    return list(values)


@once
def around(kernel: Any, varying: tuple[str, ...], addresses: tuple[str, ...], floats: tuple[str, ...]) -> Any:
    """Make a kernel that finds its piece and calls ``kernel`` with the piece's arguments.

    Args:
        varying: the parameters of which each piece has its own, in the order of the table's columns.
        addresses: names of the arguments that are addresses.
        floats: names of the arguments that are float32; the others are whole numbers.
    """
    parameters = [name for name in inspect.signature(kernel.fn).parameters if name != "program"]
    constants = [name for name in parameters if name.isupper()]
    # The new names begin with an underscore, which no kernel gives to its parameters.
    lines = ["def many(", "    _owners,", "    _firsts,", "    _table,"]
    lines += [f"    {name}: tl.constexpr," if name in constants else f"    {name}," for name in parameters]
    lines += ["):", "    _number = tl.program_id(0)", "    _piece = tl.load(_owners + _number).to(tl.int64)"]
    lines += [f"    _row = _table + _piece * {len(varying)}"]
    for column, name in enumerate(varying):
        number = f"tl.load(_row + {column})"
        number += ".to(tl.int32).to(tl.float32, bitcast=True)" if name in floats else ""
        lines.append(f"    {name} {'+=' if name in addresses else '='} {number}")
    given = [f"{name}={name}" for name in parameters]
    lines.append(f"    kernel({', '.join(given)}, program=_number - tl.load(_firsts + _piece))")
    source = "\n".join(lines) + "\n"
    told = ", ".join(f"{name}: float" if name in floats else name for name in varying)
    name = f"<gradwire: {kernel.fn.__module__}.{kernel.fn.__name__} for many pieces, {told}>"
    # The compiler reads the source again.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"tl": tl, "kernel": kernel, "__name__": __name__}
    exec(compile(source, name, "exec"), scope)
    fixed = [each for each in getattr(kernel, "do_not_specialize", None) or () if isinstance(each, str)]
    return triton.jit(scope["many"], do_not_specialize=[*fixed, *(each for each in varying if each not in addresses)])
