"""Recommended settings of each method on a task, read from ``recommended.toml``, which gives the reasons."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradwire import registry
from gradwire_lab.experiments.setup import Setup
from gradwire_lab.experiments.training_method import Method

__all__ = ["BY_TASK", "DIGITS", "MIN_NUMEL", "RECOMMENDED", "labels", "min_numel_of", "recommended", "setup_of"]

DIGITS = "classification"

_TASKS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("recommended.toml").read_text("utf-8"))


def _setup(row: Mapping[str, Any]) -> Setup:
    given = dict(row)
    given["reason"] = given["reason"].removeprefix("\n")
    without = dict.fromkeys(given.pop("without", ()))
    return Setup(**given | {"recipe": {**given.get("recipe", {}), **without}})


BY_TASK = {
    task: {name: _setup(each) for name, each in table.get("methods", {}).items()} for task, table in _TASKS.items()
}
"""The settings of each task, by method."""

RECOMMENDED = BY_TASK[DIGITS]
"""The settings for the digits."""

MIN_NUMEL: int = _TASKS[DIGITS]["min_numel"]
"""Compresses 18,752 of the 19,026 elements of the digits' network; what is left are biases, norms and the 72 elements
of the stem."""


def min_numel_of(task: str) -> int:
    """The fewest elements of a tensor that is compressed on a task; for an unknown task that of the digits.

    Example:
        >>> min_numel_of("segmentation"), min_numel_of("a task of somebody else's")
        (1024, 256)
    """
    return int(_TASKS.get(task, {}).get("min_numel", MIN_NUMEL))


def labels() -> list[str]:
    """Labels worth comparing: every registered compressor, and the alternatives to the recommended settings."""
    return sorted({*registry.usable("compressors"), *RECOMMENDED})


def setup_of(label: str, task: str = DIGITS) -> Setup:
    """The settings of a label on a task, or else of the compressor that it starts with."""
    settings = BY_TASK.get(task, {})
    return settings.get(label) or settings.get(label.partition(":")[0], Setup())


def recommended(name: str, task: str = DIGITS) -> Method:
    """Make the method by which a registered compressor, or another label, is trained on a task.

    Raises:
        ConfigError: no such compressor.
    """
    setup = setup_of(name, task)
    compressor = registry.build("compressors", name.partition(":")[0], setup.params)
    options = {"min_numel": min_numel_of(task), **setup.options}
    return Method(name, compressor, options, setup.loss_scale, setup.recipe, setup.optimizer)
