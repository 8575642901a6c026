"""The simulation of meetings finds faults that are put into it, does what torch's store does, and repeats itself."""

from __future__ import annotations

import gc
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from click.testing import CliRunner

from gradwire.cli._folder import app
from gradwire.optim.local._crew import Crew
from gradwire.optim.local._rounds import Rounds
from gradwire.optim.local._streamed_rounds import StreamedRounds
from gradwire.optim.local.attendance import Attendance
from gradwire.optim.local.board import Board
from gradwire_lab.simulation.case import shrink
from gradwire_lab.simulation.disk import Files
from gradwire_lab.simulation.machine import SimulatedMachine
from gradwire_lab.simulation.meeting_run import CLASSES, MeetingCase
from gradwire_lab.simulation.meeting_store import SimulatedPlace, SimulatedStore
from gradwire_lab.simulation.network import Network
from gradwire_lab.simulation.scheduler import Scheduler


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Nobody looks through what the first run has imported, when an optimizer seeks who else has its parameters."""
    MeetingCase.draw(0, "none").run()
    gc.collect()
    gc.freeze()


SINGLE = [name for name in CLASSES if name != "none"]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("seed", range(2))
def test_each_class_of_faults(name: str, seed: int) -> None:
    assert (case := MeetingCase.draw(seed, name)).run().violations == [], str(case)


@pytest.mark.parametrize("pair", list(itertools.combinations(SINGLE, 2)), ids="+".join)
def test_each_pair_of_classes(pair: tuple[str, str]) -> None:
    assert (case := MeetingCase.draw(0, "+".join(pair))).run().violations == [], str(case)


TWICE = "a new process does not keep the steps of a checkpoint within a round that one before it has sent"
FOUND = {
    "a worker that left and came again at once is expected": "seed=0 pace=0.3 rounds=3 sparse=1 save=2 back=1",
    "nobody waits for a worker that came again without a state, and waits itself": (
        "seed=2 rounds=3 save=2 kill=worker-1@1.664+1.31#8"
    ),
    "nobody goes on waiting for a worker that says that it needs the state": (
        "seed=50 workers=3 sparse=1 save=3 kill=worker-0@2.039+2.01#13 jump=worker-0@2.282+24.9#21"
    ),
    "a new process keeps its own steps where one before it has sent what it began with": (
        "seed=23 workers=4 first=1 rounds=6 sparse=1 kill=worker-1@1.124+3.29#21"
    ),
    TWICE: ("seed=109 workers=1 first=1 every=2 kill=worker-0@4.653+4.99#8"),
    "a jump of the clock ends no wait": (
        "seed=62 late=15.0 first=1 rounds=6 sparse=1 save=2 jump=worker-1@16.169+80#5"
    ),
    "what a process came with counts once, also where a fragment of it was under way": (
        "seed=56 workers=4 late=2.0 first=4 rounds=6 every=4 save=3 early=1 back=2 fragments=2 delay=2 "
        "kill=worker-1@7.93+0.56#13 stop=worker-3@14.396+0.97#2"
    ),
    "a jump of the clock ends no wait for a quorum": (
        "seed=31 workers=4 first=4 rounds=6 every=2 sparse=1 save=2 early=1 back=2 fragments=2 quorum=4 "
        "stall=worker-2@4.417+20.44#5 jump=worker-0@6.682+85.9#21"
    ),
    "what was under way is that of one round, also for a process that has missed later ones of the fragment": (
        "seed=104 workers=4 first=4 rounds=3 every=4 sparse=1 save=3 early=2 fragments=2 delay=2 ranks=2 "
        "kill=worker1-2@4.441+14.28#2"
    ),
    "what a rank hangs up is there before the first rank of its island names it, over a connection of its own": (
        "seed=20 workers=4 late=2.0 first=3 rounds=3 frozen=1 ranks=3"
    ),
}


@pytest.mark.parametrize("line", FOUND.values(), ids=FOUND)
def test_what_was_found_once(line: str) -> None:
    assert MeetingCase.parse(line).run().violations == []


CASES = [MeetingCase.draw(seed, name) for seed, name in enumerate(["kill+stop", "twin+stall", "new-place+lose"])]
DIGESTS = """
import sys
from gradwire_lab.simulation.meeting_run import MeetingCase
for line in sys.argv[1:]:
    print(MeetingCase.parse(line).run().digest)
