"""Fragments of a model, and the clock by which each of them is exchanged while its rank trains on.

Invariants:
    * A parameter is in one fragment, and the fragments follow from names alone, which the ranks have compared.
    * Fragment p of P leaves in the steps t = (p + 1) every // P of a period, and arrives ``delay`` steps later: all
      ranks send and apply it in the same steps, however long the network takes. Nobody waits but in that step.
    * A fragment is under way once at most (delay <= every), and several of them may be at the same time. One thread
      exchanges them, in the order in which they left; until they have arrived nobody else may touch the exchange.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Literal, NamedTuple

from torch import Tensor

from gradwire.errors import ConfigError, require
from gradwire.optim.local._flight import Flight
from gradwire.transport.worker import Worker

__all__ = ["Deal", "Fragment", "Fragments", "deal", "layer_of"]

Deal = Literal["strided", "contiguous"]

_LAYER = re.compile(r"(?:.*?\.)??\d+(?=\.)")
_UNNAMED = re.compile(r"\d+\.\d+")


class Fragment(NamedTuple):
    """A part of the parameters.

    Attributes:
        place: place of the fragment among all of them.
        numbers: places of its parameters among all of them, one after the other.
        span: place of its elements in a flat tensor of all parameters.
    """

    place: int
    numbers: slice
    span: slice


def layer_of(name: str) -> str | None:
    """The layer of a parameter: its name up to the first number; None if there is no number in it.

    >>> layer_of("blocks.3.norm.weight"), layer_of("head.weight")
    ('blocks.3', None)
    """
    found = _UNNAMED.fullmatch(name) or _LAYER.match(name)
    return None if found is None else found.group()


def deal(names: Sequence[str], count: int, how: Deal = "strided") -> list[list[int]]:
    """Deal the layers of a model to fragments; return the numbers of the parameters in each.

    A layer is what shares the name up to its first number, such as ``blocks.3``. With more than one fragment, what
    precedes the layers (embeddings) and what follows them (the last norm, the head) are two fragments more.

    Args:
        names: names of the parameters, in order.
        count: fragments to which layers are dealt, >= 1. 1: everything is in one fragment.
        how: "strided": layers p, p + count, ... to fragment p; "contiguous": neighbours.

    Raises:
        ConfigError: there are fewer layers than fragments.

    >>> deal(["tok.weight", "blocks.0.weight", "blocks.1.weight", "blocks.2.weight", "head.weight"], 2)
    [[0], [1, 3], [2], [4]]
    """
    if count == 1:
        return [list(range(len(names)))]
    layers, before, after = dict[str, list[int]](), list[int](), list[int]()
    for number, name in enumerate(names):
        layer = layer_of(name)
        if layer is not None:
            layers.setdefault(layer, []).append(number)
        else:
            (after if layers else before).append(number)
    fits = f"at most {len(layers)}, the layers whose number is in the names of their parameters"
    allowed = fits if layers else "1 or None for a model without the numbers of layers in the names of its parameters"
    require(count <= len(layers), "DiLoCo.fragments", allowed, count)
    each, total = list(layers.values()), len(layers)
    if how == "strided":
        parts = [each[p::count] for p in range(count)]
    else:
        parts = [each[p * total // count : (p + 1) * total // count] for p in range(count)]
    return [part for part in (before, *(list(chain.from_iterable(part)) for part in parts), after) if part]


class Fragments:
    """The fragments of a model whose parameters are in the order of their fragments, and their exchanges under way.

    Args:
        params: tensors of the sizes of the parameters, on their device.
        sizes: number of parameters in each fragment.
        every: steps of a period, in which every fragment is exchanged once.
        delay: steps for which an exchange is under way, 0 to ``every``.
        thread: function that makes the thread on which they are exchanged.

    Attributes:
        clock: steps made in this period.
        waited: seconds for which training has waited for exchanges that had not arrived when they were due.
        sent: exchanges that were started; the same on all ranks after the same step, as the exchange's own count, which
            a thread advances, is not.
        met: places of the fragments in which all ranks have just met, and nobody has trained since.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        sizes: Sequence[int],
        every: int,
        delay: int,
        thread: Callable[[], Worker] = Worker,
    ) -> None:
        self.params, self.every, self.delay = params, every, delay
        self.clock, self.waited, self.sent = 0, 0.0, 0
        self.all = list[Fragment]()
        number = place = 0
        for index, size in enumerate(sizes):
            numel = sum(param.numel() for param in params[number : number + size])
            self.all.append(Fragment(index, slice(number, number + size), slice(place, place + numel)))
            number, place = number + size, place + numel
        self.met = set[int]()
        self._flights: dict[int, Flight] = {}
        self._thread, self._worker = thread, thread()
        self._flown = self._ready = 0
        self._last = [0] * len(self.all)

    def turn(self) -> tuple[bool, int]:
        """Count a step at a meeting, where rounds say which fragment leaves.

        Returns:
            True if the exchange under way is due; and the steps for which one could have left, 0 if none may.
        """
        self.clock, self._flown = self.clock % self.every + 1, self._flown + 1
        offsets = {(each.place + 1) * self.every // len(self.all) for each in self.all}
        self._ready += self._ready > 0 or self.clock in offsets
        return bool(self._flights) and self._flown >= self.delay, self._ready

    def wants(self, fragment: Fragment) -> bool:
        """Return whether a fragment is the one that this worker has not sent for longest; a worker that is slower than
        the others would else send the same one whenever it comes, and not the rest. In time any will do.
        """
        return self._last[fragment.place] == min(self._last) or self._ready > self.every // len(self.all)

    def tick(self) -> tuple[list[Fragment], list[Fragment]]:
        """Count a step; return the fragments that are due to arrive after it, and those that then leave."""
        self.met.clear()
        self.clock = self.clock % self.every + 1
        offsets = [(each.place + 1) * self.every // len(self.all) for each in self.all]
        due = [(offset + self.delay - self.clock) % self.every == 0 for offset in offsets]
        arrive = [each for each, now in zip(self.all, due, strict=True) if now and each.place in self._flights]
        return arrive, [each for each, offset in zip(self.all, offsets, strict=True) if offset == self.clock]

    def under_way(self) -> list[Fragment]:
        """The fragments whose exchange is not applied yet."""
        return [self.all[index] for index in sorted(self._flights)]

    def send(
        self, fragment: Fragment, exchanged: Callable[[Tensor], bool], delta: Tensor, spoilt: bool = False
    ) -> None:
        """Start the exchange of a change.

        Args:
            fragment: the fragment.
            exchanged: replaces a flat tensor by its mean over the ranks and says whether that is finite.
            delta: flat float32; copied.
            spoilt: the change of another shard is not finite.
        """
        flight = Flight(self.params[fragment.numbers], self._worker)
        flight.begin(exchanged, delta, spoilt)
        self._flights[fragment.place] = flight
        self.sent += 1
        self._last[fragment.place] = self.sent
        self._flown = self._ready = 0

    def arrived(self, fragment: Fragment) -> Flight:
        """Wait for an exchange that is due; it stays under way if it failed.

        Raises:
            GroupError: the exchange failed.
        """
        began = time.perf_counter()
        try:
            self._flights[fragment.place].wait()
        finally:
            self.waited += time.perf_counter() - began
        return self._flights.pop(fragment.place)

    def settle(self) -> None:
        """Wait until no thread works on the exchange any more; what has arrived is applied when it is due.

        Raises:
            GroupError: an exchange failed.
        """
        for flight in self._flights.values():
            flight.wait()

    def rest(self) -> None:
        """Wait as ``settle`` does, for whoever does not need what arrives: exchanges may have failed."""
        for flight in self._flights.values():
            with suppress(Exception):
                flight.wait()

    @property
    def period(self) -> list[int]:
        """The numbers from which the clock follows: by another clock fragments would leave before they have arrived."""
        return [len(self.all), self.every, self.delay]

    def state_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the clock, and the exchanges that are over and not applied."""
        flights = {
            str(each.place): self._flights[each.place].state_dict(names[each.numbers]) for each in self.under_way()
        }
        return {"clock": self.clock, "flights": flights, "period": self.period, "met": sorted(self.met)}

    def load(self, state: Mapping[str, Any], names: Sequence[str], clock: int, sent: int) -> None:
        """Continue from a ``state_dict`` that was checked.

        Args:
            state: the state; empty if it was saved without fragments.
            names: names of the parameters.
            clock: steps made in this period, for a state without them.
            sent: exchanges that were started.
        """
        # A thread whose job has failed does no other one.
        self._flights, self._worker, self.sent = {}, self._thread(), sent
        self._flown, self._ready, self._last = 0, 0, [sent] * len(self.all)
        self.clock = state.get("clock", clock) % self.every
        # What all have just met in is the same for any fragments only if it is all of them.
        self.met = set(state.get("met", ())) if state.get("period") == self.period else set()
        for index, saved in state.get("flights", {}).items():
            fragment = self.all[int(index)]
            flight = Flight(self.params[fragment.numbers], self._worker)
            flight.load(saved, names[fragment.numbers])
            self._flights[fragment.place] = flight

    def check(self, state: Mapping[str, Any], names: Sequence[str]) -> None:
        """Refuse a state whose exchanges under way are those of other fragments, or of another period or delay."""
        for index, saved in state.get("flights", {}).items():
            known = state.get("period") == self.period
            if not known or set(saved["own"]) != set(names[self.all[int(index)].numbers]):
                raise ConfigError(
                    "state_dict must be one with the same fragments, every and delay, or be saved after "
                    f"synchronize(), got one in which fragment {index} was under way"
                )

    def __iter__(self) -> Iterator[Fragment]:
        return iter(self.all)
