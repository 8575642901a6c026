"""Copies of a compressed DDP model or optimizer: ``copy.deepcopy``, ``AveragedModel``, ``torch.save(model)``.

Invariants:
    * A copy of a model is what torch makes of any DDP model with a hook: a DDP model over the default group that
      averages its own gradients, uncompressed. It may be given an exchange of its own by ``compress_ddp``; if it is
      trained without one, a warning says so once.
    * A copy of a compressed optimizer has nobody who averages its gradients, so its step is refused until it is given
      to ``compress_optimizer``.

Why:
    The process group and the residuals of the original's exchange cannot be copied, so a copy takes nothing of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.errors import Verbatim, require
from gradwire.notices import log

__all__ = ["CopiedState", "forget_copied", "note_copies", "note_copies_of_optimizer"]


class CopiedState:
    """The stand-in for the state in a copy of the model: it has a name, and exchanges nothing."""

    def __init__(self, method: str) -> None:
        self.method = method

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{name!r}: this is a copy of the state of {self.__dict__.get('method')}, which exchanges nothing; "
            "save state.state_dict(), and make a state with gradwire.compress_ddp"
        )


class CopyNotice:
    """A hook before the forward pass of a DDP model: it does nothing in the original, and reports a copy that trains.

    Args:
        method: method of the original.
        copied: true: this is the copy's hook.
    """

    def __init__(self, method: str, copied: bool = False) -> None:
        self.method, self.copied = method, copied

    def __reduce__(self) -> tuple[Any, ...]:
        return CopyNotice, (self.method, True)

    def __call__(self, model: nn.Module, _: object) -> None:
        if self.copied and model.training and torch.is_grad_enabled():
            # First, so that the warning comes once.
            forget_copied(model)
            if dist.get_rank() == 0:
                log.warning(
                    "this DDP model is a copy of one with %s: DDP averages its gradients uncompressed; "
                    "give it to gradwire.compress_ddp to compress them",
                    self.method,
                )


def note_copies(model: nn.Module, method: str) -> None:
    """Make copies of this DDP model report that they are copies."""
    if isinstance(model, DistributedDataParallel):
        model.register_forward_pre_hook(CopyNotice(method))


def forget_copied(model: nn.Module) -> None:
    """Remove from a DDP model all attributes that mark it as the copy of another."""
    if isinstance(model, DistributedDataParallel):
        model._comm_hooks = [each for each in model._comm_hooks if not isinstance(each[1], CopiedState)]
        for key, hook in list(model._forward_pre_hooks.items()):
            if isinstance(hook, CopyNotice) and hook.copied:
                del model._forward_pre_hooks[key]


class OptimizerCopies:
    """The ``__reduce_ex__`` of a compressed optimizer, by which ``copy`` and ``pickle`` make a copy of it.

    Args:
        optimizer: optimizer, which holds this.
        copied: true: it is a copy itself, and nobody has compressed it yet.
    """

    def __init__(self, optimizer: Optimizer, *, copied: bool) -> None:
        self._optimizer, self.copied = weakref.ref(optimizer), copied

    def __call__(self, protocol: Any) -> tuple[Any, ...]:
        optimizer = self._optimizer()
        assert optimizer is not None
        return copy_of_optimizer, (type(optimizer), optimizer.__getstate__())


def note_copies_of_optimizer(optimizer: Optimizer, *, copied: bool = False) -> None:
    """Let copies of this optimizer refuse to step."""
    optimizer.__dict__["__reduce_ex__"] = OptimizerCopies(optimizer, copied=copied)


def copy_of_optimizer(kind: type[Optimizer], state: Mapping[str, Any]) -> Optimizer:
    """Make what torch makes of a copied optimizer, whose step is refused until it is compressed itself."""
    made = kind.__new__(kind)
    made.__setstate__(dict(state))
    note_copies_of_optimizer(made, copied=True)
    made.register_step_pre_hook(refuse_copy)
    return made


def refuse_copy(optimizer: Optimizer, *_: Any) -> None:
    """Refuse the step of an optimizer that is a copy, unless it was compressed since."""
    require(
        not optimizer.__dict__["__reduce_ex__"].copied,
        "optimizer",
        "the one that compress_optimizer was given, or be given to it",
        Verbatim("a copy of it, whose gradients nobody averages"),
    )
