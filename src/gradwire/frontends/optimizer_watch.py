"""Warnings, each given once, about methods that adaptive optimizers suffer from; ``engine.adaptive`` says why."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradwire._once import once
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.adaptive import (
    Remedies,
    is_adaptive,
    is_orthogonal,
    keeps_momentum_alone,
    mostly_zero,
    trouble_of,
    warn_of_spread_zeros,
)
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named
from gradwire.engine.policy import SAMPLED
from gradwire.errors import ConfigError, Verbatim, require
from gradwire.memory.base import Memory
from gradwire.memory.preconditioned import Preconditioned

__all__ = ["AdaptiveWatch", "check_optimizer", "follow_steps", "parameters_of", "trains"]


def parameters_of(optimizer: Any) -> list[Tensor]:
    """List the parameters of an optimizer, group by group; one that is not torch's may have no groups."""
    return [param for group in getattr(optimizer, "param_groups", None) or () for param in group["params"]]


def trains(optimizer: Any, params: Iterable[Tensor]) -> bool:
    """Return whether an optimizer has any of these parameters."""
    ids = {id(param) for param in params}
    return any(id(param) in ids for param in parameters_of(optimizer))


def check_optimizer(optimizer: Any, params: Iterable[Tensor], name: str = "optimizer") -> None:
    """Refuse an object that is not an optimizer, or one of other parameters; None is allowed.

    Args:
        name: name of the option.
    """
    if optimizer is not None:
        require(isinstance(optimizer, Optimizer), name, "a torch.optim.Optimizer or None", optimizer)
        ours = trains(optimizer, params)
        require(ours, name, "the one that trains this model's parameters", Verbatim("one of others"))


class AdaptiveWatch:
    """A watch that looks at each optimizer of an exchange's parameters once, at its first step.

    The controller of the exchange, if it has one, asks it which errors these optimizers tolerate.

    Args:
        exchange: exchange whose methods are meant.
        params: each parameter's id, with its name and shape in the exchange.
        optimizer: optimizer, if it is known already: torch's, or the name of another framework's that is adaptive.
        corrected: true: the optimizer's learning rates follow the noise of the code.
        remedies: advice that the warnings give.
    """

    def __init__(
        self,
        exchange: Exchange,
        params: Mapping[int, Named],
        optimizer: Optimizer | str | None,
        *,
        corrected: bool,
        remedies: Remedies,
    ) -> None:
        self._exchange, self._params, self._corrected, self._remedies = exchange, params, corrected, remedies
        self._said: set[bool] = set()
        """Warnings that were given: True: of harm, False: of noise."""
        self._adaptive: dict[str, list[Named]] = {}
        """The parameters that each adaptive optimizer trains, by its name, because an optimizer may hold the state that
        holds this."""
        self._orthogonal: set[str] = set()
        """Those of them whose steps noise does not shorten."""
        self._seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._plain = self._others = False
        self._zeros_due, self._zeros_said = True, False
        if isinstance(optimizer, str):
            self._adaptive[optimizer] = list(params.values())
        else:
            follow_steps(self)
            if optimizer is not None and (is_adaptive(optimizer) or is_orthogonal(optimizer)):
                self.stepped(optimizer)
        self.check()
        if exchange.controller is not None:
            # Weakly, because the watch holds the exchange, which holds the controller.
            known = weakref.ref(self)
            exchange.controller.follow_optimizers(lambda: (found := known()) is not None and found.bears())

    def check(self) -> None:
        """Warn on rank 0 of the group, once of a method that harms such an optimizer, and once of one that adds much
        noise, to which no learning rate is adapted.
        """
        exchange = self._exchange
        if exchange.methods.force or exchange.channel.closed:
            return
        for optimizer, params in self._adaptive.items():
            for trouble in filter(None, (trouble_of(*method) for method in methods_of(exchange, params))):
                harmful = trouble.harmful
                quiet = self._corrected or optimizer in self._orthogonal
                if harmful in self._said or (quiet and not harmful):
                    continue
                self._said.add(harmful)
                if harmful:
                    _WAITING.discard(self)
                if exchange.channel.rank == 0:
                    trouble.warn(optimizer, self._remedies, orthogonal=optimizer in self._orthogonal)
        self._check_zeros()

    def _check_zeros(self) -> None:
        """Warn on rank 0, once, of a method that makes noise of zeros, if a gradient of this rank is mostly zeros."""
        exchange = self._exchange
        if (
            not self._adaptive
            or exchange.methods.force
            or self._zeros_said
            or (zeros := exchange.first_zeros.shares()) is None
        ):
            return
        self._zeros_due = False
        for optimizer, params in self._adaptive.items() if exchange.channel.rank == 0 else ():
            spread = {
                name: method.name for name, shape in params if (method := self._spreading(name, shape)) is not None
            }
            if (found := mostly_zero(zeros, spread)) is not None and not self._zeros_said:
                self._zeros_said = True
                warn_of_spread_zeros(spread[found], optimizer, found, zeros[found])

    def _spreading(self, name: str, shape: tuple[int, ...]) -> Compressor | None:
        """The method of a parameter, if zeros arrive as noise; not with a memory in whose units they stay small."""
        exchange = self._exchange
        method = exchange.methods.policy.choose(
            name, shape, exchange.methods.main_of(name, exchange.methods.compressor)
        )
        kept_small = method is None or isinstance(exchange.methods.memory_for(method), Preconditioned)
        return method if method is not None and capabilities.spreads(method) and not kept_small else None

    def stepped(self, optimizer: Optimizer) -> None:
        """Check an optimizer, which may be of these parameters, at its step."""
        if self._exchange.channel.closed:
            _WAITING.discard(self)
            return
        if optimizer in self._seen:
            if self._zeros_due:
                # It was known before anything was exchanged.
                self._check_zeros()
            return
        self._seen.add(optimizer)
        ours = [self._params[id(param)] for param in parameters_of(optimizer) if id(param) in self._params]
        self._plain = self._plain or bool(ours)
        if ours and is_orthogonal(optimizer):
            self._orthogonal.add(type(optimizer).__name__)
        self._others = self._others or bool(ours and not keeps_momentum_alone(optimizer))
        if ours and (is_adaptive(optimizer) or is_orthogonal(optimizer)):
            self._adaptive.setdefault(type(optimizer).__name__, []).extend(ours)
            self.check()

    def bears(self) -> bool:
        """Return whether an optimizer of these parameters has stepped, and all that did are known to keep a momentum at
        most, and to have steps as long as gradients are.
        """
        return self._plain and not self._adaptive and not self._others


