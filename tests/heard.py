"""Messages of gradwire's log, for processes of ranks, which pytest's own fixture does not reach."""

from __future__ import annotations

import logging

__all__ = ["heard"]


def heard(level: int = logging.INFO) -> list[str]:
    """Listen to gradwire's log from now on: a list that grows with each message of ``level`` or above.

    >>> said = heard()
    >>> logging.getLogger("gradwire").info("bucket %d", 3)
    >>> said
    ['bucket 3']
    """
    said: list[str] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("gradwire")
    log.addHandler(handler)
    log.setLevel(min(level, log.level or level))
    return said
