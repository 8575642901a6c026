"""Groups of ranks that find one row after the other, and that are replaced where one of them ends badly.

Invariants:
    The ranks of a group find all rows of a batch, so that their start and what they compile count once. Rank 0 appends
    each row to the file at once.

Failure modes:
    A rank that raises, dies or waits for too long ends its group. The case in which that happened gets a row with the
    error, and another group continues with the next case.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradwire.testing.processes import RankFailedError
from gradwire_lab.nccl.rows_file import Row, RowsFile
from gradwire_lab.nccl.trainings import (
    SWITCHING,
    Trained,
    Training,
    difference,
    train,
    train_plainly,
    until_switched,
    without_compression,
)
from gradwire_lab.nccl.way import HERE, REHEARSED, RankPlace, Way, run_joined

__all__ = ["PATIENCE", "agree_over", "compare_trainings", "find_rows", "last_words", "switching"]

PATIENCE = 60.0
"""Seconds that a collective may take: torch's compiler runs within them, too."""

_GRACE = 5.0
"""Seconds after the deadline in which the ranks end by themselves."""

Job = Callable[..., Row]
"""Called on each rank with the rank, the device and the case; all ranks return a row, and that of rank 0 counts."""


def find_rows(
    file: RowsFile,
    part: str,
    way: Way,
    world: int,
    job: Job,
    cases: Sequence[str],
    *args: Any,
    deadline: float,
    patience: float = PATIENCE,
    place: RankPlace = HERE,
) -> list[str]:
    """Find the rows of a batch that the file does not have yet.

    Args:
        file: file of the check.
        part: name of the part in the rows.
        way: way to connect the ranks.
        world: number of ranks.
        job: importable by its module; called as ``job(rank, device, case, *args)``.
        cases: names of the cases.
        args: further arguments of ``job``.
        deadline: ``time.monotonic()`` after which no case is begun.
        patience: seconds that a collective may take.
        place: network in which the ranks run.

    Returns:
        The cases for which there was no time.
    """
    while True:
        left = [case for case in cases if not file.has(part, case, world, way.name)]
        if not left or time.monotonic() > deadline:
            return left
        with tempfile.TemporaryDirectory() as folder:
            begun = Path(folder, "begun")
            named = {"part": part, "ranks": world, "way": way.name}
            work = (job, way.device, str(file.path), str(begun), named, left, args, deadline)
            limit = deadline + _GRACE - time.monotonic()
            try:
                run_joined(way, world, _find, *work, timeout=limit, patience=min(patience, limit), place=place)
            except RankFailedError as error:
                case = begun.read_text(encoding="utf-8") if begun.exists() else left[0]
                if error.late and time.monotonic() > deadline:
                    return [case for case in left if not file.has(part, case, world, way.name)]
                if not file.has(part, case, world, way.name):
                    file.append({**named, "case": case, "error": last_words(error)})


def last_words(error: RankFailedError) -> str:
    r"""The last line of what the first rank that failed said, and which one it was.

    >>> last_words(RankFailedError({1: "Traceback\n  File\nRuntimeError: no"}))
    'rank 1: RuntimeError: no'
    """
    # A rank that only lost its peer says less than the one that failed by itself.
    ordered = sorted(error.errors.items(), key=lambda each: ("Connection" in each[1], each[0]))
    rank, text = ordered[0]
    return f"rank {rank}: {text.strip().splitlines()[-1]}"[:500]


def _find(
    rank: int,
    job: Job,
    device: str,
    path: str,
    begun: str,
    named: Row,
    cases: Sequence[str],
    args: tuple[Any, ...],
    deadline: float,
) -> None:
    file = RowsFile(Path(path))
    for case in cases:
        if agree_over(deadline, device):
            return
        if rank == 0:
            Path(begun).write_text(case, encoding="utf-8")
        start = time.monotonic()
        row = job(rank, device, case, *args)
        if rank == 0:
            file.append({**named, "case": case, "took": round(time.monotonic() - start, 3), **row})


