"""Messages while a model trains: the logger of the package, and the few lines that are shown by default."""

from __future__ import annotations

import logging
import sys

__all__ = ["log", "tell"]

NAME = "gradwire"


class _Named(logging.Filter):
    """Put the name of the package in front of its messages, which many formats of a log leave out."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = f"{NAME}: {record.msg}"
        return True


log = logging.getLogger(NAME)
"""The logger of the package."""

log.addFilter(_Named())


def tell(text: str, *args: object, quiet: bool = False) -> None:
    """Log a line that users are to see: on stderr where nobody has set up logging, which would drop it.

    Where there is a handler, or the logger ``gradwire`` has a level, these decide, as for any other line.

    Args:
        text: line, with places for ``args`` as ``logging`` has them.
        args: values for these places.
        quiet: true: log it only.

    Example:
        >>> tell("step %d: %s", 19, "eden for all gradients")
    """
    shown = log.level == logging.NOTSET and logging.root.manager.disable < logging.INFO
    if shown and not quiet and not log.hasHandlers():
        record = log.makeRecord(NAME, logging.INFO, "", 0, text, args, None)
        log.filter(record)
        # A handler takes no error of a terminal or a disk to who trains.
        logging.StreamHandler(sys.stderr).handle(record)
    else:
        log.info(text, *args, stacklevel=2)
