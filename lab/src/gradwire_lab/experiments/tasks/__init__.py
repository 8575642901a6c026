"""Benchmark tasks, one in each file: data, model, recipe and the measure of quality. The contract is in ``base``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire.registry import names_in
from gradwire_lab.folders import load

if TYPE_CHECKING:
    from gradwire_lab.experiments.tasks.base import Task

__all__ = ["find_task", "task_names"]


def task_names() -> tuple[str, ...]:
    """The names of all tasks.

    >>> "classification" in task_names()
    True
    """
    return tuple(name for name in names_in(__path__) if name != "base")


def find_task(name: str) -> type[Task]:
    """Find the class of a task.

    Raises:
        ConfigError: no such file; the message gives the nearest known name.

    Example:
        >>> find_task("classification").__name__
        'Classification'
    """
    module = load(__name__, "task", name, task_names())
    (found,) = (each for each in vars(module).values() if getattr(each, "name", None) == name)
    task: type[Task] = found
    return task
