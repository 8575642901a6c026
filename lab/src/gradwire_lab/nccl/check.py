"""Check of NCCL with several ranks, in one call of some minutes: does it go, is it right, is it fast over a link?

It needs this source tree, torch, Triton and one GPU, and neither pytest nor a network; links of a given rate need root
and iproute2:

    PYTHONPATH=src:lab/src python -m gradwire_lab.nccl.check --json nccl.jsonl

Parts, from cheap to dear:

    messages    torch's collectives with each way to put several ranks on one GPU; the first that goes is used from then
    right       trainings with 2 and 4 ranks, beside the same over Gloo on the CPU
    streams     trainings with slow streams, waits of the host, memory, a rank that is killed, CUDA graphs
    speed       GPT-2 and ResNet-50 over links, beside DDP and what ``gradwire advise`` predicts

Invariants:
    * It ends in the time that it was given; a part gets a share of the time that is left.
    * Each row is in the file as soon as it is known, and a second call with the same file continues with those that are
      missing.
    * ``--rehearse`` runs all of it without a GPU: Gloo stands for NCCL, the CPU for the GPU, and models are small. Such
      rows are marked, and are kept apart.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradwire.errors import ConfigError, GradwireError, require
from gradwire.testing.processes import RankFailedError
from gradwire_lab.bench.machine import environment
from gradwire_lab.nccl.batch import compare_trainings, find_rows, last_words, switching
from gradwire_lab.nccl.link_speed import CELLS, TINY_CELLS, measure_cells
from gradwire_lab.nccl.messages import OPERATIONS, SIZES, TINY, case_of, message
from gradwire_lab.nccl.rows_file import Row, RowsFile, described, is_wrong
from gradwire_lab.nccl.shaped import shaped
from gradwire_lab.nccl.side_streams import DELAYED, delayed_training, find_stream_rows
from gradwire_lab.nccl.trainings import Training, all_trainings
from gradwire_lab.nccl.way import REHEARSED, WAYS, Way, nccl_version, run_joined

__all__ = [
    "MINUTES",
    "NO_GPU",
    "RANKS",
    "REHEARSED_MINUTES",
    "NcclRefusedError",
    "NcclReport",
    "check_nccl",
    "lines",
    "main",
    "read_ranks",
]

MINUTES, REHEARSED_MINUTES = 8.0, 9.5
"""Minutes that the check may take, and a rehearsal on two processors."""

RANKS = (2, 4)
"""Numbers of ranks that can be asked for."""

NO_GPU = (
    "a GPU and a build of torch with NCCL are needed, and torch finds none here; --rehearse runs the check without them"
)
"""Message where there is no GPU."""

SHARES = {"messages": 0.1, "right": 0.35, "streams": 0.35, "speed": 1.0}
"""The share of what is left that each part may take."""

REHEARSED_SHARES = {"messages": 0.1, "right": 0.65, "streams": 0.6, "speed": 1.0}
"""The same in a rehearsal, in which models are small and nothing is faster than the trainings over Gloo."""

AUTO_LINK = "100mbit"
"""A link on which the small model of the trainings waits for the exchange, so that auto has a reason to switch."""

_AUTO = "auto, until it has switched"

_SILENT = {"TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "99", "TORCH_LOGS": "-dynamo"}
"""Variables that are read when a process starts."""

_PROBE, _START = 60.0, 180.0
"""Seconds in which the first message of a way must arrive, and in which a process must have imported torch before."""

_GRACE = 20.0
"""Seconds before the end in which nothing new begins: imports came before, and ranks end after."""


class NcclRefusedError(GradwireError):
    """No way connects several ranks over NCCL here."""


@dataclass
class NcclReport:
    """The findings of the check.

    Args:
        where: the machine, its GPU and its NCCL.
        rows: all rows of the file that are of this kind of check, those of earlier calls among them.
        left: cases that were left out, each with the reason.
        seconds: seconds of this call.
    """

    where: Row
    rows: list[Row] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def broken(self) -> list[str]:
        """Sentences on what is wrong; empty if everything that was compared holds."""
        return [described(row) for row in self.rows if is_wrong(row)]

    @property
    def exit_code(self) -> int:
        """1 where something is wrong, 3 where the time was over or a link was refused before all was run, else 0."""
        return 1 if self.broken else 3 if self.left else 0


def read_ranks(text: str) -> tuple[int, ...]:
    """Read numbers of ranks.

    Raises:
        ConfigError: there are none of these, or others.

    Example:
        >>> read_ranks("2,4"), read_ranks("4")
        ((2, 4), (4,))
    """
    parts = [part.strip() for part in text.split(",")]
    allowed = {str(number) for number in RANKS}
    require(bool(parts) and set(parts) <= allowed, "--ranks", "2, 4 or 2,4", text)
    return tuple(sorted({int(part) for part in parts}))


def check_nccl(
    path: Path | None = None,
    *,
    ranks: Sequence[int] = RANKS,
    minutes: float | None = None,
    rehearse: bool = False,
    few: bool = False,
    note: Callable[[str], object] = lambda _: None,
) -> NcclReport:
    """Run all parts that the file does not have yet.

    Args:
        path: file of the rows; None: they are kept for this call alone.
        ranks: numbers of ranks, of ``RANKS``.
        minutes: minutes that the check may take, > 0; None: ``MINUTES``, or ``REHEARSED_MINUTES``.
        rehearse: Gloo on the CPU stands for NCCL on the GPU, and models are small.
        few: one or two cases of each kind.
        note: called with a line when a part ends.

    Raises:
        ConfigError: there is no GPU, or the file has something else.
        NcclRefusedError: no way connects several ranks.
    """
    minutes = (REHEARSED_MINUTES if rehearse else MINUTES) if minutes is None else minutes
    require(minutes > 0, "minutes", "a number > 0", minutes)
    require(bool(ranks) and set(ranks) <= set(RANKS), "ranks", "some of 2 and 4", list(ranks))
    where: Row = {**environment(), "rehearsed": rehearse}
    if not rehearse:
        if not (torch.cuda.is_available() and dist.is_nccl_available()):
            raise ConfigError(NO_GPU)
        version = nccl_version()
        where |= {"gpu": torch.cuda.get_device_name(0), "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
        where["nccl"] = ".".join(map(str, version or ()))
    with tempfile.TemporaryDirectory() as folder, _quiet():
        file = RowsFile(path or Path(folder, "rows.jsonl"))
        before = [line for line in file.lines if "where" in line]
        if not before or before[-1]["where"] != where:
            file.append({"where": where})
        run = _NcclCall(
            file, sorted(ranks), rehearse, few, note, time.monotonic() + 60 * minutes - min(_GRACE, 6 * minutes)
        )
        report, begun = NcclReport(where, left=run.left), time.monotonic()
        try:
            run.all_parts()
        finally:
            report.rows = [row for row in file.rows if (row["way"] == REHEARSED.name) == rehearse]
            report.seconds = time.monotonic() - begun
    return report


@dataclass
class _NcclCall:
    """One call of the check."""

    file: RowsFile
    ranks: list[int]
    rehearse: bool
    few: bool
    note: Callable[[str], object]
    end: float
    left: list[str] = field(default_factory=list)

    def all_parts(self) -> None:
        """Run the parts in their order.

        Raises:
            NcclRefusedError: no way connects several ranks.
        """
        # The server of processes imports torch, which on a busy machine takes longer than a message may.
        run_joined(replace(REHEARSED, variables={}), 1, _started, timeout=_START)
        way = self._timed("messages", self._messages)
        assert way is not None
        trainings = all_trainings(few=self.few)
        self._timed("right", lambda end: self._right(way, trainings, end))
        self._timed("streams", lambda end: self._streams(way, trainings, end))
        self._timed("speed", lambda end: self._speed(way, end))

    def _timed(self, part: str, run: Callable[[float], Way | None]) -> Way | None:
        begun = time.monotonic()
        shares = REHEARSED_SHARES if self.rehearse else SHARES
        found = run(begun + shares[part] * max(0.0, self.end - begun))
        rows = [row for row in self.file.rows if row["part"] == part]
        wrong = sum(is_wrong(row) for row in rows)
        self.note(f"{part}: {len(rows)} rows, {wrong} wrong, {time.monotonic() - begun:.0f} s")
        return found

    def _messages(self, end: float) -> Way:
        """Find the first way that goes, and the rows of all that go."""
        sizes = TINY if self.rehearse else SIZES
        cases = [case_of(operation, size) for size in sizes for operation in OPERATIONS]
        going, refusals = [], []
        for way in (REHEARSED,) if self.rehearse else WAYS:
            refusal = self._refusal(way, cases[0])
            if refusal:
                refusals.append(f"{way.name}: {refusal}")
                if not self.file.has("messages", "the way", self.ranks[0], way.name):
                    named = {"part": "messages", "case": "the way", "ranks": self.ranks[0], "way": way.name}
                    self.file.append({**named, "refused": refusal})
                continue
            going.append(way)
            for world in self._worlds(way):
                self._leave(
                    "messages", world, find_rows(self.file, "messages", way, world, message, cases, deadline=end)
                )
        if not going:
            raise NcclRefusedError(f"NCCL connects no two ranks on this GPU: {'; '.join(refusals)}")
        return going[0]

    def _worlds(self, way: Way) -> list[int]:
        return [world for world in self.ranks if way.most is None or world <= way.most]

    def _refusal(self, way: Way, case: str) -> str:
        """Say why a way does not go; empty if it does."""
        world = self.ranks[0]
        if way.most is not None and world > way.most:
            return f"it takes at most {way.most} ranks on a GPU"
        version = None if self.rehearse else nccl_version()
        if way.least is not None and (version is None or version < way.least):
            return f"NCCL {'.'.join(map(str, version or ()))} is older than {'.'.join(map(str, way.least))}"
        if self.file.has("messages", case, world, way.name):
            return ""
        try:
            run_joined(way, world, message, way.device, case, timeout=_PROBE)
        except RankFailedError as error:
            return last_words(error)
        return ""

    def _right(self, way: Way, trainings: Sequence[Training], end: float) -> None:
        # What auto does over a slow link comes first, in a quarter of the time: it is what most users run.
        begun = time.monotonic()
        if 2 in self.ranks:
            with shaped(2, AUTO_LINK) as network:
                if network.refusal:
                    self.left.append(f"right: {_AUTO}: {network.refusal}")
                else:
                    limit = begun + (end - begun) / 4
                    found = find_rows(
                        self.file, "right", way, 2, switching, [_AUTO], deadline=limit, place=network.place
                    )
                    self._leave("right", 2, found)
        worlds = self._worlds(way)
        for number, world in enumerate(worlds):
            now = time.monotonic()
            share = (end - now) * (0.6 if number + 1 < len(worlds) else 1.0)
            self._compare("right", way, world, trainings, now + share)

    def _compare(
        self, part: str, way: Way, world: int, trainings: Sequence[Training], end: float, **options: Any
    ) -> None:
        left = compare_trainings(self.file, part, way, world, trainings, deadline=end, **options)
        self._leave(part, world, left)

    def _streams(self, way: Way, trainings: Sequence[Training], end: float) -> None:
        world, now = self.ranks[0], time.monotonic()
        chosen = [each for each in trainings if each.case in DELAYED]
        self._compare("streams", way, world, chosen, now + (end - now) / 2, job=delayed_training)
        methods = ["twobit"] if self.few else None
        left = find_stream_rows(self.file, way, world, deadline=end, small=self.rehearse, methods=methods)
        self._leave("streams", world, left)

    def _speed(self, way: Way, end: float) -> None:
        cells = (TINY_CELLS[:1] if self.few else TINY_CELLS) if self.rehearse else CELLS
        left = measure_cells(self.file, way, self.ranks[0], cells, deadline=end, small=self.rehearse)
        self.left += [f"speed: {text}" for text in left]

    def _leave(self, part: str, world: int, cases: Sequence[str]) -> None:
        if cases:
            shown = ", ".join(cases[:3]) + (f" and {len(cases) - 3} more" if len(cases) > 3 else "")
            self.left.append(f"{part}, {world} ranks: {shown}: the time was over")


def _started(rank: int) -> int:
    """Do nothing on a rank that is there."""
    return rank


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what torch says of itself, once for each rank, out of the output; the processes of ranks inherit it."""
    added = {name: text for name, text in _SILENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def lines(report: NcclReport) -> list[str]:
    """Write the report for people: the parts, the speeds, what was left out, and the verdict."""
    where = report.where
    gpu = "rehearsed over Gloo on the CPU" if where["rehearsed"] else f"{where['gpu']}, NCCL {where['nccl']}"
    found = [f"{gpu}; {where['machine']}; torch {where['torch']}; {report.seconds:.0f} s", ""]
    for part in SHARES:
        rows = [row for row in report.rows if row["part"] == part]
        found.append(f"{part:<9} {len(rows):>4} rows, {sum(map(is_wrong, rows))} wrong")
    speeds = [row for row in report.rows if "speedup" in row]
    if speeds:
        found += ["", *map(_speed_line, speeds)]
    said = [f"{described(row)}" for row in report.rows if row.get("refused") or row.get("left_out")]
    found += ["", *(f"refused or left out: {text}" for text in said)] if said else []
    found += ["", *(f"left out: {text}" for text in report.left)] if report.left else []
    again = "holds so far: another call with the same file goes on with what was left out"
    return [*found, "", *([f"WRONG: {text}" for text in report.broken] or [again if report.left else "holds"])]


def _speed_line(row: Row) -> str:
    """Describe the speed of one contestant."""
    interval = f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}"
    predicted = "" if row["off"] is None else f", predicted {1e3 * row['predicted']:.0f} ms ({row['off']:+.0%})"
    goals = "".join(f"; {name}: {kept}" for name, kept in row["goals"].items())
    return (
        f"{row['case']}: {1e3 * row['seconds']:.0f} ms a step, {row['per_second']:.0f} a second, waits "
        f"{row['waiting']:.0%}, {row['speedup']:.2f} times DDP ({interval}){predicted}{goals}"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the check without click and rich; ``gradwire check nccl`` is the same command.

    Args:
        words: arguments of the command line; None: those of this process.

    Returns:
        The exit code: 0 where everything holds, 1 where something does not, 2 where nothing can be run, 3 where NCCL
        refuses several ranks, or a link or the time was missing for some of it.
    """
    parser = argparse.ArgumentParser(prog="python -m gradwire_lab.nccl.check", description=NO_GPU)
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)), metavar="N,N")
    parser.add_argument("--minutes", type=float, help=f"Default: {MINUTES:g}; {REHEARSED_MINUTES:g} to rehearse.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="JSON lines; a second call goes on with them.")
    parser.add_argument("--rehearse", action="store_true")
    told = parser.parse_args(words)
    try:
        report = check_nccl(
            told.json,
            ranks=read_ranks(told.ranks),
            minutes=told.minutes,
            rehearse=told.rehearse,
            note=lambda text: sys.stderr.write(f"{text}\n"),
        )
    except GradwireError as error:
        sys.stderr.write(f"gradwire: {error}\n")
        return 3 if isinstance(error, NcclRefusedError) else 2
    sys.stdout.write("\n".join(lines(report)) + "\n")
    return report.exit_code


if __name__ == "__main__":
    # The processes that it starts find what they run by the name of the module.
    from gradwire_lab.nccl import check

    raise SystemExit(check.main())
