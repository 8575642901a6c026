"""Packages that not every installation has, and the extra that brings each."""

import json
import operator
import platform
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["declared", "install", "laboratory", "needs", "remedy", "source"]

_DISTRIBUTIONS = {"zmq": "pyzmq"}
"""Import name to distribution, where they differ by more than a hyphen: a package that is missing cannot be asked."""

_NAMED = "gradwire @ "
"""Text that stands before the address of a source that is neither here nor in an index."""

_COLLECTIONS = ("docs", "test")
"""Extras for work on gradwire itself: they are not named where another one brings the package."""

_HERE = {
    "platform_machine": platform.machine(),
    "platform_system": platform.system(),
    "python_version": ".".join(platform.python_version_tuple()[:2]),
}
"""Environment markers by which a requirement is for some platforms only, with their values here."""

_COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">=": operator.ge,
}
"""Comparisons of markers. Versions of Python are compared as text, which is right from 3.10 to 3.99."""


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Make a failed import say which extra of gradwire brings the package.

    Raises:
        ImportError: the package is missing; the message gives the command that installs it.
    """
    try:
        yield
    except ImportError as error:
        # A part of gradwire that is missing, or an error that already has a remedy, is no matter of this extra.
        if (error.name or "").partition(".")[0] == "gradwire" or "pip install" in str(error):
            raise
        raise ImportError(f"{error}: {install(extra)}", name=error.name, path=error.path) from error


@cache
def source() -> tuple[str, bool]:
    """The place from which this gradwire was installed, as pip takes it, and whether it is an editable install.

    Returns:
        The folder or file that pip was given, where it is still there; the address of a repository with its commit; and
        otherwise the name alone, as for an install from a package index.
    """
    try:
        found = json.loads(metadata.distribution("gradwire").read_text("direct_url.json") or "{}")
        return _place(found)
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError, AttributeError):
        # The package is not installed, its folder may not be read by this user, or its file has another form.
        return "gradwire", False


def _place(found: Any) -> tuple[str, bool]:
    url, folder = urlsplit(found.get("url", "")), found.get("subdirectory")
    inside = f"#subdirectory={folder}" if folder else ""
    if "vcs_info" in found:
        told = found["vcs_info"]
        return f"{_NAMED}{told['vcs']}+{found['url']}@{told['commit_id']}{inside}", False
    if url.scheme == "file" and Path(path := unquote(url.path)).exists():
        return path, bool(found.get("dir_info", {}).get("editable"))
    return (f"{_NAMED}{found['url']}{inside}" if url.scheme.startswith("http") else "gradwire"), False


def install(extra: str) -> str:
    """The command that installs an extra of this gradwire, from the place from which gradwire was installed.

    >>> "[kvstore]" in install("kvstore")
    True
    """
    place, editable = source()
    named = place.startswith(_NAMED)
    what = f"gradwire[{extra}] @ {place.removeprefix(_NAMED)}" if named else f"{place}[{extra}]"
    return f"pip install {'-e ' if editable else ''}{shlex.quote(what)}"


def laboratory() -> str:
    """The command that installs the laboratory of this gradwire, ``lab/`` of its repository.

    >>> laboratory().startswith("pip install ")
    True
    """
    place, editable = source()
    folder = Path(place, "lab")
    if folder.is_dir():
        return f"pip install {'-e ' if editable else ''}{shlex.quote(str(folder))}"
    if place.startswith(f"{_NAMED}git+"):
        address = place.removeprefix(_NAMED).partition("#")[0]
        return f"pip install {shlex.quote(f'gradwire-lab @ {address}#subdirectory=lab')}"
    return "pip install gradwire-lab"


@cache
def declared() -> dict[str, dict[str, bool]]:
    """Map each extra to its distributions, from the installed metadata, and each of these to whether it is for this
    platform; an extra that includes another lists only its own.
    """
    try:
        requirements = metadata.requires("gradwire") or []
    except metadata.PackageNotFoundError:
        return {}
    extras: dict[str, dict[str, bool]] = {}
    for requirement in requirements:
        found = re.match(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]", requirement)
        if found and found[1] != "gradwire":
            extras.setdefault(found[2], {})[found[1]] = _for_here(requirement)
    return extras


def _for_here(requirement: str) -> bool:
    """Return whether the markers of a requirement, which all have to hold, hold here."""
    markers = re.findall(rf"({'|'.join(_HERE)}) *([=!<>]=?) *['\"]([^'\"]+)['\"]", requirement)
    return all(_COMPARISONS[sign](_HERE[name], value) for name, sign, value in markers)


def extra_of(module: str) -> str | None:
    """The extra that brings a module, or one of its submodules; None: no extra of gradwire does.

    >>> extra_of("zmq.auth"), extra_of("torch")
    ('kvstore', None)
    """
    top = module.partition(".")[0]
    wanted = _bare(_DISTRIBUTIONS.get(top, top))
    found = [extra for extra, names in declared().items() if wanted in map(_bare, names)]
    return min(found, key=lambda extra: extra in _COLLECTIONS, default=None)


def remedy(error: ImportError) -> str | None:
    """One line that says what to install for an import that failed; None if no extra of gradwire would help."""
    if "pip install" in str(error):
        return " ".join(str(error).split())
    module = (error.name or "").partition(".")[0]
    extra = extra_of(module) if isinstance(error, ModuleNotFoundError) else None
    return None if extra is None else f"{module} is not installed: {install(extra)}"


def _bare(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
