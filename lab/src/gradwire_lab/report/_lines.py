"""Checks of result lines, so that all code that reads them later may rely on their form.

Invariants:
    The whole line is checked before anything is made of it, and an error names the field that is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from gradwire.errors import ConfigError, Verbatim, require
from gradwire_lab.bench.codec import label
from gradwire_lab.experiments.auto_verdicts import PLAIN
from gradwire_lab.experiments.records import Point, Record, RunSettings
from gradwire_lab.netlab import Link

__all__ = ["Logged", "checked_cell", "checked_codec", "checked_log", "checked_replay", "checked_run"]

_Object = Mapping[str, Any]

_NAMES: dict[Any, str] = {
    Mapping: "an object",
    bool: "true or false",
    float: "a number",
    int: "an integer",
    list: "a list",
    str: "a string",
    NoneType: "null",
}

_PARTS = {
    "settings": _Object,
    "history": list,
    "decisions": list,
    "measures": _Object,
    "baselines": _Object,
    "seconds": _Object,
}
"""Parts of the record of a run, with the type of each."""

_REPLAY = {
    "model": str,
    "method": str,
    "link": str,
    "workers": int,
    "params": _Object | None,
    "options": _Object | None,
    "compute": float | None,
    "error": str,
    "bytes_sent": float | None,
    "interface_bytes": float | None,
    "decisions": list | None,
}
_TIMES = ("seconds", "seconds_low", "seconds_high")

_CELL = {
    "id": str,
    "model": str,
    "link": str,
    "workers": int,
    "compute": float,
    "gradients": str,
    "auto": str,
    "repeat": int,
    "steps": int,
    "budget": float,
    "error": str,
    "parts": list,
    "errors": Mapping[str, float | None],
    "allowed": float,
    "decisions": list,
}
_BUCKET = {"bucket": int, "choice": str, **dict.fromkeys(("exposed", "dense_exposed", "error", "budget"), float | None)}

_CODEC = {"method": str, "params": _Object, "size": int, "op": str, "skipped": str}


def checked_run(line: _Object) -> Record:
    """Check a line of ``gradwire train`` and return its record.

    Raises:
        ConfigError: a field that is missing, or is not what it must be.
    """
    _check_line(_PARTS, line)
    for point in line.get("history", ()):
        _check("history, each point", _Object, point)
    _check_entries(line.get("decisions", ()))
    run = Record.from_dict(line)
    _check_fields("", Record, run)
    _check_fields("settings.", RunSettings, run.settings)
    for point in run.history:
        _check_fields("history.", Point, point)
    _check("environment.jobs", int, run.environment.get("jobs", 1))
    return run


def checked_replay(line: _Object) -> dict[str, Any]:
    """Check a line of ``gradwire replay`` and return its row.

    Raises:
        ConfigError: the line has another form, as for ``checked_run``.
    """
    if "params" not in line:
        raise ConfigError("a row of a replay must have params, an object or null, and this one has none")
    _check_line(_REPLAY, line)
    Link.read(line["link"])
    _check_entries(line.get("decisions") or ())
    if "seconds" in line:
        for name in _TIMES:
            _check_positive(name, line.get(name))
    return dict(line)


def checked_cell(line: _Object) -> dict[str, Any]:
    """Check a line of ``gradwire check auto`` and return its row.

    Raises:
        ConfigError: the line has another form, as for ``checked_run``.
    """
    _check_line(_CELL, line)
    if "error" in line:
        return dict(line)
    missing = sorted(_CELL.keys() - line.keys() - {"error", "steps", "budget"})
    if missing:
        raise ConfigError(f"a cell must have {', '.join(missing)}, and this one has not")
    for part in line["parts"]:
        timed = part.get("methods") if isinstance(part, Mapping) else None
        known = isinstance(timed, Mapping) and timed.keys() >= {PLAIN, line["auto"]}
        require(known and "link" in part, "parts, each", f"an object with link and methods, {PLAIN} among them", part)
        for times in part["methods"].values():
            _check_positive("seconds", times.get("seconds") if isinstance(times, Mapping) else None)
    _check_entries(line["decisions"])
    return dict(line)


def _check_entries(entries: Any) -> None:
    """Check decisions over time, as ``gradwire_lab.experiments.decisions`` writes them."""
    for entry in entries:
        _check("decisions, each", _Object, entry)
        _check("step of a decision", int, entry.get("step"))
        _check("buckets of a decision", list, entry.get("buckets"))
        for bucket in entry["buckets"]:
            _check("bucket of a decision", _Object, bucket)
            _check_line(_BUCKET, bucket)
            require("choice" in bucket, "bucket of a decision", "an object with a choice", bucket)


def checked_codec(line: _Object) -> dict[str, Any]:
    """Check an element of ``gradwire bench codec`` and return its row.

    Raises:
        ConfigError: the line has another form, as for ``checked_run``.
    """
    _check_line(_CODEC, line)
    require(line["size"] > 0, "size", "an integer > 0", line["size"])
    try:
        label(dict(line))
    except KeyError as error:
        raise ConfigError(f"params must be those of {line['method']}, which has no {error}") from None
    if "seconds" in line:
        _check_positive("seconds", line["seconds"])
        _check("wire_bits_per_element", float, line.get("wire_bits_per_element"))
    if "samples" in line:
        given = line["samples"]
        require(isinstance(given, list) and len(given) > 0, "samples", "a list of seconds", given)
        for sample in given:
            _check_positive("samples, each", sample)
    return dict(line)


@dataclass(frozen=True)
class Logged:
    """A step in the log of another trainer.

    Args:
        step: number of the step.
        loss: loss of the step.
        seconds: seconds since training began; None: not known.
        bytes: bytes that a worker had sent until then; None: not known.
    """

    step: int
    loss: float
    seconds: float | None = None
    bytes: float | None = None


def checked_log(line: _Object) -> Logged:
    """Check a line of another trainer, which may have more fields, and return its step.

    Raises:
        ConfigError: step or loss is missing, or a field is not what it must be.
    """
    for name in ("step", "loss"):
        require(name in line, name, "in each line of a trainer, as step and loss are", Verbatim("a line without it"))
    _check("step", int, line["step"])
    # A loss that was not finite is null in strict JSON.
    loss = math.nan if line["loss"] is None else line["loss"]
    _check("loss", float, loss)
    for name in ("seconds", "bytes"):
        value = line.get(name)
        require(value is None or (_fits(float, value) and 0 <= value < math.inf), name, "a number >= 0", value)
    return Logged(line["step"], float(loss), line.get("seconds"), line.get("bytes"))


def _check_line(known: Mapping[str, Any], line: _Object) -> None:
    for name in known.keys() & line.keys():
        _check(name, known[name], line[name])


def _check_fields(prefix: str, kind: type[Any], made: Any) -> None:
    hints = get_type_hints(kind)
    for each in fields(kind):
        _check(prefix + each.name, hints[each.name], getattr(made, each.name))


def _check(name: str, hint: Any, value: Any) -> None:
    require(_fits(hint, value), name, _allowed(hint), value)


def _check_positive(name: str, value: Any) -> None:
    require(_fits(float, value) and 0 < value < math.inf, name, "a number > 0", value)


def _fits(hint: Any, value: Any) -> bool:
    """Return whether a value has a type; an integer counts as a number, and a bool does not."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(part, value) for part in parts)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(_fits(parts[1], each) for each in value.values())
    if hint in _SPECIAL:
        return _SPECIAL[hint](value)
    return isinstance(value, kind or hint)


_SPECIAL: dict[Any, Callable[[Any], bool]] = {
    Any: lambda _: True,
    float: lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool),
}


def _allowed(hint: Any) -> str:
    """Describe a type in words."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return " or ".join(_allowed(part) for part in parts)
    if kind is Mapping and parts[1] is not Any:
        return f"an object, each value {_allowed(parts[1])}"
    return _NAMES.get(kind or hint, str(hint))
