"""Optimizers that divide gradients by the size of earlier ones, and what error feedback does to them.

Law: Adam's step is lr m / sqrt(v), where m and v are means of what arrives and of its square. A residual arrives late
and in one piece: what waited for T steps is T times as large as a gradient, and v becomes T times as large. So it
counts as about sqrt(T) steps of ordinary size, where T were due. Error feedback keeps the sum of what was sent
right; the sum of such steps is another one.
"""

from __future__ import annotations

import logging

import torch
from torch.optim import Optimizer

from gradwire.compressors.base import Compressor
from gradwire.memory.base import Memory

__all__ = ["is_adaptive", "is_adaptive_class", "keeps_much", "warn"]

log = logging.getLogger("gradwire")

_NAMES = (
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "SparseAdam",
)
_CLASSES = tuple(getattr(torch.optim, name) for name in _NAMES if hasattr(torch.optim, name))
"""The optimizers by these names that this version of torch has."""

_STATE = frozenset({"exp_avg_sq", "exp_avg_sq_row", "exp_inf", "square_avg", "state2"})
"""Names of the second moments in torch's optimizers, and in those of other packages: ``state2`` in bitsandbytes."""

_HARMFUL = (
    "%s keeps back what it does not send, and %s divides gradients by the size of recent ones: what arrives late "
    "counts for far fewer steps than it waited, and training ends worse than without compression. Use "
    "a method that keeps nothing back: 'qsgd' with bits=4, or 'eden' with 2 bits or 1; for fewer bytes exchange the "
    "optimizer's steps, as gradwire.CompressedStep(optimizer) does. docs/adaptive.md shows why; force=True says that "
    "you know"
)


def is_adaptive(optimizer: Optimizer) -> bool:
    """Return whether an optimizer divides by a mean of squares; one of another package shows it after its first step.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> is_adaptive(torch.optim.AdamW([weight])), is_adaptive(torch.optim.SGD([weight], lr=0.1))
    (True, False)
    """
    states = (state for state in getattr(optimizer, "state", {}).values() if isinstance(state, dict))
    return is_adaptive_class(type(optimizer)) or any(not _STATE.isdisjoint(state) for state in states)


def is_adaptive_class(optimizer: type[Optimizer]) -> bool:
    """Return whether a class is one of torch's optimizers that divide by a mean of squares, or derived from one."""
    return issubclass(optimizer, _CLASSES)


def keeps_much(compressor: Compressor, memory: Memory) -> str | None:
    """Describe in words why a method sends much of a gradient later; None if it does not."""
    late = memory.late and not compressor.fine
    return f"{compressor.name!r} with memory {memory.name!r}" if late else None


def warn(kept: str, optimizer: str) -> None:
    """Warn what such a method does to such an optimizer, and what to use."""
    log.warning(_HARMFUL, kept, optimizer)
