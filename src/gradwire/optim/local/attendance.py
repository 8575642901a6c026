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
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gradwire._system import Readings
from gradwire.errors import ConfigError, GroupError, WireError
from gradwire.notices import log
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

    Attributes:
        due: set while somebody on this worker waits for the round to close.
    """

    def __init__(self, meeting: Meeting, kept: int = KEPT) -> None:
        self.meeting, self.name, self.kept = meeting, meeting.name, kept
        self.due = threading.Event()
        self.due.set()
        self.board: Board = meeting.open()
        self.token = meeting.system.random(16).hex()
        # A worker that was stopped has not waited meanwhile.
        self._clock = Readings(meeting.system.clock, meeting.deadline)
        self._asked: int | None = None  # After which round it has asked for the state of the next, if it has.

    def agree(self, description: str) -> None:
        """Compare the configuration with that of the worker that came first.

        Raises:
            ConfigError: the worker has another configuration.
        """
        theirs = self.board.first("config", description)
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
        mine = [hashlib.sha256(part()).hexdigest() for part in parts]
        note, own = self.board.read(name), f"{name}/{self.token}"
        if note is None:
            # The bytes come before the note that names them: whoever finds the note finds them, too.
            sizes = [self.board.hang(f"{own}/{i}", part()) for i, part in enumerate(parts)]
            note = self.board.first(name, {"under": own, "sizes": sizes, "digests": mine})
            if note["under"] != own:
                for i, nbytes in enumerate(sizes):
                    self.board.drop(f"{own}/{i}", nbytes)
        for i, (nbytes, digest) in enumerate(zip(note["sizes"], note["digests"], strict=True)):
            data = None if digest == mine[i] else self.board.take(f"{note['under']}/{i}", nbytes)
            if data is None and digest != mine[i]:
                raise GroupError(f"the meeting place {self.board.place} has lost part {i} of {name}: start another one")
            yield data

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
        # An earlier process of this name finds it at its next round, and learns that it was replaced.
        self.board.put(f"token/{self.name}", self.token)
        late = self.board.read("open") is not None
        if late:
            self._first_round()
        self.announce(at if not late or self.holds(at, mark) else -1, mark)
        if late:
            return None
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
        return (base, note) if self.name in note.roster else None

    @property
    def mark(self) -> str:
        """The mark of the open meeting, which no other meeting has."""
        return str(self.board.read("open")["mark"])

    @property
    def base(self) -> int:
        """The round after which the open meeting began."""
        return int(self.board.read("open")["base"])

    def holds(self, at: int, mark: str) -> bool:
        """Return whether the state after round ``at`` of a meeting belongs to this meeting, too."""
        opened = self.board.read("open")
        return at > 0 and (mark == opened["mark"] or (at == opened["base"] and mark == opened["from"]))

    def announce(self, at: int, mark: str = "") -> int:
        """Announce that this worker holds the state after round ``at`` and takes part from there on; -1 means that it
        needs one.
        """
        self._asked = self.newest() if at < 0 else None
        number = self.board.append("joins", {"name": self.name, "round": at, "mark": mark})
        if self._asked is not None:
            # A worker that needs the state hands nothing in, so the round may be complete without it.
            self._close_if_complete(self._asked + 1)
        return number

    def leave(self, at: int) -> None:
        """Leave the rounds after ``at``; workers that wait for this one continue."""
        self.board.append("joins", {"name": self.name, "left": True})
        # The others may be waiting for this one alone.
        self._close_if_complete(at + 1)

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
        return self.board.read(f"closed/{t}") is not None

    def closed(self, t: int) -> Closed:
        """The note of a closed round.

        Raises:
            WireError: there is no such note.
        """
        return Closed.read(self.board.read(f"closed/{t}"))

    def hand_in(self, t: int, payload: bytes, weight: float = 1.0) -> Closed:
        """Hand in for round ``t`` and wait until it closes, at the latest at this worker's deadline.

        Args:
            payload: empty to come and send nothing.
            weight: weight of its change in the mean, finite and > 0.

        Raises:
            GroupError: another process has this worker's name.
        """
        holder = self.board.read(f"token/{self.name}")
        if holder != self.token:
            raise GroupError(f"another process came as worker {self.name!r}: every worker needs a name of its own")
        if not self.is_closed(t):
            # The bytes before the note that names them: whoever finds the note finds them, too.
            self.board.hang(f"payload/{t}/{self.token}", payload)
            # Workers of an earlier version read two values.
            weighed = [weight] if weight != 1.0 else []
            self.board.append(f"arrivals/{t}", {"name": self.name, "handed": [len(payload), self.token, *weighed]})
            # Whoever comes last closes the round, and else the first worker whose deadline is over.
            if self._complete(t) or not self._ended(t):
                self._close(t)
        return self.closed(t)

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
        found = []
        for handed in map(closed.came.__getitem__, closed.sent):
            data = self.board.take(f"payload/{t}/{handed.token}", handed.nbytes)
            if data is None:
                return None
            found.append(data)
        return found

    def publish(self, t: int, state: bytes) -> None:
        """Publish the state after round ``t``."""
        # The bytes before their number, which says that they are there.
        self.board.hang(f"state/{t}", state)
        self.board.put(f"state/{t}", len(state))

    def fetch(self, nbytes: int) -> tuple[int, bytes]:
        """Ask for the state, and wait for the current round to end; return that round, and the state after it.

        Raises:
            GroupError: no round ended in time, or nobody put up its state; or everybody has left.
        """
        until = self._clock.read() + self.meeting.timeout
        if self._asked is None:
            self.announce(-1)
        t = self._asked or 0
        while self._ends(t + 1, until):
            t += 1
            if self.name in self.closed(t).need:
                state = self.state(t, nbytes, until - self._clock.read())
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
        until = self._clock.read() + seconds
        while not self.board.wait(f"state/{t}", min(self.meeting.deadline, until - self._clock.read())):
            # Rounds that were closed since have taken the state down, if it ever was there.
            if self._clock.read() >= until or self.newest() >= t + self.kept:
                return None
        there = self.board.read(f"state/{t}")
        if there != nbytes:
            raise WireError(f"the state after round {t} must have {nbytes} bytes, got {there}")
        return self.board.take(f"state/{t}", nbytes)

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

    def _close_if_complete(self, t: int) -> None:
        """Close a round whose workers wait for nobody but this one, which does not hand in any more."""
        if self._arrived(t) and self._complete(t):
            self._close(t)

    def _close(self, t: int) -> None:
        """Close round ``t`` with the workers that came, unless it is closed already."""
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
        if self.board.first(f"closed/{t}", ours) == ours:
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
            self._clean(t - self.kept)

    def _clean(self, t: int) -> None:
        note = self.board.read(f"closed/{t}")
        if note is None:
            return
        for handed in Closed.read(note).came.values():
            self.board.drop(f"payload/{t}/{handed.token}", handed.nbytes)
        if (nbytes := self.board.read(f"state/{t}")) is not None:
            self.board.drop(f"state/{t}", nbytes)
        self.board.drop_list(f"arrivals/{t}")
