"""Policies: which parameter gets which compressor, and in which steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, is_int, nearest, require
from gradwire.vocabulary import Configuration

__all__ = ["SAMPLED", "Policy", "Schedule"]

Schedule = Callable[[int], float]

SAMPLED = (0, 1, 10, 100, 1000)
"""Steps at which ranks compare their schedules: functions themselves cannot be compared."""


@dataclass(frozen=True)
class Policy(Configuration):
    """Per-parameter choices.

    Args:
        min_numel: parameters with fewer elements travel dense, together. Raising it costs bytes and saves calls. Lower:
            narrow first and last layers are compressed, too, where codes of one or two bits cost quality.
        exclude: name patterns (``fnmatch``) of parameters that travel dense; the name of a module stands for all in it.
        overrides: name pattern to compressor; the first pattern that matches wins over everything else.
        start_after: number of first steps that are dense; residuals stay zero until then.
        schedule: parameter of the main compressor to a function of the step; it starts to count after the warm-up.
            A value that changes the payload's size makes new buffers, so let it change in stages.

    Raises:
        ConfigError: a value outside its range.
    """

    min_numel: int = 1024
    exclude: Sequence[str] = ()
    overrides: Mapping[str, Compressor] = field(default_factory=dict)
    start_after: int = 0
    schedule: Mapping[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(is_int(self.min_numel, 0), "min_numel", "an integer >= 0", self.min_numel)
        require(is_int(self.start_after, 0), "start_after", "an integer >= 0", self.start_after)
        listed = isinstance(self.exclude, Sequence) and not isinstance(self.exclude, str)
        patterns = listed and all(isinstance(pattern, str) for pattern in self.exclude)
        require(patterns, "exclude", "a sequence of name patterns", self.exclude)
        for pattern, compressor in self.overrides.items():
            require(isinstance(compressor, Compressor), f"overrides[{pattern!r}]", "a compressor", compressor)
        for name, value in self.schedule.items():
            require(callable(value), f"schedule[{name!r}]", "a function of the step", value)

    def check(self, compressor: Compressor, names: Sequence[str], world: int = 1, left: Sequence[str] = ()) -> None:
        """Refuse a pattern that matches nothing, and a schedule that the compressor would refuse later.

        Args:
            compressor: the main one.
            names: names of all parameters.
            world: the number of workers.
            left: names of parameters that are not exchanged, which ``exclude`` may match, too.

        Raises:
            ConfigError: a pattern matches nothing, or a schedule leaves the range; the message names the pattern, or
                the parameter and the step.
        """
        excluded = [pattern for pattern in self.exclude if not any(matches(name, pattern) for name in left)]
        for pattern in [*excluded, *self.overrides]:
            if not any(matches(name, pattern) for name in names):
                raise ConfigError(f"pattern {pattern!r} matches no parameter: {nearest(pattern, names)}")
        self.check_schedule(compressor, world)

    def check_schedule(self, compressor: Compressor, world: int = 1) -> None:
        """Refuse a schedule that the compressor would refuse later; arguments and error as for ``check``."""
        known: list[str] = (
            [f.name for f in dataclasses.fields(compressor)] if dataclasses.is_dataclass(compressor) else []
        )
        for name in self.schedule:
            if name not in known:
                raise ConfigError(f"schedule: {compressor.name!r} has no parameter {name!r}: {nearest(name, known)}")
        for step in SAMPLED if self.schedule else ():
            try:
                capabilities.check_world(self.at(self.start_after + step, compressor), world)
            except Exception as error:
                # A schedule is the user's function, and may raise anything.
                raise ConfigError(f"schedule must give valid values, at step {step} it gave: {error}") from error

    def choose(self, name: str, shape: Sequence[int], main: Compressor) -> Compressor | None:
        """The compressor of a parameter; None if it travels dense."""
        found = self._considered(name, shape, main)
        return found if found is not None and capabilities.pays_for(found, shape) else None

    def meant(self, name: str, main: Compressor) -> Compressor:
        """The compressor of a parameter by the policy, even if it travels dense."""
        found = self._override(name)
        return main if found is None or capabilities.identity(found) else found

    def would_grow(self, name: str, shape: Sequence[int], main: Compressor) -> bool:
        """Return whether a parameter travels dense only because its payload would not be smaller."""
        found = self._considered(name, shape, main)
        return found is not None and not capabilities.pays_for(found, shape)

    def _override(self, name: str) -> Compressor | None:
        return next((each for pattern, each in self.overrides.items() if matches(name, pattern)), None)

    def _considered(self, name: str, shape: Sequence[int], main: Compressor) -> Compressor | None:
        """The compressor of a parameter if it pays; None: the parameter is small or excluded, and travels dense."""
        found = self._override(name)
        if found is not None:
            return found
        small = math.prod(shape) < self.min_numel
        return None if small or any(matches(name, pattern) for pattern in self.exclude) else main

    def at(self, step: int, main: Compressor) -> Compressor:
        """The main compressor with the schedule's values for this step."""
        if not self.schedule:
            return main
        since = max(0, step - self.start_after)
        values = {name: as_before(getattr(main, name), value(since)) for name, value in self.schedule.items()}
        return dataclasses.replace(main, **values)  # type: ignore[type-var]

    def to_config(self) -> dict[str, Any]:
        """Return plain values for the comparison between ranks; a schedule is represented by its first values."""
        return {
            "min_numel": self.min_numel,
            "exclude": list(self.exclude),
            "start_after": self.start_after,
            "overrides": {pattern: c.to_config() for pattern, c in self.overrides.items()},
            "schedule": {name: [value(step) for step in SAMPLED] for name, value in self.schedule.items()},
        }


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a parameter's name, or is the name of a module that the parameter is in.

    >>> [matches("block.1.weight", pattern) for pattern in ("*.weight", "block.1", "block.1.bias", "block.10")]
    [True, True, False, False]
    """
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def as_before(before: Any, value: float) -> Any:
    """Convert a scheduled value to an integer if the parameter is one, such as a rank."""
    return round(value) if isinstance(before, int) else value
