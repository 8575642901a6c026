"""Records of runs: one JSON line each, written at the end, with the settings, the place and the results.

Invariants:
    * A file of lines can be appended to by one writer at a time, read while it is written, and cut anywhere: an
      incomplete last line is ignored.
    * A line is identified by its ``id``, which depends on the settings and on nothing that was measured. So a run is in
      the file or it is not, whatever machine it ran on.
    * Lines are JSON, in which a number that is not finite is null.
    * Text that another program wrote into the file is never cut off.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

from gradwire._files import for_json
from gradwire.errors import ConfigError

__all__ = ["SCHEMA", "Point", "Record", "RunSettings", "append", "append_line", "check", "counted", "kind_of", "read"]

SCHEMA = 1
"""The version of the lines; a reader refuses what is newer."""

_BEGINS = (b'{"schema":', b'{"model":', b'{"kind":')
"""Beginnings of the lines that are appended: records, rows of replays, and cells of ``gradwire check auto``."""

_BLOCK = 1 << 16

_REPLAY = {"model", "method", "link", "workers", "parameters"}
_CODEC = {"method", "params", "op", "size"}


@dataclass(frozen=True)
class RunSettings:
    """The settings that determine a run, all of them plain JSON values.

    Args:
        task: a file of ``gradwire_lab.experiments.tasks``.
        model: name of the model, from ``Task.model_name``.
        data: name of the data, from ``Task.data.name``.
        method: the label: a row's name in tables and plots.
        compressor: the configuration, ``Compressor.to_config()``; None: a baseline that torch brings.
        options: further arguments of ``compress_ddp``: memory, strategy, min_numel, ...
        loss_scale: see ``gradwire_lab.experiments.train.Method``.
        recipe: settings that differ from the task's own recipe.
        workers: processes.
        link: link between the workers, as ``str(Link)``; "none": the loopback.
        seed: seed of the initial parameters, or of the order of the examples where ``start`` gives the parameters.
        epochs: passes over the data.
        backend: backend of torch.distributed.
        device: device of the models.
        data_digest: digest of data that comes from a folder: another text under the same name is another run; None: the
            data is embedded.
        start: SHA-256 of the parameters that it begins with; None: those that the seed draws.
        optimizer: optimizer of ``gradwire.optim`` that exchanges, its name and its parameters; None: gradients are
            exchanged.
        hook: hook of torch that exchanges, its name and its parameters; None: ours.
        parallel: way in which the model is distributed, "fsdp2"; None: DDP, or as the optimizer or the hook does.
        weights: the method for the weights under FSDP2; None: they are gathered as they are.
        tuned: true: the learning rate is one of several, of which the best on the first seed is what the method is
            compared at. It is no part of the id: the run is the same.
    """

    task: str
    model: str
    data: str
    method: str
    compressor: Mapping[str, Any] | None
    options: Mapping[str, Any] = field(default_factory=dict)
    loss_scale: float = 1.0
    recipe: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 2
    link: str = "none"
    seed: int = 0
    epochs: int = 1
    backend: str = "gloo"
    device: str = "cpu"
    data_digest: str | None = None
    start: str | None = None
    optimizer: Mapping[str, Any] | None = None
    hook: Mapping[str, Any] | None = None
    parallel: str | None = None
    weights: str | None = None
    tuned: bool = False

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits, which are equal for equal settings in every process and on every machine."""
        known = dataclasses.asdict(self)
        del known["tuned"]
        # Runs that were recorded before there were such keep their ids.
        for name in ("data_digest", "start", "optimizer", "hook", "parallel", "weights"):
            if known[name] is None:
                del known[name]
        # Runs with memory "none" keep their ids, too, though it needs ``force`` now, which changes no bit.
        if known["options"].get("memory") == "none":
            known["options"].pop("force", None)
        text = json.dumps(known, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Point:
    """The state of a run at the end of an epoch.

    Args:
        epoch: number of epochs that had ended, from 1 on.
        step: number of steps that had been made.
        seconds: seconds of training, without evaluations, since its begin.
        loss: mean over the epoch, of worker 0.
        quality: quality over the test set.
        bytes_sent: bytes that a worker has sent until then.
    """

    epoch: int
    step: int
    seconds: float
    loss: float
    quality: float
    bytes_sent: float


@dataclass(frozen=True)
class Record:
    """A run and its results; figures are those of worker 0 unless said otherwise.

    Args:
        settings: settings of the run.
        measure: name of the quality, in words.
        higher_is_better: true: a higher quality is better.
        status: "ok", or "failed": then ``error`` says why and the figures are those until then.
        error: one line, or empty.
        quality: quality at the end, over the test set; None: the run failed; NaN: it diverged.
        measures: values of everything that the task measures.
        baselines: values of the measure without any learning.
        history: one point for each epoch.
        steps: number of steps that were made.
        examples_per_second: examples per second of all workers together, without evaluations.
        seconds: means of a step: ``step``, ``compute``, ``compress``, ``communicate``, ``decompress``.
        bytes_per_step: bytes that a worker hands to collectives, packed as they are sent.
        unpacked_bytes_per_step: bytes that a worker would hand over if each code were held in the smallest whole
            integer or float type; None: not known.
        dense_bytes_per_step: bytes of an uncompressed exchange.
        interface_bytes_per_step: bytes that a worker's own network interface sent, by the kernel's counters; None: no
            lab.
        state_bytes: bytes that a worker keeps from step to step for the method.
        peak_rss_bytes: largest resident memory of a worker, in bytes.
        start_rss_bytes: resident memory of this worker at the begin of the run, in bytes, libraries and data among it;
            None: not known.
        nonfinite_steps: number of steps that were left out because a gradient was not finite.
        identical: all workers ended with the same bits.
        digest: digest of the parameters, SHA-256.
        environment: columns of ``gradwire_lab.bench.machine.environment``, the versions and the commit among them.
        started: UTC, ISO 8601.
        resumed: number of times that the run was resumed.
        wall_seconds: seconds that the run took, from the making of its model to this record; None: it failed.
        data_digest: digest of the data, embedded or not, SHA-256; None: not known.
        decisions: decisions of "auto", entries of ``gradwire_lab.experiments.decisions``; none without it.
    """

    settings: RunSettings
    measure: str
    higher_is_better: bool
    status: str = "ok"
    error: str = ""
    quality: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    baselines: Mapping[str, float] = field(default_factory=dict)
    history: Sequence[Point] = ()
    steps: int = 0
    examples_per_second: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    bytes_per_step: float | None = None
    unpacked_bytes_per_step: float | None = None
    dense_bytes_per_step: float | None = None
    interface_bytes_per_step: float | None = None
    state_bytes: int | None = None
    peak_rss_bytes: int | None = None
    start_rss_bytes: int | None = None
    nonfinite_steps: int = 0
    identical: bool = True
    digest: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    resumed: int = 0
    wall_seconds: float | None = None
    data_digest: str | None = None
    decisions: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> str:
        """Return one line of JSON without its line end."""
        line = {"schema": SCHEMA, "kind": "train", "id": self.settings.id, **dataclasses.asdict(self)}
        return json.dumps(for_json(line), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Self:
        """Make a record from a parsed line; keys that this version does not know are left out.

        Where a number must be, null is NaN; the quality of a run that failed is None.

        Raises:
            ConfigError: the line belongs to no run or to a newer schema, or a field is missing.
        """
        if line.get("kind") != "train" or not isinstance(line.get("schema"), int):
            raise ConfigError("a line of results must have kind 'train' and a schema")
        if line["schema"] > SCHEMA:
            raise ConfigError(f"a line of schema {line['schema']}: this version reads up to {SCHEMA}")
        try:
            inner: dict[str, Any] = {"settings": RunSettings(**_known(RunSettings, line["settings"]))}
            inner["history"] = tuple(Point(**_numbers(_known(Point, point))) for point in line.get("history", ()))
            inner["decisions"] = tuple(line.get("decisions", ()))
            inner |= {name: _numbers(line[name]) for name in ("measures", "baselines", "seconds") if name in line}
            if line.get("status", "ok") == "ok":
                inner |= _numbers({name: line[name] for name in ("quality",) if name in line})
            return cls(**(_known(cls, line) | inner))
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"a line of results is not complete: {error}") from None


def append(path: Path, record: Record) -> None:
    """Append a record to a file, as ``append_line`` does."""
    append_line(path, record.to_json())


def append_line(path: Path, text: str) -> None:
    """Append a line, and wait until it is on the disk.

    What a killed writer left of a line before it is cut off, and a line that lacks only its end gets it.

    Args:
        path: path of a file of results; it is made if need be.
        text: a record or a row as JSON, without an end.

    Raises:
        ConfigError: the file ends with something that is no line of results; it is left as it was.
    """
    if path.exists() and not path.is_file():
        # A pipe has no end that could be mended.
        with path.open("ab") as pipe:
            pipe.write(f"{text}\n".encode())
        return
    with path.open("a+b") as file:
        # Parts of a sweep may run side by side.
        fcntl.flock(file, fcntl.LOCK_EX)
        start, tail = _tail(file)
        if tail and not _complete(path, tail):
            file.truncate(start)
            tail = b""
        file.write((b"\n" if tail else b"") + text.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def check(path: Path) -> None:
    """Raise the error that ``append_line`` would raise, before the work starts; the file is not changed.

    Raises:
        ConfigError: the file ends with something that is no line of results.
    """
    if path.is_file():
        with path.open("rb") as file:
            _, tail = _tail(file)
        if tail:
            _complete(path, tail)


def read(path: Path) -> Iterator[Record]:
    """Read the records of a file in their order; rows of other kinds, and a last line that is cut off, are skipped.

    Raises:
        ConfigError: a line that is no result; it names the file and the line.
    """
    *lines, tail = path.read_bytes().split(b"\n")
    if tail and _parsed(tail) is not None:
        lines.append(tail)
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            if kind_of(line) in ("train", None):
                yield Record.from_dict(line)
        except (ValueError, AttributeError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None


def kind_of(line: Mapping[str, Any]) -> str | None:
    """The kind of a parsed line: "train", "auto", "replay" or "codec"; None for any other."""
    if line.get("kind") in ("train", "auto"):
        return str(line["kind"])
    if line.keys() >= _REPLAY and line.keys() & {"seconds", "error"}:
        return "replay"
    if line.keys() >= _CODEC and line.keys() & {"seconds", "skipped"}:
        return "codec"
    return None


def counted(runs: Iterable[Record]) -> dict[str, Record]:
    """The record that counts among several runs with equal settings, by id: the last that did not
    fail, else the last.
    """
    kept: dict[str, Record] = {}
    for run in runs:
        before = kept.get(run.settings.id)
        if before is None or run.status == "ok" or before.status != "ok":
            kept[run.settings.id] = run
    return kept


def _tail(file: BinaryIO) -> tuple[int, bytes]:
    """The position after the last line end, and the text that follows it."""
    place, tail = file.seek(0, os.SEEK_END), b""
    while place and b"\n" not in tail:
        before = max(place - max(_BLOCK, len(tail)), 0)
        file.seek(before)
        tail = file.read(place - before) + tail
        place = before
    begin = tail.rfind(b"\n") + 1
    return place + begin, tail[begin:]


def _complete(path: Path, tail: bytes) -> bool:
    """Return whether a line lacks only its line end; otherwise it must be the beginning of one of our lines."""
    line = _parsed(tail)
    if line is not None and kind_of(line) is not None:
        return True
    if line is None and any(tail.startswith(begin) or begin.startswith(tail) for begin in _BEGINS):
        return False
    shown = tail[:40].decode(errors="replace")
    raise ConfigError(f"{path} must be a file of results: what it ends with is no line of one, got {shown!r}")


def _parsed(tail: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(tail)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Restore the numbers that ``for_json`` replaced."""
    return {name: math.nan if value is None else value for name, value in values.items()}


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in dataclasses.fields(kind)}
    return {name: value for name, value in values.items() if name in names}
