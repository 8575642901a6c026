"""Modes of torch that a caller may be in, for tests of what must not depend on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["MODES"]


class Functions(TorchFunctionMode):
    """A mode that sees every function and changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def unusual(dtype: torch.dtype) -> Iterator[None]:
    """All modes at once in which a training step can be made, with this default dtype."""
    torch.set_default_dtype(dtype)
    # What is made there by mistake is noticed, because this device has no memory.
    torch.set_default_device("meta")
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autocast("cpu", torch.bfloat16), Functions():
            yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "none": contextlib.nullcontext,
    "inference": torch.inference_mode,
    "float64": partial(unusual, torch.float64),
    "bfloat16": partial(unusual, torch.bfloat16),
}
"""Modes by name; those of one dtype have everything else that a caller may have set beside it."""
