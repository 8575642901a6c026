"""Packages that not every installation has."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["needs"]


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Have an import that fails say which extra of gradwire brings the package.

    Raises:
        ImportError: with the command that installs it.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'gradwire[{extra}]'", name=error.name, path=error.path) from error
