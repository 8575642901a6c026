"""Rounds of workers that come and go.

    hand in      a payload for round t; the round closes when all that are expected have, or at the deadline, or when a
                 quorum has and the first of them waits for it
    closed/t     the note that closes it: who came, whose payloads count, who takes part in t + 1, and who needs the
                 state after t

Invariants:
    * A round is closed by the note that is put up first, whoever wrote it. So all agree on who came, without a leader.
    * Expected are the workers of the note before, and those that have said since that they hold that state.
    * Payloads are kept for ``kept`` rounds, so a worker that was a little late applies these rounds by itself. A worker
      that comes later asks for the state, and one of those that came puts it up when the round ends.
    * Notes of closed rounds are kept: they tell a worker that comes again in which rounds an earlier process of its
      name counted.
    * A meeting has a mark of its own, because rounds of the same number at two places need not have led to the same
      state.
    * A worker of several ranks has one name and one token. Its first rank reads and writes the notes; each rank hangs
      up and takes what belongs to its own shard, so nothing grows with the number of shards but the notes of sizes.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from gradwire._system import Readings
from gradwire.errors import ConfigError, GroupError, WireError
from gradwire.notices import log
from gradwire.optim.local._crew import ALONE, Crew
from gradwire.optim.local.board import Board
from gradwire.optim.local.closed import Closed, Handed, in_order
from gradwire.optim.local.meeting import Meeting

__all__ = ["KEPT", "Attendance"]


KEPT = 2
"""Rounds of a whole model whose payloads and states hang at the place."""

NOBODY = Handed(0, "")
"""The payload of a worker that did not come."""

LOOK = 0.05
"""Seconds from one look of a worker to the next, at whether a round has its quorum."""


class Attendance:
    """One worker's place in the rounds.

    Args:
        meeting: meeting in which the worker takes part, with its name.
        kept: rounds whose payloads and states hang at the place.
        crew: the ranks that are this worker.

    Attributes:
        due: set while somebody on this worker waits for the round to close.
    """

    def __init__(self, meeting: Meeting, kept: int = KEPT, crew: Crew = ALONE) -> None:
        self.meeting, self.name, self.kept, self.crew = meeting, meeting.name, kept, crew
        self.due = threading.Event()
        self.due.set()
        self.board: Board = crew.together(meeting.open)
        self.token = crew.lead(lambda: meeting.system.random(16).hex())
        # A worker that was stopped has not waited meanwhile.
        self._clock = Readings(meeting.system.clock, meeting.deadline)
        self._asked: int | None = None  # After which round it has asked for the state of the next, if it has.

    def agree(self, description: str) -> None:
        """Compare the configuration with that of the worker that came first, and that of each shard with its peers'.

        Raises:
            ConfigError: the worker has another configuration.
        """
        self.crew.together(lambda: self._agree(description))

    def _agree(self, description: str) -> None:
        # The first rank under the name that a worker of one rank has, so that one of each kind notice each other.
        theirs = self.board.first("config" if self.crew.first else f"config{self.crew.place}", description)
        if theirs != description:
            place = next((i for i, (a, b) in enumerate(zip(theirs, description, strict=False)) if a != b), 0)
            around = slice(max(0, place - 40), place + 40)
            raise ConfigError(
                f"worker {self.name!r} must be configured as the meeting at {self.board.place} is, "
                f"...{theirs[around]}..., got ...{description[around]}..."
            )

    def settle(self, name: str, parts: Sequence[Callable[[], bytes]]) -> Iterator[bytes | None]:
        """Let all have the bytes of the worker that is first under this name; they stay at the place.

        Args:
            parts: functions that return the parts of this worker's bytes, which are as long as everybody's.

        Yields:
            The part of the first worker; None where this one has the same.

        Raises:
            GroupError: the tensors that the first one put up are not there any more.
        """
        crew, under = self.crew, f"{name}/{self.token}"
        mine = crew.together(lambda: [hashlib.sha256(part()).hexdigest() for part in parts])
        note = crew.lead(lambda: self.board.read(name))
        if note is None:
            # The bytes come before the note that names them: whoever finds the note finds them, too.
            hung = crew.together(lambda: self._hang_parts(f"{under}{crew.place}", parts, mine))
            note = crew.lead(lambda: self.board.first(name, {"under": under, **hung}))
            if note["under"] != under:
                crew.together(lambda: self._drop_parts(f"{under}{crew.place}", hung["sizes"]))
        own = f"{note['under']}{crew.place}"
        theirs = note if crew.alone else crew.together(lambda: self.board.read(own))

        def taken(i: int, nbytes: int, digest: str) -> bytes | None:
            data = None if digest == mine[i] else self.board.take(f"{own}/{i}", nbytes)
            if data is None and digest != mine[i]:
                raise GroupError(f"the meeting place {self.board.place} has lost part {i} of {name}: start another one")
            return data

        for i, (nbytes, digest) in enumerate(zip(theirs["sizes"], theirs["digests"], strict=True)):
            yield crew.together(partial(taken, i, nbytes, digest))

    def _hang_parts(self, own: str, parts: Sequence[Callable[[], bytes]], digests: list[str]) -> dict[str, Any]:
        note = {"sizes": [self.board.hang(f"{own}/{i}", part()) for i, part in enumerate(parts)], "digests": digests}
        if not self.crew.alone:
            # The note of the first rank says nothing of the other shards. It goes over another connection, and a store
            # of torch does not answer ``set``, so this rank waits until the place has what was sent before.
            self.board.first(own, note)
        return note

    def _drop_parts(self, own: str, sizes: Sequence[int]) -> None:
        if not self.crew.alone:
            self.board.remove(own)
        for i, nbytes in enumerate(sizes):
            self.board.drop(f"{own}/{i}", nbytes)

    def come(self, at: int, mark: str = "") -> tuple[int, Closed] | None:
        """Register the name, and wait until the meeting is open.

        Args:
            at: the round whose state this worker holds, 0 if it has trained nothing yet.
            mark: mark of the meeting where that round was.

        Returns:
            The round in which the meeting opened and its note, if this worker was there; None if it came later.

        Raises:
            GroupError: too few workers came in time.
        """
        found, self._asked, over = self.crew.lead(partial(self._come, at, mark))
        self._clean(over)
        return found

    def _come(self, at: int, mark: str) -> tuple[tuple[int, Closed] | None, int | None, int | None]:
        # An earlier process of this name finds it at its next round, and learns that it was replaced.
        self.board.put(f"token/{self.name}", self.token)
        late = self.board.read("open") is not None
        if late:
            self._first_round()
        asked, over = self._announce(at if not late or self.holds(at, mark) else -1, mark)
        if late:
            return None, asked, over
        until = self._clock.read() + self.meeting.timeout
        while (count := len({each["name"] for each in self._announced(0) if each})) < self.meeting.workers:
            if self._clock.read() >= until:
                raise GroupError(
                    f"{count} of {self.meeting.workers} workers came to the meeting at {self.board.place} within "
                    f"{self.meeting.timeout:g} s"
                )
            # Whoever comes last may be killed before it opens the meeting, so the others look again.
            if self.board.wait("open", min(self.meeting.deadline, until - self._clock.read())):
                break
        else:
            self._open(self._announced(0))
        base, note = self._first_round()
        return (base, note) if self.name in note.roster else None, asked, over

    @property
    def mark(self) -> str:
        """The mark of the open meeting, which no other meeting has."""
        return str(self.crew.lead(lambda: self.board.read("open"))["mark"])

    @property
    def base(self) -> int:
        """The round after which the open meeting began."""
        return int(self.crew.lead(lambda: self.board.read("open"))["base"])

    def holds(self, at: int, mark: str) -> bool:
        """Return whether the state after round ``at`` of a meeting belongs to this meeting, too."""
        opened = self.crew.lead(lambda: self.board.read("open"))
        return at > 0 and (mark == opened["mark"] or (at == opened["base"] and mark == opened["from"]))

    def announce(self, at: int, mark: str = "") -> None:
        """Announce that this worker holds the state after round ``at`` and takes part from there on; -1 means that it
        needs one.
        """
        self._asked, over = self.crew.lead(partial(self._announce, at, mark))
        self._clean(over)

    def _announce(self, at: int, mark: str) -> tuple[int | None, int | None]:
        """Return the round after which this worker asks for the state, and the one that must be taken down."""
        newest = self.newest() if at < 0 else None
        self.board.append("joins", {"name": self.name, "round": at, "mark": mark})
        # A worker that needs the state hands nothing in, so the round may be complete without it.
        return newest, None if newest is None else self._close_if_complete(newest + 1)

    def leave(self, at: int) -> None:
        """Leave the rounds after ``at``; workers that wait for this one continue."""

        def ask() -> int | None:
            self.board.append("joins", {"name": self.name, "left": True})
            # The others may be waiting for this one alone.
            return self._close_if_complete(at + 1)

        self._clean(self.crew.lead(ask))

    def _open(self, first: list[Any]) -> None:
        states = {each["name"]: (each["round"], each["mark"]) for each in first if each and "round" in each}
        names = in_order(states)
        base = max(at for at, _ in states.values())
        mark = next(states[name][1] for name in names if states[name][0] == base)
        holding = [name for name in names if states[name] == (base, mark)]
        # If nobody has trained yet, the first in order says where all start.
        holding = holding if base else holding[:1]
        came = {name: [0, ""] for name in holding}
        note = {
            "came": came,
            "roster": names,
            "need": [name for name in names if name not in holding],
            "seen": len(first),
        }
        self.board.first("open", {"base": base, "note": note, "mark": self.token, "from": mark})

    def _first_round(self) -> tuple[int, Closed]:
        """The round with which the meeting opened, and its note.

        Everybody who comes puts both up: whoever opened the meeting may be held up, or die, before it does.
        """
        opened = self.board.read("open")
        base = int(opened["base"])
        self.board.first(f"closed/{base}", opened["note"])
        self.board.first("newest", base)
        return base, Closed.read(opened["note"])

    def newest(self) -> int:
        """The round that was closed last."""
        opened = self.board.read("open")
        found = int(self.board.read("newest") or (opened["base"] if opened else 0))
        # The worker that closes a round may be delayed before it says so.
        while self.board.read(f"closed/{found + 1}") is not None:
            found += 1
        return found

    def is_closed(self, t: int) -> bool:
        """Return whether round ``t`` is closed."""
        return self.crew.lead(lambda: self.board.read(f"closed/{t}") is not None)

    def closed(self, t: int) -> Closed:
        """The note of a closed round.

        Raises:
            WireError: there is no such note.
        """
        return self.crew.lead(lambda: Closed.read(self.board.read(f"closed/{t}")))

    def hand_in(self, t: int, payload: bytes, weight: float = 1.0, sent: bool | None = None) -> Closed:
        """Hand in for round ``t`` and wait until it closes, at the latest at this worker's deadline.

        Args:
            payload: empty to come and send nothing.
            weight: weight of its change in the mean, finite and > 0.
            sent: true if any rank of this worker has a payload; None: if it has one here.

        Raises:
            GroupError: another process has this worker's name.
        """
        crew, at = self.crew, self._payload(t, self.token)
        sent = bool(payload) if sent is None else sent

        def may() -> bool:
            holder = self.board.read(f"token/{self.name}")
            if holder != self.token:
                raise GroupError(f"another process came as worker {self.name!r}: every worker needs a name of its own")
            return not self.is_closed(t)

        def hang() -> None:
            # The bytes before the note that names them: whoever finds the note finds them, too.
            self.board.hang(at, payload)
            if sent and not crew.alone:
                # Not by ``put``, which has no answer: the note comes over the connection of the first rank.
                self.board.first(at, len(payload))

        def close() -> int | None:
            # Workers of an earlier version read two values.
            weighed = [weight] if weight != 1.0 else []
            # Where each shard has a size of its own, the note says only whether there is one.
            handed = [len(payload) if crew.alone else int(sent), self.token, *weighed]
            self.board.append(f"arrivals/{t}", {"name": self.name, "handed": handed})
            # Whoever comes last closes the round, and else the first worker whose deadline is over.
            return self._close(t) if self._complete(t) or not self._ended(t) else None

        if crew.lead(may):
            crew.together(hang)
            self._clean(crew.lead(close))
        return self.closed(t)

    def _payload(self, t: int, token: str) -> str:
        """The name under which a payload hangs, here that of this rank's shard."""
        return f"payload/{t}/{token}{self.crew.place}"

    def _size(self, name: str, nbytes: int) -> int | None:
        """The bytes that hang under a name, as the note of the round or of this shard says; None if it is gone."""
        return nbytes if self.crew.alone else self.board.look(name)

    def _ended(self, t: int) -> bool:
        """Wait until a round is closed; false: it may be closed now, at the deadline, or because it has its quorum and
        this worker has waited for it for the grace.
        """
        if self.meeting.quorum is None:
            return self.board.wait(f"closed/{t}", self.meeting.deadline)
        # A clock of its own: a jump of the machine's, or a stop, is no more than a part of the deadline.
        clock = Readings(self.meeting.system.clock, self.meeting.deadline / 4)
        until, over = clock.now + self.meeting.deadline, None
        while not self.is_closed(t):
            now = clock.read()
            if over is None and self.due.is_set():
                over = now + self.meeting.grace
            enough = over is not None and now >= over and len(self._arrived(t)) >= self.meeting.quorum
            if enough or now >= until:
                return False
            # Not by a wait of the store, which would keep back whoever says that the round is due.
            self.meeting.system.pause(LOOK, self.due if over is None else None)
        return True

    def payloads(self, t: int, closed: Closed) -> list[bytes] | None:
        """Collect the payloads of a round, in order; None if any is not there any more."""

        def collect() -> list[bytes] | None:
            found = []
            for handed in map(closed.came.__getitem__, closed.sent):
                at = self._payload(t, handed.token)
                nbytes = self._size(at, handed.nbytes)
                data = None if nbytes is None else self.board.take(at, nbytes)
                if data is None:
                    return None
                found.append(data)
            return found

        rows = self.crew.together(collect)
        return None if self.crew.anywhere(rows is None) else rows

    def publish(self, t: int, state: bytes) -> None:
        """Publish the state after round ``t``."""
        at = f"state/{t}{self.crew.place}"

        def hang() -> None:
            # The bytes before their number, which says that they are there.
            self.board.hang(at, state)
            self.board.put(at, len(state))

        self.crew.together(hang)

    def fetch(self, nbytes: int) -> tuple[int, bytes]:
        """Ask for the state, and wait for the current round to end; return that round, and the state after it.

        Raises:
            GroupError: no round ended in time, or nobody put up its state; or everybody has left.
        """
        until = self._clock.read() + self.meeting.timeout
        if self._asked is None:
            self.announce(-1)
        t = self._asked or 0
        while self.crew.lead(partial(self._ends, t + 1, until)):
            t += 1
            if self.name in self.closed(t).need:
                # The clocks of the other ranks stand still while these wait for the first.
                state = self.state(t, nbytes, self.crew.lead(lambda: until - self._clock.read()))
                if state is not None:
                    self._asked = None
                    return t, state
                self.announce(-1)
        roster = ", ".join(self.closed(t).roster)
        raise GroupError(
            f"worker {self.name!r} waited {self.meeting.timeout:g} s for round {t + 1} to end and for the state after "
            f"it; in that round were {roster}: if they are gone, start a new meeting place from their checkpoints"
        )

    def state(self, t: int, nbytes: int, seconds: float) -> bytes | None:
        """The state after round ``t``, which may take longer than a deadline to be published; None if nobody publishes
        it.

        Args:
            seconds: seconds to wait for it; less where later rounds would have removed it.

        Raises:
            WireError: the state has another size.
        """
        found = self.crew.together(lambda: self._state(t, nbytes, seconds))
        return None if self.crew.anywhere(found is None) else found

    def _state(self, t: int, nbytes: int, seconds: float) -> bytes | None:
        until, at = self._clock.read() + seconds, f"state/{t}{self.crew.place}"
        while not self.board.wait(at, min(self.meeting.deadline, until - self._clock.read())):
            # Rounds that were closed since have taken the state down, if it ever was there.
            if self._clock.read() >= until or self.newest() >= t + self.kept:
                return None
        there = self.board.read(at)
        if there != nbytes:
            raise WireError(f"the state after round {t} must have {nbytes} bytes, got {there}")
        return self.board.take(at, nbytes)

    def counted(self, closed: Closed) -> bool:
        """Return whether the payload of this process counts."""
        return closed.came.get(self.name, NOBODY).token == self.token

    def sent_by_another(self, closed: Closed) -> bool:
        """Return whether the payload of an earlier process of this name counts."""
        handed = closed.came.get(self.name, NOBODY)
        return handed.nbytes > 0 and handed.token != self.token

    def _arrived(self, t: int) -> dict[str, list[Any]]:
        """Collect the payloads of workers, by name: the first of several, if one was restarted."""
        notes = self.board.entries(f"arrivals/{t}")
        return {note["name"]: note["handed"] for note in reversed(notes) if note}

    def _announced(self, seen: int) -> list[Any]:
        return self.board.entries("joins", after=seen)

    def _ends(self, t: int, until: float) -> bool:
        """Return whether round ``t`` closes in time; for a worker that waits for the state after it.

        Raises:
            GroupError: after a deadline, nobody is there who could end it.
        """
        while not self.board.wait(f"closed/{t}", min(self.meeting.deadline, until - self._clock.read())):
            if self._clock.read() >= until:
                return False
            # Nobody is left who could close the round, so to wait on would be in vain.
            if not self._expected(t) - {self.name}:
                raise GroupError(
                    f"everybody has left the meeting at {self.board.place} after round {t - 1}, and nobody is there "
                    f"who has the state for worker {self.name!r}: start one of them again from its checkpoint, or all "
                    "at a new meeting place"
                )
        return True

    def _expected(self, t: int) -> set[str]:
        """The workers that take part in round ``t``, as far as they are known."""
        before = self.closed(t - 1)
        expected = set(before.roster)
        for note in filter(None, self._announced(before.seen)):
            # Whoever needs the state waits for the end of this round, so the others do not wait for it.
            if note.get("left") or note["round"] < 0:
                expected.discard(note["name"])
            elif note["round"] == t - 1 > 0:
                expected.add(note["name"])
        return expected

    def _complete(self, t: int) -> bool:
        return self._expected(t) <= self._arrived(t).keys()

    def _close_if_complete(self, t: int) -> int | None:
        """Close a round whose workers wait for nobody but this one, which does not hand in any more."""
        return self._close(t) if self._arrived(t) and self._complete(t) else None

    def _close(self, t: int) -> int | None:
        """Close round ``t`` with the workers that came, unless it is closed already; return the round whose payloads
        this worker must then take down.
        """
        before, came = self.closed(t - 1), self._arrived(t)
        roster, need, notes = set(came), set(), self._announced(before.seen)
        for note in filter(None, notes):
            name = note["name"]
            need.discard(name)
            if note.get("left"):
                roster.discard(name)
            elif note["round"] < 0:
                roster.add(name)
                need.add(name)
            elif name in came:
                # It has left, and come again since.
                roster.add(name)
        ours = {"came": came, "roster": in_order(roster), "need": in_order(need), "seen": before.seen + len(notes)}
        # Several workers may close it at the same time: the note that is there first counts, and its writer cleans up.
        if self.board.first(f"closed/{t}", ours) != ours:
            return None
        # It saves others a search; which rounds are closed is said by their notes alone.
        self.board.put("newest", t)
        left = {note["name"] for note in notes if note and note.get("left")}
        missing = in_order(set(before.roster) - came.keys() - left - need)
        if missing:
            log.warning(
                "round %d closed without worker %s, who did not come %s",
                t,
                ", ".join(missing),
                f"within {self.meeting.deadline:g} s" if self.meeting.quorum is None else "in time",
            )
        return t - self.kept

    def _clean(self, t: int | None) -> None:
        """Take down what hangs of a round, each rank that of its shard; None: another worker does it."""
        note = None if t is None else self.crew.lead(lambda: self.board.read(f"closed/{t}"))
        if t is not None and note is not None:
            self.crew.together(lambda: self._take_down(t, Closed.read(note)))

    def _take_down(self, t: int, closed: Closed) -> None:
        for handed in closed.came.values():
            at = self._payload(t, handed.token)
            self.board.drop(at, self._size(at, handed.nbytes) or 0)
            if not self.crew.alone:
                self.board.remove(at)
        at = f"state/{t}{self.crew.place}"
        if (nbytes := self.board.read(at)) is not None:
            self.board.drop(at, nbytes)
        if self.crew.first:
            self.board.drop_list(f"arrivals/{t}")
