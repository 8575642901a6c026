"""SIGTERM handled as Ctrl-C is."""

from typing import Any, NoReturn

__all__ = ["interrupt"]


def interrupt(*_: Any) -> NoReturn:
    """Raise ``KeyboardInterrupt``; a handler for SIGTERM.

    Raises:
        KeyboardInterrupt: every call raises it.
    """
    raise KeyboardInterrupt
