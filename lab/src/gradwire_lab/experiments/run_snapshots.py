"""Checkpoints of a run in a folder that all workers see.

    FOLDER/settings.json             what is run; another run is refused
    FOLDER/step-00000120/common.pt   the whole model, optimizer, schedule and history, by worker 0
    FOLDER/step-00000120/rank3.pt    a worker's residuals, buffers, generators and losses; under fsdp2 its rows of
                                     the optimizer's state, too
    FOLDER/step-00000120/SHA256SUMS  of the others, as sha256sum -c reads them

Invariants:
    * A step's folder gets its name when it is complete and on the disk, and not before.
    * Nothing is unpickled but tensors and plain values.

Failure modes:
    The folder of the step before is kept, and all workers take it if one of them cannot read its files of the newer
    one, or finds other bytes than were written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire._files import sync
from gradwire.errors import ConfigError, GroupError
from gradwire_lab.experiments.loop import Loop

__all__ = ["RunSnapshots", "differences", "newest", "parameters_in", "steps_in"]

_KEPT = 2
_PREFIX = "step-"
_COMMON, _SUMS = "common.pt", "SHA256SUMS"


@dataclass
class RunSnapshots:
    """The checkpoints of a run in a folder, which it writes and finds again.

    Args:
        folder: folder that all workers see.
        settings: plain JSON values: what the run is.
        every: steps after which it is saved within an epoch, too; None: at the end of an epoch only.
        resume: go on from the newest checkpoint, or begin where there is none.

    Raises:
        ConfigError: the folder has another run, or one that is not to be resumed, or cannot be written.
    """

    folder: Path
    settings: Mapping[str, Any]
    every: int | None = None
    resume: bool = False
    damaged: list[str] = field(default_factory=list, init=False)

    def prepare(self) -> None:
        """Check the folder and make it; to be called once, by the process that starts the run.

        Raises:
            ConfigError: the folder cannot hold this run's checkpoints; see the class.
        """
        there, note = steps_in(self.folder), self.folder / "settings.json"
        if there and not self.resume:
            raise ConfigError(
                f"checkpoint {self.folder} holds a run at step {there[-1]}: go on with it (--resume), or name another "
                "folder"
            )
        if there:
            self._compare(settings_in(note))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            draft = self.folder / f".{note.name}"
            write_text(draft, json.dumps(dict(self.settings)))
            # Never half of it: whoever is killed here must find the settings again.
            draft.replace(note)
        except OSError as error:
            raise ConfigError(f"checkpoint {self.folder} must be a folder that can be written: {error}") from None

    def _compare(self, saved: Mapping[str, Any]) -> None:
        wrong = differences(saved, self.settings)
        if wrong:
            raise ConfigError(f"checkpoint {self.folder} is of another run: {'; '.join(wrong)}")

    def in_epoch(self, loop: Loop) -> None:
        """Save inside an epoch if it is time to; at the end of an epoch ``save`` is called instead."""
        if self.every and loop.step % self.every == 0 and len(loop.losses) < loop.of_epoch:
            with loop.aside():
                self.save(loop)

    def save(self, loop: Loop) -> None:
        """Write a checkpoint. All workers must call it, between steps.

        Raises:
            GroupError: a worker could not write its part.
        """
        place = self.folder / f"{_PREFIX}{loop.step:08d}"
        draft = self.folder / f".{place.name}"
        first = dist.get_rank() == 0
        self._together(lambda: draft.mkdir(parents=True, exist_ok=True), draft)
        sums = self._together(lambda: write(draft / part(dist.get_rank()), loop.own()), draft)
        named = {part(rank): found for rank, found in enumerate(sums)}
        common = loop.common()
        self._together(lambda: self._complete(common, draft, place, named) if first else None, draft)

    def _complete(self, common: Mapping[str, Any], draft: Path, place: Path, sums: Mapping[str, str]) -> None:
        sums = {_COMMON: write(draft / _COMMON, common), **sums}
        write_text(draft / _SUMS, "".join(f"{found}  {name}\n" for name, found in sums.items()))
        sync(draft)
        # One of this name is damaged, or the run would not have come here again.
        shutil.rmtree(place, ignore_errors=True)
        draft.rename(place)
        sync(self.folder)
        for step in steps_in(self.folder)[:-_KEPT]:
            shutil.rmtree(self.folder / f"{_PREFIX}{step:08d}", ignore_errors=True)

    def _together(self, work: Callable[[], object], where: Path) -> list[Any]:
        found, said = everywhere(work)
        if said:
            raise GroupError(f"the checkpoint {where} cannot be written: {said}")
        return found

    def restore(self, loop: Loop) -> None:
        """Resume the run from its last checkpoint, if there is one. All workers must call it.

        Where that checkpoint is damaged they take the one before it, and worker 0 warns.

        Raises:
            ConfigError: there are checkpoints, and none of them can be read.
        """
        for leftover in self.folder.glob(f".{_PREFIX}*") if dist.get_rank() == 0 else ():
            shutil.rmtree(leftover, ignore_errors=True)
        self.damaged.clear()
        found = [steps_in(self.folder) if dist.get_rank() == 0 and self.resume else []]
        dist.broadcast_object_list(found, src=0)
        places = [self.folder / f"{_PREFIX}{step:08d}" for step in reversed(found[0])]
        for number, place in enumerate(places):
            if self._load(loop, place):
                # The run comes to the steps of those that cannot be read again.
                for damaged, said in zip(places[:number], self.damaged, strict=True) if dist.get_rank() == 0 else ():
                    warnings.warn(f"{self.folder}: goes on from {place.name}, because of {said}", stacklevel=2)
                    shutil.rmtree(damaged, ignore_errors=True)
                return
        if found[0]:
            raise ConfigError(f"no checkpoint in {self.folder} can be read: {'; '.join(self.damaged)}")

    def _load(self, loop: Loop, place: Path) -> bool:
        parts: list[dict[str, Any]] = []

        def work() -> None:
            sums = sums_in(place / _SUMS)
            parts.extend(read(place / name, sums) for name in (_COMMON, part(dist.get_rank())))

        _, said = everywhere(work)
        if said:
            self.damaged.append(f"{place.name}: {said}")
            return False
        loop.load(*parts)
        return True


def settings_in(note: Path) -> dict[str, Any]:
    """Read the settings of the run whose checkpoints a folder holds.

    Raises:
        ConfigError: the note cannot be read.
    """
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{note} must hold the settings of the run that is saved there: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{note} must hold the settings of the run that is saved there, got {found!r}")
    return found


def steps_in(folder: Path) -> list[int]:
    """The steps of the saved checkpoints, in order."""
    names = [path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*")]
    return sorted(int(name) for name in names if name.isdigit())


def newest(folder: Path) -> Path | None:
    """The last checkpoint; None if there is none."""
    steps = steps_in(folder)
    return folder / f"{_PREFIX}{steps[-1]:08d}" if steps else None


def parameters_in(path: Path) -> dict[str, Tensor]:
    """Read the parameters that a run saved, by name.

    Args:
        path: the folder of the run, of which the newest checkpoint is taken; one checkpoint in it; or its common.pt.

    Raises:
        ConfigError: the path holds no saved parameters, or its bytes are not those that were written.
    """
    place = path if path.is_file() or (path / _COMMON).is_file() else newest(path)
    if place is None:
        raise ConfigError(
            f"start must be a folder of gradwire train --checkpoint, a checkpoint in it, or its {_COMMON}; {path} is "
            f"{'a folder without any' if path.is_dir() else 'not there'}"
        )
    file = place if place.is_file() else place / _COMMON
    try:
        saved = read(file, sums_in(file.with_name(_SUMS)))
        found = saved.get("params") if isinstance(saved, dict) else None
        if isinstance(found, dict) and found and all(isinstance(value, Tensor) for value in found.values()):
            return found
        said = "it holds no parameters"
    except Exception as error:
        # torch raises whatever its reader meets in a file that is none of its own.
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    raise ConfigError(f"start must be a checkpoint that gradwire train saved, got {file}: {said}")


def differences(saved: Mapping[str, Any], wanted: Mapping[str, Any], under: str = "") -> list[str]:
    """Describe the differences between two nested settings in words.

    >>> differences({"seed": 0, "compressor": {"ratio": 0.1}}, {"seed": 0, "compressor": {"ratio": 0.2}})
    ['compressor.ratio was 0.1, is 0.2']
    """
    found: list[str] = []
    for name in sorted({*saved, *wanted}):
        before, now = saved.get(name), wanted.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            found += differences(before, now, f"{under}{name}.")
        elif before != now:
            found.append(f"{under}{name} was {before!r}, is {now!r}")
    return found


def everywhere(work: Callable[[], object]) -> tuple[list[Any], str]:
    """Do some work on every worker, and return the result or the error of each; all wait for each other."""
    mine: tuple[object, str] = None, ""
    try:
        mine = work(), ""
    except Exception as error:
        # The others must not wait for this worker after any error. torch hides a full disk behind an error of its own.
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        mine = None, f"worker {dist.get_rank()}: {type(cause).__name__}: {cause}"
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return [value for value, _ in found], "; ".join(said for _, said in found if said)


def part(rank: int) -> str:
    """The name of a worker's file."""
    return f"rank{rank}.pt"


def write(path: Path, state: Mapping[str, Any]) -> str:
    """Write a file, and return its SHA-256 when it is on the disk."""
    with path.open("w+b") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sums_in(note: Path) -> dict[str, str] | None:
    """Read the SHA-256 of each file; None for a checkpoint of an earlier version, which has none."""
    if not note.exists():
        return None
    lines = note.read_text(encoding="utf-8").splitlines()
    return {name: found for found, name in (line.split("  ", 1) for line in lines)}


def read(path: Path, sums: Mapping[str, str] | None) -> dict[str, Any]:
    """Read a file, and refuse it if its bytes are not those that were written.

    Raises:
        ValueError: the bytes are not those that were written. Any other exception means the same for a file without a
            sum.
    """
    if sums is not None:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sums.get(path.name):
            raise ValueError(f"the SHA-256 of {path.name} must be {sums.get(path.name)}, got {found}")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
