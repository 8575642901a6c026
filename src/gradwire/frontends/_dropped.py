"""Gradients that were exchanged and then dropped: set to None or to zero before an optimizer had used them.

Invariants:
    * One parameter is watched for each optimizer. Before a backward pass adds to its gradient, the gradient is compared
      with the one that the last exchange left.
    * An optimizer has used the gradient if torch's hook of optimizers saw a step, or if the parameter was written to.
      An assignment to ``.data`` shows in neither, so until one of the two was seen the values are compared.
    * Two backward passes before one step leave the gradient where it is, and are accumulation.

Why:
    The residual has lost what an exchange sent, and holds what it did not send. So of a gradient that is dropped after
    its exchange one part is lost, with what had waited before, and the other arrives in a later step. To undo the
    exchange, all kept tensors would have to be copied in every step. And a gradient that is gone may have been read
    before, as by a loop that adds up several. So this module only warns, once, and says what to do.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.optim import Optimizer

from gradwire.engine.exchange import Exchange
from gradwire.frontends.optimizer_watch import follow_steps, parameters_of
from gradwire.frontends.ownership import on_rank
from gradwire.notices import log

__all__ = ["DroppedGradients"]


class DroppedGradients:
    """A watch over the gradients of one exchange.

    Args:
        exchange: exchange whose residuals are meant.
        params: parameters by id.
        remedy: advice for a pass whose gradients are dropped.
        hooks: true where gradients are added to while a backward pass goes on, so that a hook must look before that;
            false: ``look`` is called before the first gradient of a pass is added.
    """

    def __init__(self, exchange: Exchange, params: Mapping[int, Tensor], remedy: str, *, hooks: bool) -> None:
        self._exchange, self._remedy, self._hooks = exchange, remedy, hooks
        self._ids, self._step, self._over = frozenset(params), 0, False
        self._watched: list[Watched] = []
        self._of: weakref.WeakKeyDictionary[Optimizer, list[Watched]] = weakref.WeakKeyDictionary()
        self._first = [self._watch(param) for param in list(params.values())[-1:]]
        follow_steps(self)

    def leave(self) -> None:
        """Stop watching."""
        self._over = True
        for each in self._watched:
            each.leave()
        self._watched = []

    def stepped(self, optimizer: Optimizer) -> None:
        """Note that an optimizer, which may be of these parameters, has made a step."""
        if self._over:
            return
        if optimizer not in self._of:
            given = (param for param in parameters_of(optimizer) if param.requires_grad)
            ours = {id(param): param for param in given if id(param) in self._ids}
            found = [each for each in self._watched if id(each.param) in ours]
            self._of[optimizer] = found or [self._watch(param) for param in list(ours.values())[-1:]]
            if ours:
                # The first one may be of no optimizer at all; those that are trained answer for themselves now.
                for each in (each for each in self._first if each not in self._of[optimizer]):
                    self._watched.remove(each)
                    each.leave()
                self._first = []
        for each in self._of[optimizer]:
            each.used()

    def look(self) -> None:
        """See, before a backward pass adds to any gradient, whether those of the last exchange are still there."""
        for each in self._watched:
            each.look()

    def at_the_end_of_this_pass(self, *, kept: bool = True) -> None:
        """Note, when the backward pass of this thread has written its last gradient, what the exchange has left.

        Args:
            kept: false where this exchange has kept nothing back.
        """
        if self._over or torch._C._current_graph_task_id() == -1:
            return
        queue = cast(Any, Variable)._execution_engine.queue_callback
        # The framework has put its own callback, which writes gradients, into the queue, or does so after this.
        queue(partial(queue, partial(self._exchanged, kept=kept)))

    def _exchanged(self, *, kept: bool) -> None:
        gone, exchange = False, self._exchange
        for each in self._watched:
            gone = gone or each.gone
        # A step that is not finite is skipped by the loss scaler, and undone. Its flag is read only where a
        # gradient is gone, because that waits for the device.
        if gone and not exchange.rollback.spoilt(self._step):
            self._warn()
            return
        self._step, there = exchange.step, kept and exchange.residuals.keeps
        for each in self._watched:
            each.note(there=there)

    def _warn(self) -> None:
        self.leave()
        if self._exchange.channel.rank == 0:
            log.warning(
                "the gradients that were exchanged in step %d were set to None or to zero before an optimizer had used "
                "them: what was not sent of them waits in the residuals, and comes out in a later step. %s. "
                "docs/ddp.md#dropped-gradients says more",
                self._step,
                self._remedy,
            )

    def _watch(self, param: Tensor) -> Watched:
        made = Watched(param)
        self._watched.append(made)
        if self._hooks:
            # A parameter and its hooks are kept alive by C++, which the garbage collector does not look into.
            made.handle = param.register_hook(partial(before_gradient, weakref.ref(made)))  # type: ignore[no-untyped-call]
        return made


class Watched:
    """A parameter whose gradient is watched."""

    def __init__(self, param: Tensor) -> None:
        self.param, self.handle = param, cast(Any, None)
        self.gone = False
        """True once the gradient of the last exchange is gone, and nothing had used it."""
        self._known = False
        self._left: tuple[tuple[int, int], tuple[int, int]] | None = None
        """The gradient and the parameter after the last exchange, each as ``written``; None: nothing was exchanged, or
        it was used."""
        self._values: tuple[Tensor, Tensor] | None = None

    def leave(self) -> None:
        """Remove the hook."""
        if self.handle is not None:
            self.handle.remove()

    def used(self) -> None:
        """Note that an optimizer has used the gradient."""
        self._known, self._left, self._values = True, None, None

    def note(self, *, there: bool) -> None:
        """Note the gradient after an exchange; ``there`` is true if something of it was kept back."""
        self.gone, self._left, self._values = False, None, None
        if self.param.grad is None or not there:
            return
        self._left = written(self.param.grad), written(self.param)
        if not self._known:
            self._values = on_rank(self.param.detach()).clone(), on_rank(self.param.grad).any()

    def look(self) -> None:
        """See whether the gradient of the last exchange is still there, or was used."""
        if self._left is None:
            return
        grad, (left, param) = self.param.grad, self._left
        if written(self.param)[1] != param[1]:
            self.used()
        elif grad is None or (written(grad) != left and not on_rank(grad).any()):
            values, self._left = self._values, None
            self.gone = values is None or (bool(values[1]) and torch.equal(values[0], on_rank(self.param)))


def before_gradient(watched: weakref.ref[Watched], _: Tensor) -> None:
    """Look before a gradient is added."""
    if (found := watched()) is not None and not torch.compiler.is_compiling():
        found.look()


def written(tensor: Tensor) -> tuple[int, int]:
    """The place of a tensor, and how often it was written to."""
    own = getattr(tensor, "_local_tensor", tensor)
    # What is done to a sharded tensor counts there, and what FSDP does to its part counts in the part.
    return own.data_ptr(), own._version + (0 if own is tensor else tensor._version)
