"""The packages of an environment in which only some extras are installed, and how a test makes one without installing.

``hidden("kvstore")`` is what a fresh environment with ``pip install '.[kvstore]'`` would lack of what is installed
here; ``variables("kvstore")`` makes processes lack it. tests/absent/sitecustomize.py hides it.
"""

from __future__ import annotations

import os
import tomllib
from functools import cache
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.source import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


@cache
def brought(*extras: str) -> frozenset[str]:
    """The distributions that pip would install: gradwire, its requirements, those of the extras, and all of theirs."""
    left = [Requirement(text) for text in (*PROJECT["dependencies"], *(f"gradwire[{each}]" for each in extras))]
    found, asked = {"gradwire"}, set()
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        found.add(name)
        for extra in {"", *wanted.extras} - {extra for asker, extra in asked if asker == name}:
            asked.add((name, extra))
            if name == "gradwire":
                left += [Requirement(text) for text in EXTRAS.get(extra, ())]
            else:
                needed = [Requirement(text) for text in requirements(name)]
                left += [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]
    return frozenset(found)


def requirements(name: str) -> list[str]:
    """The requirements of a distribution; none of one that is not installed here."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


@cache
def modules() -> dict[str, frozenset[str]]:
    """Each module's first name, and the distributions that have it."""
    found = metadata.packages_distributions()
    return {name: frozenset(canonicalize_name(each) for each in owners) for name, owners in found.items()}


@cache
def hidden(*extras: str) -> tuple[list[str], list[str]]:
    """Modules and distributions that are installed here and are not with these extras alone."""
    there, every = brought(*extras), frozenset().union(*modules().values())
    return sorted(name for name, owners in modules().items() if not owners & there), sorted(every - there)


def variables(*extras: str) -> dict[str, str]:
    """The environment variables of a process that is to have these extras alone."""
    names, distributions = hidden(*extras)
    paths = [str(ROOT / "tests" / "absent"), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "GRADWIRE_TEST_MODULES": ",".join(names),
        "GRADWIRE_TEST_DISTRIBUTIONS": ",".join(distributions),
    }
