"""Messages of gradwire's log, for processes of ranks, which pytest's own fixture does not reach."""

from __future__ import annotations

import logging

from gradwire.notices import log

__all__ = ["heard"]


NAME = "gradwire: "


def without_name(text: str) -> str:
    """Take the name of the package from the beginning of a message, where all messages have it."""
    assert text.startswith(NAME), text
    return text.removeprefix(NAME)


def heard(level: int = logging.INFO) -> list[str]:
    """Listen to gradwire's log from now on: a list that grows with each message of ``level`` or above.

    >>> said = heard()
    >>> log.info("bucket %d", 3)
    >>> said
    ['bucket 3']
    """
    said: list[str] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: said.append(without_name(record.getMessage()))  # type: ignore[method-assign]
    log.addHandler(handler)
    log.setLevel(min(level, log.level or level))
    return said
