"""Undo of whole steps: for optimizers that skip a step when any gradient is not finite.

Law: a message that is not finite is taken back by itself; what other messages of that step have sent is lost when the
optimizer skips it. So where steps are skipped, everything kept is copied before it changes, 4 bytes an element and a
copy in each step, and put back at the step's end.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["Undo"]


class Undo:
    """Copies of tensors as they were at the start of this step, in storage that is kept."""

    def __init__(self) -> None:
        self._storage: dict[str, Tensor] = {}
        self._changed: dict[str, Tensor] = {}

    def remember(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors that are about to change, by name."""
        for name, tensor in tensors.items():
            copy = self._storage.get(name)
            if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
                self._storage[name] = tensor.clone()
            else:
                copy.copy_(tensor)
        self._changed |= tensors

    def end(self, bad: Tensor) -> None:
        """Restore the tensors remembered since the last call if ``bad``, a bool of one element."""
        if not self._changed:
            return
        on_cpu = bad.device.type == "cpu"
        for name, tensor in self._changed.items() if not on_cpu or bool(bad) else ():
            torch.where(bad.to(tensor.device), self._storage[name], tensor, out=tensor)
        self._changed = {}