def agree_over(deadline: float, device: str) -> bool:
    """Return whether the time is over on any rank, the same on all of them."""
    over = torch.tensor(float(time.monotonic() > deadline), device=device)
    dist.all_reduce(over, dist.ReduceOp.MAX)
    return bool(over.item())


def compare_trainings(
    file: RowsFile,
    part: str,
    way: Way,
    world: int,
    trainings: Sequence[Training],
    *,
    deadline: float,
    place: RankPlace = HERE,
    job: Callable[..., Row] | None = None,
) -> list[str]:
    """Make trainings over Gloo on the CPU and in another way, and compare them.

    Args:
        file: file of the check.
        part: name of the part in the rows.
        way: way to connect the ranks.
        world: number of ranks.
        trainings: trainings to make; those of another number of ranks are skipped.
        deadline: ``time.monotonic()`` after which none is begun.
        place: network of the ranks that are compared; the others are on the loopback.
        job: see ``find_rows``; called with the trainings and the folder of the results over Gloo. None: ``compared``.

    Returns:
        The cases for which there was no time.
    """

    def missing() -> dict[str, Training]:
        due = (each for each in trainings if world in each.ranks)
        return {each.case: each for each in due if not file.has(part, each.case, world, way.name)}

    while (mine := missing()) and time.monotonic() < deadline:
        with tempfile.TemporaryDirectory() as folder:
            # A third of the time at most, for nothing is compiled on the CPU; what is missing then is made next time.
            third = time.monotonic() + (deadline - time.monotonic()) / 3
            ready = _make_wanted(file, part, way, world, mine, folder, third)
            arguments = ({case: mine[case] for case in ready}, folder)
            find_rows(file, part, way, world, job or compared, ready, *arguments, deadline=deadline, place=place)
    return list(mine)


def _make_wanted(
    file: RowsFile, part: str, way: Way, world: int, trainings: dict[str, Training], folder: str, deadline: float
) -> list[str]:
    """Make trainings over Gloo on the CPU, keep each rank's results in a folder, and return the cases that are there.

    One that fails gets a row with its error.
    """
    own, named = RowsFile(Path(folder, "rows.jsonl")), {"part": part, "ranks": world, "way": way.name}
    find_rows(own, part, REHEARSED, world, kept, list(trainings), trainings, folder, deadline=deadline)
    ready = []
    for row in own.rows:
        if "error" in row:
            file.append({**named, "case": row["case"], "error": f"over Gloo on the CPU: {row['error']}"})
        else:
            ready.append(row["case"])
    return ready


def kept(rank: int, device: str, case: str, trainings: dict[str, Training], folder: str) -> Row:
    """Make a training, and keep its result in a folder: a job for ``find_rows``."""
    found = train_plainly(rank, device, trainings[case])
    _kept_at(folder, case, rank).write_bytes(pickle.dumps(found))
    return {}


def _kept_at(folder: str, case: str, rank: int) -> Path:
    return Path(folder, f"{case.replace('/', '_')}-{rank}")


def compared(rank: int, device: str, case: str, trainings: dict[str, Training], folder: str) -> Row:
    """Make a training, and compare it with the kept one: a job for ``find_rows``."""
    training = trainings[case]
    found = train(rank, device, training)
    wanted: Trained = pickle.loads(_kept_at(folder, case, rank).read_bytes())
    return verdict(training, found, wanted)


def switching(rank: int, device: str, _case: str) -> Row:
    """Train with auto until it has switched, and as many steps by DDP alone over the same link: a job for
    ``find_rows``.
    """
    found = until_switched(rank, device)
    plain = without_compression(rank, device, len(found.losses))
    return verdict(SWITCHING, found, plain)


def verdict(training: Training, found: Trained, wanted: Trained | None) -> Row:
    """The row of a training; all ranks must call it."""
    wholes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(wholes, found.whole)
    said = difference(training, found, wanted, wholes)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, said)
    wrong = [f"rank {rank}: {text}" for rank, text in enumerate(told) if text]
    held = "bits" if training.exact else "losses"
    return {"difference": wrong[0] if wrong else None, "compared": held, "loss": found.losses[-1], **found.facts}
