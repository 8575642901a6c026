"""What a run leaves behind: one JSON line, written when it ended, that says what was run, where, and what came out.

Law: a file of lines can be appended to by one writer at a time, read while it is written, and cut anywhere: a last
line without its end is no line. A line is known by its ``id``, which depends on the settings and on nothing that was
measured; so a run is there or it is not, whatever machine it ran on.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from gradwire.errors import ConfigError

__all__ = ["SCHEMA", "Point", "Record", "Settings", "append", "read"]

SCHEMA = 1
"""Of the lines; a reader refuses what is newer."""


@dataclass(frozen=True)
class Settings:
    """What determines a run, all of it plain JSON values.

    Args:
        task: a file of ``gradwire.bench.tasks``.
        model: as ``Task.model_name``.
        data: as ``Task.data.name``.
        method: the label: a row's name in tables and plots.
        compressor: the configuration, ``Compressor.to_config()``; None: a baseline that torch brings.
        options: for ``compress_ddp``: memory, strategy, min_numel, ...
        loss_scale: see ``gradwire.bench.train.Method``.
        recipe: what differs from the task's own.
        workers: processes.
        link: between them, as ``str(Link)``; "none": the loopback.
        seed: of the initial parameters.
        epochs: passes over the data.
        backend: of torch.distributed.
        device: of the models.
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

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits; equal settings have equal ones, in every process and on every machine."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Point:
    """Where a run stood at the end of an epoch.

    Args:
        epoch: how many had ended, from 1 on.
        step: how many steps had been made.
        seconds: of training, without evaluations, since its begin.
        loss: mean over the epoch, of worker 0.
        quality: over the test set.
        bytes_sent: by a worker until then.
    """

    epoch: int
    step: int
    seconds: float
    loss: float
    quality: float
    bytes_sent: float


@dataclass(frozen=True)
class Record:
    """A run and what came of it; figures of worker 0 unless said otherwise.

    Args:
        settings: what was run.
        measure: what quality is, in words.
        higher_is_better: of it.
        status: "ok", or "failed": then ``error`` says why and the figures are those until then.
        error: one line, or empty.
        quality: at the end, over the test set.
        measures: everything that the task measures.
        baselines: what the measure is without any learning.
        history: one point for each epoch.
        steps: that were made.
        examples_per_second: of all workers together, without evaluations.
        seconds: means of a step: ``step``, ``compute``, ``compress``, ``communicate``, ``decompress``.
        bytes_per_step: that a worker hands to collectives, packed as it is sent.
        unpacked_bytes_per_step: what it would hand over were each code held in the smallest whole integer or float
            type; None: not known.
        dense_bytes_per_step: of an uncompressed exchange.
        interface_bytes_per_step: that a worker's own network interface sent, by the kernel's counters; None: no lab.
        state_bytes: that a worker keeps from step to step for the method.
        peak_rss_bytes: of a worker, the largest.
        nonfinite_steps: that were left out.
        identical: all workers ended with the same bits.
        digest: of the parameters, SHA-256.
        environment: columns of ``gradwire.bench.machine.environment``, the versions and the commit among them.
        started: UTC, ISO 8601.
        resumed: how often it was taken up again.
        wall_seconds: that the run took, from the making of its model to this record; None: it failed.
    """

    settings: Settings
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
    nonfinite_steps: int = 0
    identical: bool = True
    digest: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    resumed: int = 0
    wall_seconds: float | None = None

    def to_json(self) -> str:
        """One line without its end."""
        line = {"schema": SCHEMA, "kind": "train", "id": self.settings.id, **dataclasses.asdict(self)}
        return json.dumps(line, separators=(",", ":"), allow_nan=True)

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Self:
        """The record of a parsed line; keys that this version does not know are left out.

        Raises:
            ConfigError: it is no line of a run, of a newer schema, or a field is missing.
        """
        if line.get("kind") != "train" or not isinstance(line.get("schema"), int):
            raise ConfigError("a line of results must have kind 'train' and a schema")
        if line["schema"] > SCHEMA:
            raise ConfigError(f"a line of schema {line['schema']}: this version reads up to {SCHEMA}")
        try:
            inner: dict[str, Any] = {"settings": Settings(**_known(Settings, line["settings"]))}
            inner["history"] = tuple(Point(**_known(Point, point)) for point in line.get("history", ()))
            return cls(**(_known(cls, line) | inner))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"a line of results is not complete: {error}") from None


def append(path: Path, record: Record) -> None:
    """Add a line and wait until it is on the disk; what a killed writer left of a line before it is cut off."""
    with path.open("a+b") as file:
        # Parts of a sweep may run side by side.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write(record.to_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> Iterator[Record]:
    """The records of a file, in their order; a last line without its end is not there.

    Raises:
        ConfigError: a line that is no record; it names the file and the line.
    """
    for number, text in enumerate(_lines(path), 1):
        try:
            yield Record.from_dict(json.loads(text))
        except (ValueError, AttributeError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None


def _lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].splitlines()


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in dataclasses.fields(kind)}
    return {name: value for name, value in values.items() if name in names}
