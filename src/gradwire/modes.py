"""The modes of torch that hold for the thread that calls, and must not change what an exchange computes or keeps.

Invariants
    * What is kept from step to step is made outside of inference mode: a tensor that was made inside it can never be
      written to outside of it, so one evaluation, or a set-up in that mode, would end the training after it.
    * Products are not rounded to 16 bits by autocast: ranks that use it elsewhere would decode other values.

The default dtype holds for all threads and cannot be set aside for one, and the default device costs a call from Python
for every operation where it is set aside. So every tensor of ours is made with its dtype and its device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

__all__ = ["has_memory", "ordinary", "ordinary_modes"]

AUTOCAST = ("cpu", "cuda")
"""Kinds of devices for which autocast may be on."""


@contextmanager
def ordinary_modes() -> Iterator[None]:
    """Set the caller's modes aside inside the block, or the function that it decorates: no inference mode, no gradients
    and no autocast.

    >>> with torch.inference_mode(), ordinary_modes():
    ...     torch.zeros(1).is_inference()
    False
    """
    cast = [kind for kind in AUTOCAST if torch.is_autocast_enabled(kind)]
    if not cast and not torch.is_inference_mode_enabled():
        with torch.no_grad():
            yield
        return
    with ExitStack() as stack:
        for kind in cast:
            stack.enter_context(torch.autocast(kind, enabled=False))
        # Leaving inference mode turns gradients on.
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        yield


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
    """Return whether another thread can read and write the numbers of a tensor: it can only pretend to those of a fake
    one, or of one inside a transform of ``torch.func``.

    >>> has_memory(torch.zeros(1)), has_memory(torch.zeros(1, device="meta"))
    (True, False)
    """
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return False
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:
        return False
