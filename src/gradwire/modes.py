"""The modes of torch that hold for the thread that calls, and must not change what an exchange computes or keeps.

Invariants:
    * What is kept from step to step is made outside of inference mode: a tensor that was made inside it can never be
      written to outside of it, so one evaluation, or a set-up in that mode, would end the training after it.
    * Products are not rounded to 16 bits by autocast: ranks that use it elsewhere would decode other values.

The default dtype holds for all threads and cannot be set aside for one, and the default device costs a call from Python
for every operation where it is set aside. So every tensor of ours is made with its dtype and its device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

__all__ = ["has_memory", "ordinary", "ordinary_modes"]

P = ParamSpec("P")
T = TypeVar("T")

AUTOCAST = ("cpu", "cuda")
"""Kinds of devices for which autocast may be on."""


class ordinary_modes:  # noqa: N801 - It is written like torch.no_grad.
    """Set inference mode, gradients and autocast aside inside the block, or the function that it decorates.

    A step of an exchange comes here several times, on a thread without gradients, where a call costs four questions and
    no more.

    >>> with torch.inference_mode(), ordinary_modes():
    ...     torch.zeros(1).is_inference()
    False
    """

    __slots__ = ("_stack",)

    def __enter__(self) -> None:
        self._stack = ExitStack()
        for kind in AUTOCAST:
            if torch.is_autocast_enabled(kind):
                self._stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_inference_mode_enabled():
            # Leaving inference mode turns gradients on.
            self._stack.enter_context(torch.inference_mode(False))
        self._stack.enter_context(torch.no_grad())

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function."""

        @functools.wraps(function)
        def inner(*args: P.args, **kwargs: P.kwargs) -> T:
            changed = torch.is_grad_enabled() or torch.is_inference_mode_enabled()
            if not changed and not any(map(torch.is_autocast_enabled, AUTOCAST)):
                return function(*args, **kwargs)
            with ordinary_modes():
                return function(*args, **kwargs)

        return inner


def ordinary(tensor: Tensor) -> Tensor:
    """Return a tensor on the same memory that may be written to outside of inference mode.

    >>> with torch.inference_mode():
    ...     made = torch.zeros(1)
    >>> ordinary(made).add_(1) is made, made
    (False, tensor([1.]))
    """
    if not tensor.is_inference():
        return tensor
    with torch.inference_mode(False):
        return from_dlpack(tensor.detach())


def has_memory(tensor: Tensor) -> bool:
    """Return whether a tensor has numbers that another thread can use: a fake one has none, nor one in ``torch.func``.

    >>> has_memory(torch.zeros(1)), has_memory(torch.zeros(1, device="meta"))
    (True, False)
    """
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return False
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:
        return False
