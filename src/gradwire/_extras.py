"""Packages that not every installation has, and the extra that brings each."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata

__all__ = ["declared", "extra_of", "needs", "remedy"]

_DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "zmq": "pyzmq"}
"""Import name to distribution, where they differ by more than a hyphen: a package that is missing cannot be asked."""

_COLLECTIONS = ("docs", "test")
"""Extras for work on gradwire itself: they are not named where another one brings the package."""


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Have an import that fails say which extra of gradwire brings the package.

    Raises:
        ImportError: with the command that installs it.
    """
    try:
        yield
    except ImportError as error:
        # A part of gradwire that is missing, or an error that already has a remedy, is no matter of this extra.
        if (error.name or "").partition(".")[0] == "gradwire" or "pip install" in str(error):
            raise
        raise ImportError(f"{error}: pip install 'gradwire[{extra}]'", name=error.name, path=error.path) from error


@cache
def declared() -> dict[str, list[str]]:
    """Extra to distributions, from the installed metadata; an extra that includes another one lists only its own."""
    try:
        requirements = metadata.requires("gradwire") or []
    except metadata.PackageNotFoundError:
        return {}
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        found = re.match(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]", requirement)
        if found and found[1] != "gradwire":
            extras.setdefault(found[2], []).append(found[1])
    return extras


def extra_of(module: str) -> str | None:
    """The extra that brings a module.

    Args:
        module: as it is imported, with or without its submodules.

    Returns:
        The extra's name; None: no extra of gradwire brings it.

    >>> extra_of("zmq.auth"), extra_of("PIL.Image"), extra_of("torch")
    ('kvstore', 'bench', None)
    """
    top = module.partition(".")[0]
    wanted = _bare(_DISTRIBUTIONS.get(top, top))
    found = [extra for extra, names in declared().items() if wanted in map(_bare, names)]
    return min(found, key=lambda extra: extra in _COLLECTIONS, default=None)


def remedy(error: ImportError) -> str | None:
    """One line that says what to install for an import that failed; None: no extra of gradwire would help."""
    if "pip install" in str(error):
        return " ".join(str(error).split())
    module = (error.name or "").partition(".")[0]
    extra = extra_of(module) if isinstance(error, ModuleNotFoundError) else None
    return None if extra is None else f"{module} is not installed: pip install 'gradwire[{extra}]'"


def _bare(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
