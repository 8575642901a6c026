"""Fragments over a meeting: each exchange of a fragment is a round, and its number says which fragment it is.

Invariants:
    * Round t is that of fragment (t - 1) mod P, on all workers: whoever comes late learns it with the number.
    * A change that was not sent, because the round closed without this worker, stays in its parameters: these follow
      the agreed ones, p = agreed + (p - agreed before). So it goes whole with its next round of the fragment, and over
      any rounds the payloads that counted, the residuals and agreed - p add up to all changes.
    * One fragment is under way at most. From its sending until it has landed the thread alone uses the place.
    * A process that returns with a state from before a round in which an earlier process of its name counted drops the
      residual of that fragment, and of its change what it came with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named
from gradwire.optim._flat import FlatParameters, any_nonfinite
from gradwire.optim.local._crew import ALONE, Crew
from gradwire.optim.local._flight import Flight
from gradwire.optim.local._fragments import Fragment, Fragments
from gradwire.optim.local._rounds import Rounds
from gradwire.optim.local.attendance import KEPT
from gradwire.optim.local.closed import Closed
from gradwire.optim.local.meeting import Meeting

__all__ = ["StreamedRounds"]


class StreamedRounds(Rounds):
    """One worker's exchange of fragments over a meeting; the exchange's step is the number of the round.

    Args:
        exchange, meeting, facts, frozen: arguments of ``Rounds``.
        named: the parameters, in the order of their fragments.
        fragments: the fragments.
        gather: writes the change of a fragment into its part of ``delta``.
        put: sets the parameters of a fragment to the agreed ones without ``delta``.
        delta: change of all parameters.
        crew: the ranks that are this worker, each with the tensors of its shard.
        weighs: true: changes are weighed by the steps, or tokens, since their fragment was sent.
    """

    def __init__(
        self,
        exchange: Exchange,
        named: Sequence[Named],
        meeting: Meeting,
        facts: Mapping[str, Any],
        frozen: Sequence[Tensor],
        fragments: Fragments,
        gather: Callable[[Fragment], None],
        put: Callable[[Fragment], None],
        delta: Tensor,
        crew: Crew = ALONE,
        *,
        weighs: bool = False,
    ) -> None:
        super().__init__(exchange, named, meeting, facts, frozen, crew, weighs=weighs)
        # What is late is in the parameters.
        self.late = self.flat = torch.zeros(0)
        self.fragments, self._gather, self._put, self.delta = fragments.all, gather, put, delta
        self.kept = KEPT * len(self.fragments)
        self._codecs = [
            Rounds(exchange, named[each.numbers], meeting, facts, crew=crew, weighs=weighs) for each in self.fragments
        ]
        # By fragment; what is under way has that of its codec.
        self._made_in = [0.0] * len(self.fragments)
        self._came_with = list(self._made_in)
        self._flight: tuple[Fragment, Flight] | None = None
        self._arrived: dict[int, tuple[Closed, list[bytes] | None, Tensor | None]] = {}
        self._dropped: set[int] = set()
        self._sent_at = ""
        self._own: Tensor | None = None
        self._came_flying: Flight | None = None

    def fragment(self, t: int) -> Fragment:
        """The fragment of a round."""
        return self.fragments[(t - 1) % len(self.fragments)]

    def come(self, state: Mapping[str, FlatParameters], under_way: tuple[Fragment, Flight] | None) -> Iterator[Tensor]:
        """Join the meeting; return the mean change of each round that is over, whose fragment ``fragment`` tells.

        Args:
            state: state on which all agree.
            under_way: the exchange that was under way in the state that this worker came with.
        """
        self._arrived.clear()
        self._dropped.clear()
        for each in self.fragments:
            self._gather(each)
        own = self.delta.clone()
        self._came_with = [sum(each) for each in zip(self._made_in, (one.made for one in self._codecs), strict=True)]
        if under_way is not None and self.sent:
            own[under_way[0].span] -= under_way[1].own.data
            self._came_with[under_way[0].place] -= self._codecs[under_way[0].place].made
        # An earlier process of this name may have sent it since.
        self._own = own if own.any() else None
        self._flight, self._sent_at = under_way, self.mark
        self._came_flying = None if under_way is None else under_way[1]
        yield from self.join(torch.zeros(0), state)
        if self._flight is not None and self.sent:
            # Its round was at another place, and is none here: the change is still in the parameters.
            self._forget("a fragment that was under way was sent at another meeting", (self._flight[0],))
            self._dropped.clear()
        if self._flight is not None:
            (fragment, flight), self._flight = self._flight, None
            codec = self._codecs[fragment.place]
            if self.sent:
                # It is what this worker came with after all, and an earlier process may have sent it here.
                self._own = torch.zeros_like(self.delta) if self._own is None else self._own
                self._own[fragment.span] += flight.own.data
                self._came_with[fragment.place] += codec.made
            self._made_in[fragment.place] += codec.made
            codec.made = 0.0

    def count(self, number: float) -> None:
        self._made_in = [made + number for made in self._made_in]

    def weights(self) -> list[float]:
        return [*self._made_in, *(each.made for each in self._codecs)]

    def depart(self, fragment: Fragment) -> None:
        """Take what was made of a fragment for what is handed in with its next round."""
        self._codecs[fragment.place].made, self._made_in[fragment.place] = self._made_in[fragment.place], 0.0

    def run(self, t: int, flat: Tensor) -> bool:
        """Hand in the change of a fragment for round t, on the thread, and fetch what the others have handed in."""
        there, codec = self.there, self._codecs[self.fragment(t).place]
        self.exchange.counters.dense_bytes += flat.nbytes
        codec.attendance, codec.sent = there, False
        try:
            finite = not self.crew.anywhere(any_nonfinite([flat]))
            counted = not there.is_closed(t) and codec.hand_in(t, flat, finite=finite)
            closed = codec.closed if counted and codec.closed is not None else there.closed(t)
            rows = there.payloads(t, closed)
            mean = self.crew.together(partial(codec._mean, t, closed, rows)) if rows else None
            self._arrived[t] = closed, rows, mean
        except BaseException:
            # This worker learns whether the payload counts when it joins again.
            self.attendance = None
            raise
        self.sent = codec.sent
        self.nonfinite += codec.nonfinite
        codec.nonfinite = 0
        return True

    def land(self, fragment: Fragment, flight: Flight, state: Mapping[str, FlatParameters]) -> Iterator[Tensor]:
        """Return the mean change of the round that is over; and of those that a worker that was late has missed."""
        self._flight = fragment, flight
        self._sent_at = self.mark
        counted = self.there.counted(self._arrived[self.exchange.step + 1][0])
        if not counted:
            self.left_behind += 1
            self.crew.warn(
                "round %d closed without this worker, %s: its change goes with the next round of the fragment",
                self.exchange.step + 1,
                self.there.name,
            )
        try:
            yield from self._follow(state, known=counted)
        finally:
            self._arrived.clear()
        if self._flight is not None:
            # Nobody has sent anything in this round.
            self.unsent(fragment)
            self._put(fragment)

    def catch_up(self, state: Mapping[str, FlatParameters]) -> Iterator[Tensor]:
        """Return the mean change of each round that was closed since, before this worker hands in for the next."""
        yield from self._follow(state, known=True)

    def unsent(self, fragment: Fragment) -> None:
        """Write the change of a fragment that is still to be sent into its part of ``delta``."""
        self._gather(fragment)
        delta = self.delta[fragment.span]
        if self._flight is not None and self._flight[0] is fragment:
            flight, self._flight = self._flight[1], None
            codec = self._codecs[fragment.place]
            made, codec.made = codec.made, 0.0
            came, self._came_flying = flight is self._came_flying, None
            if flight.spoilt:
                delta.zero_()
            elif self.sent:
                delta.sub_(flight.own.data)
                # What it came with was in what this process has sent; but the exchange with which it came had left
                # before the rest of that was trained.
                if not came:
                    self._came_with[fragment.place] = 0.0
                    if self._own is not None:
                        self._own[fragment.span] = 0.0
            else:
                self._made_in[fragment.place] += made
            flight.land()
        if fragment.place in self._dropped:
            self._dropped.remove(fragment.place)
            # Sums of tokens that are no integers may be rounded.
            left = self._made_in[fragment.place] - self._came_with[fragment.place]
            self._made_in[fragment.place] = max(0.0, left)
            self._came_with[fragment.place] = 0.0
            if self._own is not None:
                delta.sub_(self._own[fragment.span])
                self._own[fragment.span] = 0.0

    def load(self, late: Tensor | None, mark: str = "", weights: Sequence[float] = (0.0, 0.0)) -> None:
        super().load(late, mark, weights)
        count = len(self.fragments)
        known = weights if len(weights) == 2 * count else [self.made] * count + [0.0] * count
        self._made_in = list(known[:count])
        for codec, made in zip(self._codecs, known[count:], strict=True):
            codec.made = made

    def metrics(self) -> dict[str, Any]:
        told = super().metrics()
        del told["late_norm"]
        return told

    def _closed(self, t: int) -> Closed | None:
        # What the thread has fetched needs no question to the place, for which training would wait.
        if self._arrived:
            return self._arrived[t][0] if t in self._arrived else None
        return super()._closed(t)

    def _rows(self, t: int, closed: Closed) -> list[bytes] | None:
        return self._arrived[t][1] if t in self._arrived else super()._rows(t, closed)

    def _mean(self, t: int, closed: Closed, rows: Sequence[bytes]) -> Tensor:
        mean = self._arrived[t][2] if t in self._arrived else None
        return self._codecs[self.fragment(t).place]._mean(t, closed, rows) if mean is None else mean

    def _take(self, t: int, data: bytes, state: Mapping[str, FlatParameters]) -> None:
        for each in self.fragments:
            self.unsent(each)
        super()._take(t, data, state)
        for each in self.fragments:
            self._put(each)

    def _unless_sent(self, t: int, closed: Closed) -> None:
        fragment = self.fragment(t)
        # What is under way is that of the next round; in a later one of the fragment a process before has sent more.
        known = self._flight is not None and t == self.exchange.step + 1 and self.sent
        if not (known and self._sent_at == self.mark) and self.there.sent_by_another(closed):
            self._forget(f"in round {t} an earlier process of this name sent from it", (fragment,))

    def _forget(self, why: str, fragments: Sequence[Fragment] = ()) -> None:
        dropped = fragments or self.fragments
        names = {name for each in dropped for name, _ in self.named[each.numbers]}
        kept = [tensor for name in names for tensor in self.exchange.residuals.tensors_of(name)]
        change = self._own is not None and any(bool(self._own[each.span].any()) for each in dropped)
        if change or any(bool(tensor.any()) for tensor in kept):
            self.crew.warn(
                "worker %s forgets the residual that it came with, in %d fragments: %s",
                self.meeting.name,
                len(dropped),
                why,
            )
        self.exchange.residuals.rescale(0.0, names)
        self._dropped |= {each.place for each in dropped}
        self.forgot = True
