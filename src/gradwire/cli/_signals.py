"""A request to end is what Ctrl-C is."""

from typing import Any, NoReturn

__all__ = ["interrupt"]


def interrupt(*_: Any) -> NoReturn:
    """A handler of SIGTERM.

    Raises:
        KeyboardInterrupt: always.
    """
    raise KeyboardInterrupt
