"""The plans of an exchange's buckets: made once, found again by the first parameter, dropped when buckets change."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.none import Identity
from gradwire.engine.dense import DenseSession, is_carried
from gradwire.engine.methods import Methods
from gradwire.engine.part import Unit
from gradwire.engine.plan import Moving, Named, Plan, grouped, joined, same_choices, try_retune
from gradwire.engine.residual_store import ResidualStore
from gradwire.engine.strategies.base import Session, Site
from gradwire.kernels import Places
from gradwire.memory import facts
from gradwire.transport.channel import Channel
from gradwire.vocabulary import State

__all__ = ["Planner"]


class Planner:
    """The plans of one exchange, each by the first of its parameters, of which no two share one.

    Args:
        channel: channel over which buckets travel.
        device: device of the gradients.
        residuals: store of all that is kept.
    """

    def __init__(self, channel: Channel, device: torch.device, residuals: ResidualStore) -> None:
        self.channel, self.device, self.residuals = channel, device, residuals
        self._plans: dict[str, Plan] = {}

    def known(self, params: Sequence[Named]) -> Plan | None:
        """Find the plan that was made for these parameters, of whatever compressor."""
        plan = self._plans.get(params[0][0] if params else "")
        return plan if plan is not None and plan.params == tuple(params) else None

    def fits(self, plan: Plan, main: Compressor, methods: Methods) -> bool:
        """Return whether a plan does for a main compressor, or can be made to: a schedule may keep its layouts."""
        if plan.main == main:
            return True
        return same_choices(plan, main, methods.policy) and try_retune(plan, main)

    def make(self, params: Sequence[Named], main: Compressor, methods: Methods) -> Plan:
        """Make the plan of a bucket; all ranks must call it alike."""
        # Before the new plan asks for its tensors: those that it replaces hand residuals of shards back to the
        # parameters.
        self.forget([name for name, _ in params])
        plan = self._plans[params[0][0] if params else ""] = self._built(params, main, methods)
        return plan

    def forget(self, names: Sequence[str] | None = None) -> None:
        """Drop the plans that share a parameter with ``names``, because buckets were rebuilt or a size changed; what
        they keep stays. None: all.
        """
        for first, plan in list(self._plans.items()):
            if names is None or not set(plan.names).isdisjoint(names):
                self.residuals.retire(self._plans.pop(first).names)

    def drop(self) -> None:
        """Drop all plans, whose kept tensors were replaced."""
        self._plans = {}

    def _built(self, params: Sequence[Named], main: Compressor, methods: Methods) -> Plan:
        # A schedule may have passed what fits, in a step that was not tried.
        capabilities.check_world(main, self.channel.world)
        units, dense, numel = grouped(params, partial(methods.main_of, main=main), methods.policy, methods.memory_for)
        site = Site(self.channel, self.device, self.residuals)
        groups: dict[object, list[Unit]] = {}
        for unit in units:
            strategy = methods.strategy_of(unit.name, unit.compressor)
            alone = id(unit.compressor) if strategy.sums else None
            groups.setdefault((strategy.name, alone), []).append(unit)
        firsts = [(methods.strategy_of(group[0].name, group[0].compressor), group) for group in groups.values()]
        sessions = [strategy.plan(group, site) for strategy, group in firsts]
        advised = [self.residuals.states[unit.name] for unit in units if capabilities.advice(unit.compressor)]
        return Plan(
            params=tuple(params),
            main=main,
            units=units,
            dense=self._dense(dense, advised, sessions),
            sessions=sessions,
            numel=numel,
            moving=list(joined(self._moving(params, main, methods, units))),
            warm_up=DenseSession([(0, numel)], self.channel, self.device),
        )

    def _dense(
        self, ranges: Sequence[tuple[int, int]], advised: Sequence[State], sessions: Sequence[Session]
    ) -> DenseSession:
        """The session for uncompressed parameters: between two ranks with the payloads, which takes as many bytes."""
        numel = sum(hi - lo for lo, hi in ranges) + sum(state["advice"].numel() for state in advised)
        carried = len(sessions) == 1 and is_carried(numel, self.channel.world)
        rows = sessions[0].carry(numel) if carried else None
        return DenseSession(ranges, self.channel, self.device, advised, rows)

    def _moving(
        self, params: Sequence[Named], main: Compressor, methods: Methods, units: Sequence[Unit]
    ) -> list[Moving]:
        """The parameters whose memories have work to do although they travel dense: in the warm-up, or always."""
        compressed, lo = {name for unit in units for name, _ in unit.members}, 0
        length, moving, alone = sum(torch.Size(shape).numel() for _, shape in params), [], []
        for name, shape in params:
            meant, numel = methods.policy.meant(name, methods.main_of(name, main)), torch.Size(shape).numel()
            memory = facts.dense(methods.memory_for(meant))
            if memory is not None and name in compressed:
                kept = {buffer: self.residuals.worker[buffer][name] for buffer in memory.buffers}
                moving.append(Moving(memory, kept, Places(length, [lo], [numel]), always=False))
            elif memory is not None:
                alone.append(Unit(((name, numel),), (numel,), lo, Identity(), memory))
            lo += numel
        for unit, own in zip(alone, self.residuals.keep_all(alone) if alone else [], strict=True):
            moving.append(Moving(unit.memory, own, Places(length, [unit.lo], [unit.numel]), always=True))
        return moving
