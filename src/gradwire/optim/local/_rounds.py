"""Exchange over a meeting: workers that hand in before a round closes count, and nothing of the others is lost.

    x_i = m_i + late_i + delta_i is compressed; delta_i is the pseudo-gradient of worker i, and m_i its residual

Invariants:
    * If the round closes with this worker's payload, m_i keeps what the payload does not contain, and ``late`` is
      empty. If it closes without, m_i is what it was, and ``late`` grows by the pseudo-gradient. So over any rounds,
      whoever took part, the payloads that counted, m_i and late_i add up to all pseudo-gradients.
    * All workers decode the same payloads in the same order, and have the same bits. Where changes are weighed, the
      note that closes the round says by what: by all that a worker has made since one of its payloads counted.
    * A process that returns with a state from before a round in which an earlier process of its name counted drops its
      residuals: they were sent in that round, and what that payload left is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.none import Identity
from gradwire.engine.dense import joined
from gradwire.engine.exchange import Exchange
from gradwire.engine.part import Message, Part, Piece, Unit
from gradwire.engine.plan import Named, grouped
from gradwire.engine.strategies.base import Site, bare_pieces
from gradwire.errors import ConfigError, GroupError, Verbatim, WireError, require
from gradwire.frontends.ownership import on_rank
from gradwire.memory import facts
from gradwire.memory.none import NoMemory
from gradwire.optim._flat import FlatParameters, any_nonfinite
from gradwire.optim.local._crew import ALONE, Crew
from gradwire.optim.local.attendance import KEPT, Attendance
from gradwire.optim.local.closed import Closed
from gradwire.optim.local.meeting import Meeting
from gradwire.vocabulary import Key, tensor_id

__all__ = ["Rounds"]


class Rounds:
    """One worker's exchange over a meeting; the exchange's step is the number of the round.

    Args:
        exchange: exchange of a group of one; gives compressors, memories and what is kept.
        named: the parameters.
        meeting: meeting in which the worker takes part, with its name.
        facts: other values that must be the same on all workers.
        frozen: parameters that nobody trains, and all must have; those of the worker that comes first.
        crew: the ranks that are this worker, each with the tensors of its shard.
        weighs: true: changes are weighed by ``made``; false: all alike.

    Attributes:
        moved: true if joining has led to another state than the one that this worker had.
        forgot: true if the residual here was dropped since the last call.
        settled: true if the pseudo-gradient that was handed in last counts, or is late.
        sent: true if it counts and was not empty.
        closed: the note of the round for which it was handed in.
        kept: rounds whose payloads hang at the place.
        made: steps, or tokens, of the pseudo-gradient of this round; by them it is weighed, where it is at all.
        late_made: those of pseudo-gradients that are late.

    Raises:
        ConfigError: a method or a strategy that a meeting cannot carry.
    """

    def __init__(
        self,
        exchange: Exchange,
        named: Sequence[Named],
        meeting: Meeting,
        facts: Mapping[str, Any],
        frozen: Sequence[Tensor] = (),
        crew: Crew = ALONE,
        *,
        weighs: bool = False,
    ) -> None:
        self.exchange, self.named, self.meeting, self.frozen = exchange, list(named), meeting, list(frozen)
        self.crew = crew
        check_methods(exchange)
        self.description = exchange.describe(self.named, **facts)
        numel = sum(torch.Size(shape).numel() for _, shape in named)
        self.late = torch.zeros(numel, dtype=torch.float32, device=exchange.device)
        self.flat = torch.zeros_like(self.late)
        self.rank = int(meeting.name) if meeting.name.isdecimal() else tensor_id(meeting.name)
        self.attendance: Attendance | None = None
        self.closed: Closed | None = None
        self.kept = KEPT
        self.workers: list[str] = []
        self.shares: list[float] = []
        self.left_behind = self.nonfinite = 0
        self.weighs, self.made, self.late_made, self._brought_made, self._weight = weighs, 0.0, 0.0, 0.0, 1.0
        self.mark = ""
        # The pseudo-gradient with which this worker has joined within a round; an earlier process of its name may have
        # sent it.
        self._brought: Tensor | None = None
        self.moved = self.forgot = self.settled = self.sent = self._has_left = False
        self._made_for: Compressor | None = None
        self._current: Part | None = None

    @property
    def there(self) -> Attendance:
        """The worker's attendance of the rounds.

        Raises:
            ConfigError: the worker has not joined.
        """
        if self.attendance is None:
            got = "leave() after it" if self._has_left else "no call"
            raise ConfigError(f"join() must be called before the first step with a meeting, got {got}")
        return self.attendance

    def join(self, delta: Tensor, state: Mapping[str, FlatParameters]) -> Iterator[Tensor]:
        """Join the meeting; return the mean change of each round that is over.

        Args:
            delta: pseudo-gradient since ``state``; if the round of ``state`` is over, see ``moved``, it waits for the
                next round.
            state: state on which all agree, which whoever takes the means moves by each; or overwritten with the
                others'.
        """
        self.attendance = Attendance(self.meeting, self.kept, self.crew)
        # Before anything is sent: payloads of another configuration could not be decoded.
        self.attendance.agree(self.description)
        if self.frozen:
            self._take_frozen(self.attendance)
        before = self.exchange.step
        opened = self.attendance.come(before, self.mark)
        self.moved = self.forgot = False
        if opened is not None:
            self._begin(*opened, state)
        elif not self.attendance.holds(before, self.mark):
            self._unless_sent_elsewhere(before, self.attendance.base)
            self._fetch(state, self.attendance.base)
        self.mark = self.attendance.mark
        yield from self._follow(state, known=True)
        self.moved = self.moved or self.exchange.step != before
        if self.moved and not self.forgot:
            self.late.add_(delta)
            self.late_made += self.made
        if self.moved:
            self.made = 0.0
        brought = not self.moved and self.crew.anywhere(bool(delta.any()))
        self._brought = delta.clone() if brought else None
        self._brought_made = self.made if self._brought is not None else 0.0

    def _take_frozen(self, there: Attendance) -> None:
        """Take over the frozen parameters of the worker that came first; they stay at the place, for all who come."""
        frozen = [on_rank(each) for each in self.frozen]
        settled = there.settle("frozen", [partial(bytes_of, each) for each in frozen])
        for param, data in zip(frozen, settled, strict=True):
            if data is not None:
                param.copy_(in_memory(data, torch.uint8).view(param.dtype).view(param.shape))
                self.exchange.counters.bytes_received += len(data)

    def leave(self) -> None:
        """Leave the meeting."""
        if self.attendance is not None:
            self.attendance.leave(self.exchange.step)
            self.attendance, self._has_left = None, True

    def means(self, delta: Tensor, state: Mapping[str, FlatParameters]) -> Iterator[Tensor]:
        """Hand in a change; return the mean change of the round, and of each that was closed while this worker was
        late.

        Args:
            delta: flat float32.
            state: state on which all agree, which whoever takes the means moves by each; others may be sent it.
        """
        t, there = self.exchange.step + 1, self.there
        self.exchange.counters.dense_bytes += delta.nbytes
        # First, because the ranks of this worker may fail to answer.
        self.forgot = self.settled = False
        finite = not self.crew.anywhere(any_nonfinite([delta]))
        counted = not there.is_closed(t) and self.hand_in(t, delta, finite=finite)
        self.settled = True
        if not counted:
            self.left_behind += 1
            self.crew.warn(
                "round %d closed without this worker, %s: its pseudo-gradient goes with that of its next round",
                t,
                there.name,
            )
        try:
            yield from self._follow(state, known=counted)
        finally:
            # After it, because an earlier process whose payload is in the round has not sent what was gone since.
            if finite and not counted:
                self.late.add_(delta)
                self.late_made += self.made
                if self.forgot and self._brought is not None:
                    self.late.sub_(self._brought)
                    self.late_made = max(0.0, self.late_made - self._brought_made)
            self._brought, self.made, self._brought_made = None, 0.0, 0.0

    def metrics(self) -> dict[str, Any]:
        """Return the rounds that closed without this worker, the workers of the last round, their shares of its mean,
        and the norm of late payloads.
        """
        return {
            "left_behind": self.left_behind,
            "workers": list(self.workers),
            "shares": list(self.shares),
            "late_norm": float(self.late.norm()),
            "nonfinite_steps": self.nonfinite,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the payloads that were late, the meeting of the round, and by what changes are weighed."""
        return {"late": self.late, "meeting": self.mark, "weights": self.weights()}

    def weights(self) -> list[float]:
        """The steps or tokens of what was not sent yet: of this round, and of what is late."""
        return [self.made, self.late_made]

    def count(self, number: float) -> None:
        """Count steps, or tokens, of this round."""
        self.made += number

    def check_late(self, late: Tensor | None) -> None:
        """Refuse payloads that were late and that there is no room for, as fragments keep them in the parameters."""
        fits = late is None or late.shape == self.late.shape or not late.any()
        allowed = "saved when all had counted in a round, to go on with fragments, without, or with another model"
        require(fits, "state_dict", allowed, Verbatim("one with a change that was late"))

    def load(self, late: Tensor | None, mark: str = "", weights: Sequence[float] = (0.0, 0.0)) -> None:
        """Continue from a ``state_dict`` that was checked; None if the state was saved without a meeting."""
        self._current, self.mark = None, mark
        # The weights of fragments are more numbers, and of one of them they are those of the whole model.
        self.made, self.late_made = weights if len(weights) == 2 else (max(weights), 0.0)
        if late is None or late.shape != self.late.shape:
            self.late.zero_()
        else:
            self.late.copy_(late)

    def _begin(self, base: int, closed: Closed, state: Mapping[str, FlatParameters]) -> None:
        """Start at the opening of the meeting: all workers take the state that one of them holds."""
        there = self.there
        if there.name not in closed.need:
            self.exchange.protocol.go_to(base)
            self._speak(base, closed, state)
            return
        self._unless_sent_elsewhere(self.exchange.step, base)
        data = there.state(base, nbytes_of(state), there.meeting.timeout)
        if data is not None:
            self.crew.together(partial(self._take, base, data, state))
        elif there.is_closed(base + 1):
            self._fetch(state, base)
        else:
            raise GroupError(
                f"worker {closed.speaker!r} did not say within {there.meeting.timeout:g} s where all workers start: "
                "start a new meeting place"
            )

    def _unless_sent_elsewhere(self, before: int, base: int) -> None:
        """Forget the residuals in a state older than the opening of this meeting, which may have been sent since."""
        if 0 < before < base:
            self._forget(
                f"it has the state after round {before} of another meeting, and this one began with that "
                f"after round {base}"
            )

    def _forget(self, why: str) -> None:
        """Forget all residuals, and warn if one is not zero."""
        kept = [tensor for tensors in self.exchange.residuals.worker.values() for tensor in tensors.values()]
        if any(bool(tensor.any()) for tensor in [self.late, *kept]):
            self.crew.warn(
                "worker %s forgets the residual that it came with: %s. Save after every round to lose nothing",
                self.there.name,
                why,
            )
        self.exchange.residuals.load_state_dict({})
        self.late.zero_()
        self.late_made = 0.0
        self._current, self.forgot = None, True

    def _unless_sent(self, t: int, closed: Closed) -> None:
        if self.there.sent_by_another(closed):
            self._forget(f"in round {t} an earlier process of this name sent from it")

    def _follow(self, state: Mapping[str, FlatParameters], *, known: bool) -> Iterator[Tensor]:
        """Apply the rounds that this worker has not seen, until none is left.

        Args:
            known: the others expect this worker in the next round.
        """
        there = self.there
        while True:
            while (closed := self._closed(self.exchange.step + 1)) is not None:
                rows = self._rows(self.exchange.step + 1, closed)
                # They were taken down: this worker is further behind than payloads are kept.
                if rows is None:
                    self._fetch(state, self.exchange.step)
                    known = True
                    continue
                self._unless_sent(self.exchange.step + 1, closed)
                self.workers, self.shares = closed.sent, closed.shares
                if rows:
                    yield self.crew.together(partial(self._mean, self.exchange.step + 1, closed, rows))
                self.exchange.protocol.go_to(self.exchange.step + 1)
                known = there.counted(closed)
                if known:
                    self._speak(self.exchange.step, closed, state)
            if known:
                return
            # The others did not expect this worker, and learn here from which round on it takes part.
            there.announce(self.exchange.step)
            known = True

    def _closed(self, t: int) -> Closed | None:
        """The note of a round, if it is closed."""
        return self.there.closed(t) if self.there.is_closed(t) else None

    def _rows(self, t: int, closed: Closed) -> list[bytes] | None:
        return self.there.payloads(t, closed)

    def _mean(self, t: int, closed: Closed, rows: Sequence[bytes]) -> Tensor:
        return self._decode(self._part(t), rows, closed.shares)

    def _speak(self, t: int, closed: Closed, state: Mapping[str, FlatParameters]) -> None:
        # One worker is enough, and all of them know from the note which one.
        if closed.need and closed.speaker == self.there.name:
            kept = [flat.data for _, flat in sorted(state.items())]
            data = self.crew.together(lambda: torch.cat(kept).cpu().numpy().tobytes())
            self.exchange.counters.bytes_sent += len(data)
            self.there.publish(t, data)

    def _fetch(self, state: Mapping[str, FlatParameters], seen: int) -> None:
        """Fetch the state from any worker that has it.

        Args:
            seen: the last round of this meeting of which this worker knows.
        """
        t, data = self.there.fetch(nbytes_of(state))
        for missed in range(seen + 1, t + 1):
            self._unless_sent(missed, self.there.closed(missed))
        self.crew.together(partial(self._take, t, data, state))

    def _take(self, t: int, data: bytes, state: Mapping[str, FlatParameters]) -> None:
        flats = [flat.data for _, flat in sorted(state.items())]
        found = torch.split(in_memory(data, torch.float32), [flat.numel() for flat in flats])
        for flat, values in zip(flats, found, strict=True):
            flat.copy_(values)
        self.exchange.counters.bytes_received += len(data)
        self.exchange.protocol.go_to(t)
        self.moved = True

    def hand_in(self, t: int, delta: Tensor, *, finite: bool) -> bool:
        """Hand in for the round; return whether it closed with this worker. Without a finite payload it takes part, and
        sends nothing.
        """
        there, part, counters, encoded = self.there, self._part(t), self.exchange.counters, False
        self.flat.copy_(delta).add_(self.late)

        def encode() -> tuple[bool, bytes]:
            nonlocal encoded
            with counters.timed("encode"):
                part.encode(self.flat, self._message, Key(seed=self.exchange.seed, step=t, rank=self.rank))
            encoded = True
            if self._message.status:
                return True, b""
            return False, self._send[: part.close_gaps(self._message, self._send)].cpu().numpy().tobytes()

        payload, self.sent = b"", False
        try:
            if finite:
                bad, payload = self.crew.together(encode)
                # What one shard cannot send none does, or it would be half a change.
                payload = b"" if self.crew.anywhere(bad) else payload
            sends = self.crew.anywhere(bool(payload))
            weight = self._weigh()
            with counters.timed("communicate"):
                self.closed = there.hand_in(t, payload, weight, sends)
            counted = there.counted(self.closed)
        except BaseException:
            # This worker learns whether the payload counts when it joins again; until then nothing was sent.
            if encoded:
                part.rollback(self.flat)
            self.attendance = None
            raise
        counters.bytes_sent += len(payload)
        self.nonfinite += not sends
        self.sent = sends and counted
        if self.sent:
            self.late.zero_()
            self.late_made = 0.0
        elif finite:
            # The payload does not count, so the residual becomes what it was, and the pseudo-gradient late.
            part.rollback(self.flat)
        return counted

    def _weigh(self) -> float:
        """The weight of what is handed in. Each rank of a worker tells the tokens of its own batches."""
        if self.weighs:
            # Whoever has made nothing since its last round still has a residual to send, which is of steps as before.
            self._weight = self.crew.total(self.made + self.late_made) or self._weight
        return self._weight

    def _decode(self, part: Part, rows: Sequence[bytes], shares: Sequence[float]) -> Tensor:
        # Payloads whose status is set are never handed in, so there is nothing to undo.
        never = torch.zeros((), dtype=torch.bool, device=self.flat.device)

        def decode() -> None:
            part.begin(self.flat)
            for row, share in zip(rows, shares, strict=True):
                self.exchange.counters.bytes_received += len(row)
                buffer = in_memory(row, torch.uint8).to(self.flat.device)
                self._add(part, buffer, share)
            part.settle(self.flat)

        with self.exchange.counters.timed("decode"):
            part.deliver(self.flat, never, decode)
        return self.flat

    def _add(self, part: Part, row: Tensor, scale: float) -> None:
        if row.numel() < part.packing.nbytes and all(piece.unit.compressor.fixed_size for piece in part.pieces):
            raise WireError(f"a message of this round has {part.packing.nbytes} bytes, got {row.numel()}")
        for piece, payload in zip(part.pieces, part.payloads(row), strict=True):
            # The bytes come from another process and are checked before any of them is decoded.
            piece.unit.compressor.check_payload(payload, piece.shape)
            piece.unit.compressor.add_decoded(payload, piece.of(self.flat), scale)

    def _part(self, t: int) -> Part:
        """The pieces and buffers for the compressor of a round, over the tensors kept now."""
        exchange = self.exchange
        warm = t <= exchange.methods.policy.start_after
        main = None if warm else exchange.methods.policy.at(t - 1, exchange.methods.compressor)
        if self._current is None or main != self._made_for:
            self._made_for, self._current = main, Part(self._pieces(main))
            self._message = Message(self._current.packing, exchange.device)
            self._send = torch.zeros_like(self._message.buffer)
        return self._current

    def _pieces(self, main: Compressor | None) -> list[Piece]:
        """The pieces of all parameters; None in the dense warm-up."""
        exchange = self.exchange
        units, _, _ = grouped(
            self.named, lambda _: main or Identity(), exchange.methods.policy, exchange.methods.memory_for
        )
        units = units if main is not None else []
        site = Site(exchange.channel, exchange.device, exchange.residuals)
        pieces, compressed = site.pieces(units), {name for unit in units for name, _ in unit.members}
        plain, lo = list[tuple[int, int]](), 0
        for name, shape in self.named:
            hi = lo + torch.Size(shape).numel()
            meant = exchange.methods.policy.meant(name, main or exchange.methods.compressor)
            memory = None if name in compressed else facts.dense(exchange.methods.memory_for(meant))
            if memory is not None:
                pieces += site.pieces([Unit(((name, hi - lo),), (hi - lo,), lo, Identity(), memory)])
            elif name not in compressed:
                plain.append((lo, hi))
            lo = hi
        for lo, hi in joined(plain):
            unit = Unit(((f"[{lo}]", hi - lo),), (hi - lo,), lo, Identity(), NoMemory())
            pieces += bare_pieces([unit])
        return pieces


