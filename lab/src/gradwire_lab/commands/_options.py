"""The forms in which a size, the parameters of a compressor, and a file of results are given on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from gradwire import registry
from gradwire.cli.command_group import Integer, Number
from gradwire.cli.output import refused
from gradwire.errors import ConfigError, nearest
from gradwire.frontends.setup import is_auto
from gradwire.registry import assignment
from gradwire_lab.experiments.method_text import method_of, text_of
from gradwire_lab.experiments.records import check
from gradwire_lab.experiments.torchhooks import PREFIX
from gradwire_lab.experiments.training_method import Method

__all__ = ["PATIENCE", "Seconds", "appendable", "budget_option", "chosen", "pairs", "parse_size", "steps_option"]

_LARGEST = 1 << 31

Command = TypeVar("Command", bound=Callable[..., Any])


class Seconds(Number):
    """An option type: seconds, as a positive number."""

    noun = "a number of seconds"


PATIENCE = Seconds(0, 1e6, min_open=True)
"""Seconds that workers may wait for each other: eleven days at most, which every library on the way can count."""


def appendable(path: Path) -> None:
    """Refuse a file to which no line of results can be appended, before the work starts.

    Raises:
        ConfigError: the file cannot be written, or ends with something else.
    """
    said = refused(path)
    if said:
        raise ConfigError(said)
    check(path)


def parse_size(text: str) -> int:
    """Read a number of elements, 1 to 2^31.

    >>> parse_size("2^24"), parse_size("16777216"), parse_size("25_000_000")
    (16777216, 16777216, 25000000)
    """
    found = re.fullmatch(r"(\d[\d_]*)(?:(?:\^|\*\*)(\d{1,3}))?", text.strip())
    size = int(found[1]) ** int(found[2] or 1) if found else 0
    if not 1 <= size <= _LARGEST:
        raise ConfigError(f"a size must be in [1, 2^31], as 16777216 or 2^24, got {text!r}")
    return size


def pairs(rest: Sequence[str]) -> list[tuple[str, Any]]:
    """Read ``--NAME VALUE`` and ``--NAME=VALUE`` into pairs of name and value.

    >>> pairs(["--ratio", "0.01", "--error-feedback=local"])
    [('ratio', 0.01), ('error_feedback', 'local')]
    """
    words, found = list(rest), []
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if not re.fullmatch(r"--[a-z][\w-]*", flag):
            raise click.UsageError(f"got unexpected argument {flag!r}")
        if not equals:
            if not words:
                raise click.UsageError(f"option {flag} needs a value")
            value = words.pop(0)
        found.append(assignment(f"{flag[2:].replace('-', '_')}={value}"))
    return found


def chosen(text: str, params: Sequence[tuple[str, Any]], task: str, *, own: bool) -> Method:
    """Build the chosen method with its parameters, wherever on the command line they were written.

    >>> chosen("auto", [("budget", "small")], "classification", own=False).auto
    'auto:budget=small'

    Raises:
        ConfigError: no such compressor or parameter.
    """
    name, _, tail = text.partition(":")
    before = [assignment(part) for part in tail.split(",")] if tail else []
    if name.startswith(PREFIX) or is_auto(text):
        return method_of(text_of(name, [*before, *params]), task)
    kind = registry.find("compressors", name)
    known = [*registry.parameters(kind)]
    for given, _ in params:
        if given not in known:
            allowed = nearest(given, known) if known else "it has none"
            raise ConfigError(f"--{given} is no option, and no parameter of {name}: {allowed}")
    return method_of(text_of(name, [*before, *params]), task, own=own)


def steps_option(default: int, least: int, text: str) -> Callable[[Command], Command]:
    """The option ``--steps`` of a command that times steps.

    Args:
        default: number of steps where the option is not given.
        least: the fewest steps of which a figure can be made.
        text: help text of the option.
    """
    return click.option("--steps", default=default, show_default=True, type=Integer(least), help=text)


def budget_option(default: float, text: str) -> Callable[[Command], Command]:
    """The option ``--budget`` of such a command: the seconds that its steps may take, > 0.

    Args:
        default: seconds where the option is not given.
        text: end of the help text: what is left out where the steps would take longer.
    """
    seconds = Number(0, min_open=True)
    return click.option("--budget", default=default, show_default=True, type=seconds, metavar="SECONDS", help=text)