"""


def test_a_case_repeats_itself() -> None:
    first = [case.run().digest for case in CASES]
    assert len(set(first)) == len(first)
    assert [MeetingCase.parse(str(case)).run().digest for case in CASES] == first
    command = [sys.executable, "-c", DIGESTS, *map(str, CASES)]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == first


SENT = "seed=9 workers=3 pace=0.3 rounds=3 every=4 sparse=1 fragments=2 kill=worker-2@0.166+1.97#13"
ONE_FRAGMENT = "workers=1 first=1 rounds=3 every=2 fragments=1 delay=1"
TWO_FRAGMENTS = "seed=0 pace=0.3 rounds=3 every=2 fragments=2 delay=1"
LATE = "seed=7 pace=0.3 first=1 rounds=6 frozen=1 back=1"
LOST = "seed=0 workers=3 late=2.0 every=2 back=2 lose=worker-1@5.33+22.67#8"


ISLANDS = "pace=0.3 rounds=3 ranks=2"
SENT_BY_AN_ISLAND = "seed=21 workers=1 first=1 rounds=3 every=2 ranks=2 kill=worker-0@1.75+3#21"
SAVED_APART = "seed=107 workers=1 first=1 rounds=3 every=2 ranks=2 kill=worker1-0@1.54+1"

counted, sent_by_another = Attendance.counted, Attendance.sent_by_another


def overwrite(board: Board, name: str, note: Any) -> Any:
    """Put a note up also where there is another one."""
    if note is not None:
        board.put(name, note)
        return note
    return json.loads(board.store.compare_set(name, "", "null"))


def hasty(there: Attendance, t: int) -> set[str]:
    """Wait for nobody."""
    return set()


@pytest.mark.parametrize(
    ("owner", "name", "broken", "line", "text"),
    [
        (
            Board,
            "first",
            overwrite,
            LATE,
            "has another state after round",
        ),
        (Attendance, "_expected", hasty, "seed=1 workers=3 first=3 rounds=3", "is closed without worker"),
        (Attendance, "sent_by_another", lambda *_: False, FOUND[TWICE], "wait [-1.0] and count"),
        (Attendance, "counted", lambda *_: False, "seed=2 workers=3", "wait [-1.0] and count"),
        (Attendance, "holds", lambda *_: True, LOST, "has another state after round"),
        (Rounds, "count", lambda *_: None, "seed=1 every=2 weighs=1", "has weight 1 in round 1, in which 2 steps"),
        (StreamedRounds, "depart", lambda *_: None, f"seed=5 {ONE_FRAGMENT} weighs=1", "has weight 1 in round 1"),
        (StreamedRounds, "_unless_sent", lambda *_: None, SENT, "wait [-1.0] and count"),
        (StreamedRounds, "unsent", lambda self, fragment: self._gather(fragment), TWO_FRAGMENTS, "not once in"),
        (
            Attendance,
            "_payload",
            lambda _, t, token: f"payload/{t}/{token}",
            f"seed=0 {ISLANDS}",
            "steps count in shard",
        ),
        (
            Attendance,
            "is_closed",
            lambda there, t: there.board.read(f"closed/{t}") is not None,
            f"seed=38 {ISLANDS} stop=worker1-1@0.2+14#4",
            "where another rank",
        ),
        (
            Attendance,
            "counted",
            lambda there, closed: not there.crew.first or counted(there, closed),
            f"seed=5 {ISLANDS} stop=worker1-1@0.5+14#5",
            "of worker1-1 neither count nor wait",
        ),
        (
            Attendance,
            "sent_by_another",
            lambda there, closed: there.crew.first and sent_by_another(there, closed),
            SENT_BY_AN_ISLAND,
            "of worker1-0 wait [-1.0] and count",
        ),
        (Crew, "compare", lambda *_: None, SAVED_APART, "from a checkpoint of another step"),
    ],
)
def test_what_is_broken_is_found(
    owner: type, name: str, broken: Callable[..., Any], line: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = MeetingCase.parse(line)
    assert case.run().violations == []
    monkeypatch.setattr(owner, name, broken)
    assert text in "\n".join(case.run().violations)


def test_a_share_of_the_cases_has_islands_and_the_others_are_as_they_were() -> None:
    cases = [MeetingCase.draw(seed, "kill") for seed in range(40)]
    assert {case.work.ranks for case in cases} == {1, 2, 3, 4}
    assert str(MeetingCase.draw(0, "kill+stop")).startswith("seed=0 workers=3 late=15.0 first=1 every=2 save=2 back=2")
    killed = [[fault.target for fault in case.faults] for case in cases if case.work.ranks == 2]
    assert {len(targets) for targets in killed} == {1, 2}


def test_a_failing_case_is_shrunk_printed_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MeetingCase.draw(0, "jump+kill+stop")
    smallest = shrink(case, lambda case: any(fault.kind == "kill" for fault in case.faults))
    assert [fault.kind for fault in smallest.faults] == ["kill"]
    monkeypatch.setattr(Attendance, "_expected", hasty)
    arguments = ["check", "meeting", "--seeds", "1", "--fault-class", "jump"]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 1
    line = ran.stdout.splitlines()[0].removeprefix("jump: ")
    again = CliRunner().invoke(app, ["check", "meeting", "--replay", line])
    assert again.exit_code == 1
    assert "is closed without worker" in again.stdout.splitlines()[-1]
    monkeypatch.undo()
    assert CliRunner().invoke(app, arguments).exit_code == 0


def operations(store: dist.Store) -> list[Any]:
    """The answers of a store to some operations, over a prefix as at a meeting."""
    prefixed = dist.PrefixStore("here", store)
    answers: list[Any] = [
        prefixed.compare_set("a", "?", "?"),
        prefixed.check(["a"]),
        prefixed.compare_set("a", "", "first"),
        prefixed.compare_set("a", "", "second"),
        prefixed.compare_set("a", "first", "third"),
        prefixed.get("a"),
        prefixed.add("count", 2),
        prefixed.add("count", 0),
        prefixed.set("bytes", b"\xff\x00"),  # type: ignore[arg-type]
        prefixed.get("bytes"),
        prefixed.check(["a", "count"]),
        prefixed.delete_key("a"),
        prefixed.delete_key("a"),
        prefixed.check(["a"]),
        prefixed.wait(["bytes"], timedelta(seconds=1)),
        store.check(["here/bytes"]),
    ]
    try:
        prefixed.wait(["never"], timedelta(seconds=0.1))
    except dist.DistStoreError:
        answers.append("not in time")
    return answers


def simulated(script: Callable[[SimulatedStore, SimulatedPlace], Any], seconds: float = 60.0) -> list[Any]:
    """Return the result of a script over a simulated store, in a list that is empty where it does not end."""
    scheduler = Scheduler("0")
    network = Network(scheduler)
    here, there = (SimulatedMachine(network, name, Files(scheduler.random)) for name in ("here", "there"))
    place, answers = SimulatedPlace(there, lambda *_: None), list[Any]()
    scheduler.start(here.simulated, lambda: answers.append(script(SimulatedStore(place, here), place)), "main")
    scheduler.run(lambda: not here.simulated.tasks, seconds)
    scheduler.end()
    assert not scheduler.failures
    return answers


def test_the_simulated_store_does_what_torchs_does() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    real = operations(server)
    assert real[-1] == "not in time"
    assert simulated(lambda store, _: operations(store)) == [real]


def test_a_place_that_is_killed_ends_a_wait() -> None:
    def script(store: SimulatedStore, place: SimulatedPlace) -> str:
        scheduler = store.machine.scheduler
        scheduler.after(5.0, place.machine.simulated.kill)
        with pytest.raises(dist.DistNetworkError):
            Board(store, "here").store.wait(["never"], timedelta(seconds=60))
        return json.dumps(scheduler.now < 6.0)

    assert simulated(script) == ["true"]
