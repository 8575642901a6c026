"""Undo of a step that must not count, because some rank's gradient has a value that is not finite.

There are three kinds of undo, because a value is found at three moments and each has a cheapest undo:

    a message     ``Part.deliver``   a memory leaves its old residual in the bucket, whose gradient is on its way, and
                                     takes it back from there (``Memory.rollback``): nothing more was stored. FSDP2's
                                     reduce-scatter does so itself (``strategies/reduce_scatter.py``), and methods of
                                     several rounds before they go on (``strategies/allreduce.py``)
    its state     ``Part.deliver``   a method's own state, such as a warm-start factor, is small next to a gradient, and
                                     so it is copied before every encoding
    a whole step  this module        a message that was right by itself must be undone where another one of the same
                                     step was not, if the optimizer then skips the step; by then the bucket holds the
                                     mean, so everything kept is copied before it changes: 4 bytes an element, and only
                                     where somebody skips steps

A value that is not finite is noticed by the operation that encodes it (``csrc/kernels/compensate.h``; the reference is
``kernels/feedback.py``), which sets the status word at the head of the rank's message. Every rank has received the same
words, so ``bad``, where a session has moved its message (``strategies/_gathered.py`` and its like), is the same on all.

Invariants:
    * All ranks see the same flags, because each flag is a function of what all of them have received. So all ranks undo
      a step or none does.
    * On an accelerator nothing waits for a flag: every copy back is a select on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from gradwire.modes import ordinary_modes

__all__ = ["Rollback"]


class Rollback:
    """The flags of a step, and the copies with which the whole of it can be undone.

    Args:
        device: device of the gradients.

    Attributes:
        skips_steps: true where the optimizer skips a step with a flag, so that the whole step must be undone.
    """

    def __init__(self, device: torch.device) -> None:
        self.skips_steps = False
        self._flags: list[Tensor] = []
        self._ended: tuple[int, Tensor | None] = (0, None)
        self._count = torch.zeros((), dtype=torch.int64, device=device)
        self._storage: dict[str, Tensor] = {}
        self._changed: dict[str, Tensor] = {}

    def follow_skips(self, skips: bool) -> None:
        """Undo whole steps from now on, or do not, as the optimizer skips them or does not."""
        self.skips_steps = skips

    def remember(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors that this step is about to change, by name, into storage that is kept."""
        for name, tensor in tensors.items():
            copy = self._storage.get(name)
            if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
                self._storage[name] = tensor.clone()
            else:
                # Into the storage of earlier steps, because it is as large as all that is kept.
                copy.copy_(tensor)
        self._changed |= tensors

    def note(self, flags: Iterable[Tensor]) -> None:
        """Add flags of this step, each a bool of one element: true where something is not finite."""
        self._flags.extend(flags)

    @ordinary_modes()
    def end(self, step: int) -> Tensor | None:
        """End a step: restore what was remembered if a flag is set.

        Returns:
            bool of one element: whether a flag is set; None: there was none since the last call.
        """
        if not self._flags:
            return None
        flags, self._flags = self._flags, []
        # The flags are added on the device, so that counting never waits for it.
        spoilt = torch.stack(flags).any() if len(flags) > 1 else flags[0]
        self._ended = step, spoilt
        on_cpu = spoilt.device.type == "cpu"
        if not on_cpu or bool(spoilt):
            self._count += spoilt
            # Selected on the device, because an accelerator must not be waited for; on the CPU the branch above has
            # decided.
            for name, tensor in self._changed.items():
                torch.where(spoilt.to(tensor.device), self._storage[name], tensor, out=tensor)
        self._changed = {}
        return spoilt

    def spoilt(self, step: int) -> bool:
        """Return whether a step, the last that ended, had a value that is not finite; it waits for the device."""
        return self._ended[0] == step and bool(self._ended[1])

    def count(self, steps: int) -> None:
        """Count steps whose gradients were not finite on another rank, which this one has learned later."""
        self._count += steps

    def counted(self) -> int:
        """Return how many steps were not finite, the current one included; it waits for the device."""
        return int(self._count) + bool(self._flags and torch.stack(self._flags).any())

    def forget(self) -> None:
        """Free the copies, between steps: later steps may change other tensors, or none."""
        self._storage.clear()

    def restart(self) -> None:
        """Count from zero."""
        self._count.zero_()
