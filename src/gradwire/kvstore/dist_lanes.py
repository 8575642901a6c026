"""A distributed store's calls that name the same keys again and again: their small keys go by lanes.

The first such call finds nothing special; from the second on gradients are gathered, encoded and sent once for all keys
of a lane. Whatever is out of the ordinary (a row-sparse gradient, several senders, another dtype) goes the way of
single keys, which puts a lane's keys apart.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from gradwire.kvstore.base import KVStore, check_priority
from gradwire.kvstore.joint import joinable
from gradwire.kvstore.keys import StoreKey
from gradwire.kvstore.lanes import Lane, Lanes, Roster, Spread
from gradwire.kvstore.links import Links
from gradwire.kvstore.payloads import sent
from gradwire.kvstore.request import Request
from gradwire.kvstore.sender import refuse_nonfinite
from gradwire.kvstore.shared import Clock, Shared, as_bytes

__all__ = ["DistLanes"]


class DistLanes(KVStore):
    """What a distributed store does with lists of keys.

    Args:
        type: the name it was created by.
    """

    _links: Links
    staleness: int | None
    seed: int

    def __init__(self, type: str) -> None:  # noqa: A002
        super().__init__(type)
        self._keys: dict[StoreKey, Shared] = {}
        self._lanes = Lanes(self._keys)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        roster = self._roster(key)
        singles = None if roster is None else roster.singles(value, contiguous=False)
        if roster is None or singles is None or not roster.together():
            super().push(key, value, priority)
            return
        check_priority(priority)
        mine = [(lane, [singles[place] for place in places]) for lane, places in roster.lanes]
        for lane, _ in mine:
            self._settle(lane.clock, lane.title)
        # Nothing is encoded before everything was looked at: the rest as any other push, each lane here.
        flats = [self._gathered(lane, grads, one=len(mine) == 1 and not roster.rest) for lane, grads in mine]
        if roster.rest:
            super().push([key[place] for place in roster.rest], [value[place] for place in roster.rest], priority)
        for (lane, grads), flat in zip(mine, flats, strict=True):
            self._push_lane(lane, self._lane_payload(lane, grads, flat), priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        roster = self._roster(key)
        outs = None if roster is None else roster.singles(out, contiguous=True)
        if roster is None or outs is None or not roster.are_together():
            super().pull(key, out, priority, ignore_sparse)
            return
        check_priority(priority)
        requests = [
            (lane.server, self._lane_pull(lane, [outs[i] for i in places], priority)) for lane, places in roster.lanes
        ]
        futures = self._links.ask_all(requests)
        try:
            if roster.rest:
                super().pull([key[i] for i in roster.rest], [out[i] for i in roster.rest], priority, ignore_sparse)
            self._wait_for_lanes(roster, futures)
        except BaseException:
            # What comes too late is not written into tensors that the caller has taken back.
            for future in futures:
                future.cancel()
            raise

    @abstractmethod
    def _settings(self, server: int) -> dict[str, int]:
        """What a push names: how its bytes were made, and the optimizer that it is for."""

    def _settle(self, clock: Clock, title: str) -> None:
        """Before another push: raise what the ones before it met with."""
        if self.staleness is not None:
            self._links.wait(clock.pushes, f"a push of {title}")
        clock.forget_answered()

    def _roster(self, key: Any) -> Roster | None:
        roster = self._lanes.find(key) if joinable(self.compression) else None
        if self._lanes.fresh:
            self._declare(self._lanes.fresh)
            self._lanes.fresh = []
        return roster

    def _declare(self, lanes: Sequence[Lane]) -> None:
        requests = [
            (lane.server, Request("join", {"number": lane.number, "keys": lane.keys}, declare=True)) for lane in lanes
        ]
        self._links.wait(self._links.ask_all(requests), "a list of keys")

    def _gathered(self, lane: Lane, grads: Sequence[Tensor], *, one: bool) -> Tensor:
        """Gradients side by side; checked, unless encoding them is the ``one`` thing that the call does."""
        if self.compression.push is None:
            return lane.gather(grads)
        flat = lane.gather(grads, lane.sender(self.compression, self.seed, self.rank).room())
        if not one:
            for key, grad in zip(lane.keys, grads, strict=True):
                refuse_nonfinite(key, grad.detach())
        return flat

    def _lane_payload(self, lane: Lane, grads: Sequence[Tensor], flat: Tensor) -> Tensor:
        if self.compression.push is None:
            return as_bytes(flat)
        sender = lane.sender(self.compression, self.seed, self.rank)
        return sent(self.compression.push, flat.shape, lane.encode(sender, grads, flat))

    def _push_lane(self, lane: Lane, data: Tensor, priority: int) -> None:
        lane.clock.step += 1
        fields = {"joint": lane.number, "step": lane.clock.step, **self._settings(lane.server)}
        log = ("joint", lane.number), lane.clock.step
        request = Request("push_joint", fields, data, priority=priority, log=log)
        lane.clock.pushes.append(self._links.ask(lane.server, request))

    def _lane_pull(self, lane: Lane, outs: Sequence[Tensor], priority: int) -> Request:
        fields = {"joint": lane.number, "step": lane.clock.step}
        return Request("pull_joint", fields, out=Spread(lane, outs), priority=priority)

    def _wait_for_lanes(self, roster: Roster, futures: Sequence[Future[int]]) -> None:
        # A push that was refused would be waited for in vain.
        pushes = [push for lane, _ in roster.lanes for push in lane.clock.pushes]
        bound = "" if self.staleness is None else f", at most {self.staleness} steps ahead of the slowest worker,"
        self._links.wait([*pushes, *futures], f"the pull of {roster.lanes[0][0].title}{bound}")
        for lane, _ in roster.lanes:
            lane.clock.forget_answered()
