"""The plain-torch reference in place of the kernels, within one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.kernels.base import find

__all__ = ["Reference"]


class Reference(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which, on this thread, every operation of gradwire runs its plain-torch reference.

    Attributes:
        calls: number of operations that the context caught, so that a comparison can show that it compared something.

    Example:
        >>> import torch
        >>> from gradwire.compressors.ternary.ops import twobit_encode
        >>> codes = torch.empty(4, dtype=torch.uint8)
        >>> with Reference() as reference:
        ...     twobit_encode(torch.ones(3), codes, 0.5)
        >>> codes.tolist(), reference.calls
        ([252, 0, 0, 0], 1)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        run: Callable[..., Any] = func
        if func.namespace == "gradwire":
            self.calls += 1
            op, many = find(func._schema.name.partition("::")[2])
            run = partial(op.many.one_by_one, op.reference) if many else op.reference
        return run(*args, **(kwargs or {}))