def bytes_of(tensor: Tensor) -> bytes:
    """The elements in their order, whatever their order in memory."""
    # Whoever views them as bytes needs strides of their own, also of a single element.
    flat = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).view(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def in_memory(data: bytes, dtype: torch.dtype) -> Tensor:
    """A tensor with these bytes; torch makes none from an empty buffer, which a shard without elements has."""
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype, device="cpu")


def nbytes_of(state: Mapping[str, FlatParameters]) -> int:
    return sum(flat.data.nbytes for flat in state.values())


def check_methods(exchange: Exchange) -> None:
    """Refuse methods that cannot work in messages to workers that are not known beforehand."""
    require(exchange.methods.strategy is None, "strategy", "left out with a meeting", exchange.methods.strategy)
    for each in (exchange.methods.compressor, *exchange.methods.policy.overrides.values()):
        alone = not capabilities.in_rounds(each)
        require(alone, "compressor", "a method of one message with a meeting, not one averaged in rounds", each.name)
        allowed = "a method whose payloads are averaged one by one with a meeting"
        require(capabilities.average(each), "compressor", allowed, each)
        memory = exchange.methods.memory_for(each)
        allowed = "one that keeps nothing of the mean with a meeting"
        require(not facts.keeps_mean(memory), "memory", allowed, memory.name)