class Follower(Protocol):
    """An object that hears of the steps of all optimizers."""

    def stepped(self, optimizer: Optimizer) -> None:
        """Hear that an optimizer has made a step."""
        ...


_WAITING: weakref.WeakSet[Follower] = weakref.WeakSet()
"""Those that hear of steps: watches of adaptive optimizers until they have warned of harm, and others."""


def follow_steps(follower: Follower) -> None:
    """Tell of each step of every optimizer from now on, for as long as somebody else holds who hears of it."""
    listen()
    _WAITING.add(follower)


@once
def listen() -> None:
    """Register one hook for every step of every optimizer, once a process: torch cannot remove a
    hook while hooks run.
    """
    register_optimizer_step_post_hook(_stepped)


def _stepped(optimizer: Optimizer, *_: Any) -> None:
    if not torch.compiler.is_compiling():
        # A copy, because a watch leaves the set when it has warned.
        for watch in list(_WAITING):
            watch.stepped(optimizer)


def methods_of(exchange: Exchange, params: Iterable[Named]) -> Iterator[tuple[Compressor, Memory]]:
    """The methods of these parameters, in the steps of a schedule that are looked at, with their memories."""
    policy, main = exchange.methods.policy, exchange.methods.compressor
    later = SAMPLED if policy.schedule else ()
    for method in dict.fromkeys([main, *(policy.at(policy.start_after + step, main) for step in later)]):
        for chosen in dict.fromkeys(policy.choose(name, shape, method) for name, shape in params):
            # A schedule is checked where it is used: what it cannot do there is an error of its own.
            with suppress(ConfigError):
                if chosen is not None:
                    yield chosen, exchange.methods.memory_for(chosen)
