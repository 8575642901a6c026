"""Warning, given once, about error feedback with an optimizer that divides gradients by the size of earlier ones.

Law: Adam's step is lr m / sqrt(v), where m and v are means of what arrives and of its square. A residual arrives late
and in one piece: what waited for T steps is T times as large as a gradient, and v becomes T times as large. So it
counts as about sqrt(T) steps of ordinary size, where T were due. Error feedback keeps the sum of what was sent
right; the sum of such steps is another one.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradwire.auto.pilot import AutoPilot
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, Verbatim, require
from gradwire.exchange.exchange import Exchange
from gradwire.exchange.plan import Named
from gradwire.exchange.policy import SAMPLED
from gradwire.memory.base import Memory

__all__ = [
    "AdaptiveWatch",
    "check_optimizer",
    "follow_optimizers",
    "is_adaptive",
    "is_adaptive_class",
    "keeps_much",
    "warn",
]

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

_STATE = frozenset({"exp_avg_sq", "exp_avg_sq_row", "exp_inf", "square_avg"})
"""Names of the second moments in optimizers of other packages, and in torch's."""


_HARMFUL = (
    "%s keeps back what it does not send, and %s divides gradients by the size of recent ones: what arrives late "
    "counts for far fewer steps than it waited, and training ends worse than without compression. Use "
    "a method that keeps nothing back: 'qsgd' with bits=4, or 'eden' with 2 bits or 1; for fewer bytes exchange the "
    "optimizer's steps, as gradwire.CompressedStep(optimizer) does. docs/adaptive.md shows why; force=True says that "
    "you know"
)

_NOISY = (
    "%r adds noise to gradients, and %s divides by their root mean square, so its steps become shorter. Give "
    "variance_correction=optimizer to compress_ddp or compress_fsdp, or variance_correction=True to "
    "compress_optimizer: it measures by how much, and multiplies the learning rates by that; elsewhere look for a "
    "higher learning rate. docs/adaptive.md has figures"
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


def check_optimizer(optimizer: Any, params: Iterable[Tensor], name: str = "optimizer") -> None:
    """Refuse an object that is not an optimizer, or one of other parameters; None is allowed.

    Args:
        name: name of the option.

    Raises:
        ConfigError
    """
    if optimizer is not None:
        require(isinstance(optimizer, Optimizer), name, "a torch.optim.Optimizer or None", optimizer)
        ids = {id(param) for param in params}
        ours = any(id(param) in ids for group in optimizer.param_groups for param in group["params"])
        require(ours, name, "the one that trains this model's parameters", Verbatim("one of others"))


class AdaptiveWatch:
    """A watch that looks at each optimizer of an exchange's parameters once, at its first step.

    Args:
        exchange: exchange whose methods are meant.
        params: each parameter's id, with its name and shape in the exchange.
        optimizer: optimizer, if it is known already: torch's, or the name of another framework's that is adaptive.
        corrected: true: the optimizer's learning rates follow the noise of the code.
    """

    def __init__(
        self,
        exchange: Exchange,
        params: Mapping[int, Named],
        optimizer: Optimizer | str | None = None,
        *,
        corrected: bool = False,
    ) -> None:
        self._exchange, self._params, self._said, self._corrected = exchange, params, False, corrected
        self._adaptive: dict[str, list[Named]] = {}
        """The parameters that each adaptive optimizer trains, by its name, because an optimizer may hold the state that
        holds this."""
        self._seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._plain = False
        if isinstance(optimizer, str):
            self._adaptive[optimizer] = list(params.values())
        else:
            if optimizer is not None and is_adaptive(optimizer):
                self.stepped(optimizer)
            listen()
            _WAITING.add(self)
        self.check()

    def check(self) -> None:
        """Warn once, on rank 0 of the group, if a method delays much of the gradients that such an optimizer uses.

        Or if it adds much noise, to which no learning rate is adapted.
        """
        exchange = self._exchange
        if self._said or exchange.force or exchange.channel.closed:
            return
        for optimizer, params in self._adaptive.items():
            methods = list(methods_of(exchange, params))
            kept = next(filter(None, (keeps_much(*method) for method in methods)), None)
            noisy = next((code.name for code, _ in methods if code.unbiased and not code.fine), None)
            if kept is None and (noisy is None or self._corrected):
                continue
            self._said = True
            _WAITING.discard(self)
            if exchange.channel.rank == 0 and kept is not None:
                warn(kept, optimizer)
            elif exchange.channel.rank == 0:
                log.warning(_NOISY, noisy, optimizer)
            return

    def stepped(self, optimizer: Optimizer) -> None:
        """Check an optimizer, which may be of these parameters, at its step."""
        if optimizer in self._seen:
            return
        self._seen.add(optimizer)
        groups = getattr(optimizer, "param_groups", None) or ()
        ours = [self._params[id(param)] for group in groups for param in group["params"] if id(param) in self._params]
        self._plain = self._plain or bool(ours)
        if ours and is_adaptive(optimizer):
            self._adaptive.setdefault(type(optimizer).__name__, []).extend(ours)
            self.check()

    def bears(self) -> bool:
        """Return whether an optimizer of these parameters has stepped, and none that did divides by
        a mean of squares.
        """
        return self._plain and not self._adaptive


def follow_optimizers(exchange: Exchange, watch: AdaptiveWatch) -> None:
    """Tell the pilot of an exchange, if it has one, which errors its optimizers tolerate."""
    if isinstance(exchange.pilot, AutoPilot):
        known = weakref.ref(watch)
        exchange.pilot.bears = lambda: (found := known()) is not None and found.bears()


_WAITING: weakref.WeakSet[AdaptiveWatch] = weakref.WeakSet()
"""The watches that have not warned."""


@cache
def listen() -> None:
    """Register one hook for every step of every optimizer, once a process: torch cannot remove a
    hook while hooks run.
    """
    register_optimizer_step_post_hook(_stepped)


def _stepped(optimizer: Optimizer, *_: Any) -> None:
    if not torch.compiler.is_compiling():
        for watch in list(_WAITING):
            watch.stepped(optimizer)


def methods_of(exchange: Exchange, params: Iterable[Named]) -> Iterator[tuple[Compressor, Memory]]:
    """The methods of these parameters, in the steps of a schedule that are looked at, with their memories."""
    policy, main = exchange.policy, exchange.compressor
    later = SAMPLED if policy.schedule else ()
    for method in dict.fromkeys([main, *(policy.at(policy.start_after + step, main) for step in later)]):
        for chosen in dict.fromkeys(policy.choose(name, shape, method) for name, shape in params):
            # A schedule is checked where it is used: what it cannot do there is an error of its own.
            with suppress(ConfigError):
                if chosen is not None:
                    yield chosen, exchange.memory_for(chosen)


def keeps_much(compressor: Compressor, memory: Memory) -> str | None:
    """Describe in words why a method sends much of a gradient later; None if it does not."""
    late = memory.late and not compressor.fine
    return f"{compressor.name!r} with memory {memory.name!r}" if late else None


def warn(kept: str, optimizer: str) -> None:
    """Warn what such a method does to such an optimizer, and what to use."""
    log.warning(_HARMFUL, kept, optimizer)
