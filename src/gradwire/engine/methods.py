"""The methods of an exchange: which compressor, memory and strategy each parameter has, in each step.

Invariants:
    * Everything follows from names, shapes and configuration, which all ranks compare before the first step, so that
      all ranks choose alike.
    * A change of the method makes new ``Methods``. Only the assignments of an autotuner change in place.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.plan import Named, carries, default_strategy
from gradwire.engine.policy import Policy
from gradwire.engine.strategies.base import Strategy
from gradwire.errors import ConfigError, as_python, require
from gradwire.kernels.stored import FLOAT32
from gradwire.memory import facts
from gradwire.memory.base import Memory, check_memory, default_memory
from gradwire.transport.channel import Channel

__all__ = ["Assigned", "Methods"]

Assigned = Mapping[str, tuple[Compressor, Strategy]]
"""Parameters that have a method of their own, by name, and how its payloads travel."""


def plain(value: object) -> object:
    """Convert a value that JSON does not know: a number of numpy's to Python's, anything else to its text."""
    python = as_python(value)
    return python if python is not value else repr(value)


def suits(memory: Memory, compressor: Compressor, *, force: bool) -> bool:
    """Return whether a memory can serve a compressor."""
    try:
        check_memory(compressor, memory, force=force)
    except ConfigError:
        # The check speaks to a user who named this pair; an override that it refuses has a memory of its own.
        return False
    return True


class Methods:
    """The main compressor with its memory and strategy, the policy, and what an autotuner has assigned.

    Args:
        compressor: the main compressor.
        memory: a memory or its name; None chooses from the compressor's declared feedback.
        strategy: a strategy or its name; None chooses from declared properties and the number of workers.
        policy: per-parameter choices.
        world: the number of workers.
        force: use error feedback where the method declares it unsafe, or none where it declares it required.
        residual_dtype: dtype of residuals whose memory is given by name or chosen.

    Attributes:
        assigned: parameters that have a method of their own.

    Raises:
        ConfigError: a combination that cannot work, with the remedy.

    Example:
        >>> from gradwire.compressors.ternary.twobit import TwoBit
        >>> methods = Methods(TwoBit(), policy=Policy(), world=8)
        >>> methods.memory_for(methods.compressor).name, methods.strategy_for(methods.compressor).name
        ('residual', 'two_phase')
    """

    def __init__(
        self,
        compressor: Compressor,
        memory: Memory | str | None = None,
        strategy: Strategy | str | None = None,
        *,
        policy: Policy,
        world: int,
        force: bool = False,
        residual_dtype: str = "float32",
    ) -> None:
        made = "a compressor, which gradwire.compressor makes from a name"
        require(isinstance(compressor, Compressor), "compressor", made, compressor)
        require(isinstance(memory, Memory | str | None), "memory", "a memory or its name", memory)
        require(isinstance(strategy, Strategy | str | None), "strategy", "a strategy or its name", strategy)
        self.policy, self.world, self.force, self.residual_dtype = policy, world, force, residual_dtype
        self.assigned: dict[str, tuple[Compressor, Strategy]] = {}
        self.compressor = compressor
        self.memory = self._named_memory(memory) if isinstance(memory, str) else memory
        self.strategy: Strategy | None = (
            registry.build("strategies", strategy) if isinstance(strategy, str) else strategy
        )
        for each in self.named():
            self.check(each, self.strategy_for(each))
            capabilities.check_world(each, world)
        self.compressor = self._as_kept(compressor)
        overrides = {pattern: self._as_kept(each) for pattern, each in policy.overrides.items()}
        self.policy = dataclasses.replace(policy, overrides=overrides)
        main = self.memory_for(self.compressor)
        same = self.strategy_for(self.compressor).sums and not overrides and not policy.schedule
        self.sums_whole = same and facts.keeps_nothing(main) and facts.dense(main) is None
        """True where every bucket is one sum of the main compressor's, of which nothing is kept."""

    def changed(
        self,
        compressor: Compressor,
        memory: Memory | str | None = None,
        strategy: Strategy | str | None = None,
        *,
        force: bool | None = None,
        policy: Policy | None = None,
    ) -> Methods:
        """Make methods with another main compressor, the same policy if no other is given, and nothing assigned."""
        return Methods(
            compressor,
            memory,
            strategy,
            policy=policy or self.policy,
            world=self.world,
            force=self.force if force is None else force,
            residual_dtype=self.residual_dtype,
        )

    def assign(self, assigned: Assigned) -> None:
        """Give single parameters methods of their own; all others have the main compressor.

        Raises:
            ConfigError: a combination that cannot work, with the remedy.
        """
        for compressor, strategy in assigned.values():
            self.check(compressor, strategy)
        # One object for each, because tensors are encoded together if they have the same one.
        kept = {id(each): self._as_kept(each) for each, _ in assigned.values()}
        self.assigned = {name: (kept[id(each)], strategy) for name, (each, strategy) in assigned.items()}

    def meet(self, channel: Channel, device: torch.device) -> None:
        """Let the strategies ask for the facts about the ranks that they need. All ranks must call it, at set-up.

        Raises:
            ConfigError: a strategy cannot run among these ranks, the same on all of them, with the remedy.
        """
        for each in self.named():
            self.strategy_for(each).meet(channel, device)

    def named(self) -> Iterator[Compressor]:
        """The compressors that the configuration names: the main one, and those of the overrides."""
        yield self.compressor
        yield from self.policy.overrides.values()

    def check(self, compressor: Compressor, strategy: Strategy) -> None:
        """Refuse a strategy that cannot carry a compressor, or would lose gradients with its memory."""
        strategy.check(compressor)
        strategy.check_memory(self.memory_for(compressor))

    def at(self, step: int) -> Compressor:
        """The main compressor in a step, which a schedule may change; the first step is 1."""
        return self.policy.at(step - 1, self.compressor) if self.policy.schedule else self.compressor

    def main_of(self, name: str, main: Compressor) -> Compressor:
        """The compressor of a parameter that has no override, where ``main`` is that of the step."""
        return self.assigned[name][0] if name in self.assigned else main

    def memory_for(self, compressor: Compressor) -> Memory:
        """The memory of a compressor.

        Raises:
            ConfigError: error feedback is needed and was refused, or would diverge and was asked for; or the memory
                cannot serve the method.
        """
        asked = self.memory
        if asked is not None and not capabilities.same_method(compressor, self.compressor):
            # It is the main method's. An override that is defined with a memory keeps that, and one that this memory
            # does not suit has its own. But "none" asks that nothing be kept of any parameter.
            own = capabilities.memory(compressor) is not None
            if own or not (facts.keeps_nothing(asked) or suits(asked, compressor, force=self.force)):
                asked = None
        memory = asked or self._named_memory(default_memory(compressor))
        check_memory(compressor, memory, force=self.force)
        return memory

    def strategy_for(self, compressor: Compressor) -> Strategy:
        """The strategy of a compressor: the chosen one, except for an override that it cannot carry."""
        main = capabilities.same_method(compressor, self.compressor)
        if self.strategy is not None and (main or carries(self.strategy, compressor)):
            return self.strategy
        built: Strategy = registry.build("strategies", default_strategy(compressor, self.world))
        return built

    def strategy_of(self, name: str, compressor: Compressor) -> Strategy:
        """The strategy of a parameter that has this compressor."""
        assigned, strategy = self.assigned.get(name, (None, None))
        return strategy if strategy is not None and assigned is compressor else self.strategy_for(compressor)

    def buffers(self, which: str) -> set[str]:
        """The union of an attribute, a list of names, over the memories of all compressors."""
        assigned = dict.fromkeys(compressor for compressor, _ in self.assigned.values())
        memories = [self.memory_for(each) for each in (*self.named(), *assigned)]
        return {name for memory in memories for name in getattr(memory, which)}

    def sends_as_it_is(self, dtype: torch.dtype) -> bool:
        """Return whether a bucket of this dtype is summed as it is, and nothing is kept of it."""
        return self.sums_whole and capabilities.sums_in(self.compressor, dtype)

    def describe(self, params: Sequence[Named], **facts: Any) -> str:
        """Describe configuration and parameters as JSON, with any other ``facts``: all ranks must agree on them."""
        for name, shape in params:
            self.policy.choose(name, shape, self.compressor)  # Tries a researcher's own method, which may fail here.
        return json.dumps(
            {
                **facts,
                **self._settings(self.compressor),
                "policy": self.policy.to_config(),
                "params": [[name, list(shape)] for name, shape in params],
            },
            sort_keys=True,
            default=plain,
        )

    def describe_step(self, main: Compressor, **facts: Any) -> str:
        """Describe as JSON what must be the same on all ranks in a step whose main compressor is ``main``."""
        policy = {
            "min_numel": self.policy.min_numel,
            "exclude": list(self.policy.exclude),
            "start_after": self.policy.start_after,
        }
        return json.dumps({**facts, **self._settings(main), "policy": policy}, sort_keys=True, default=repr)

    def left(self) -> str:
        """The methods that leave residuals, as JSON: the main compressor and its memory."""
        memory = self.memory_for(self.compressor)
        config = {"compressor": self.compressor.to_config(), "memory": memory.to_config()}
        return json.dumps(config, sort_keys=True, default=plain)

    def _settings(self, main: Compressor) -> dict[str, Any]:
        return {
            "compressor": main.to_config(),
            "memory": self.memory_for(main).to_config(),
            "strategy": self.strategy_for(main).to_config(),
        }

    def _as_kept(self, compressor: Compressor) -> Compressor:
        """The form of a compressor whose residual is as narrow as its memory keeps it."""
        return compressor if self.memory_for(compressor).form == FLOAT32 else capabilities.in_16_bits(compressor)

    def _named_memory(self, name: str) -> Memory:
        takes_dtype = facts.takes_dtype(registry.find("memory", registry.named_of(name)["name"]))
        params = {"dtype": self.residual_dtype} if takes_dtype and self.residual_dtype != "float32" else {}
        memory: Memory = registry.build("memory", name, params)
        return memory
