"""The packages of an environment in which only some extras are installed, and how a test makes one without installing.

``hidden("kvstore")`` is what a fresh environment with ``pip install '.[kvstore]'`` would lack of what is installed
here; ``variables("kvstore")`` makes processes lack it. tests/absent/sitecustomize.py hides it.
"""

from __future__ import annotations

import os
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.source import ROOT


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


PROJECT = project(ROOT)
LAB = "lab"
"""The laboratory, which counts as an extra here: ``pip install . ./lab``."""
EXTRAS: dict[str, list[str]] = {**PROJECT["optional-dependencies"], LAB: ["gradwire-lab"]}


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
            elif name == "gradwire-lab":
                left += [Requirement(text) for text in project(ROOT / "lab")["dependencies"]]
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
    # The files of an editable install do not tell.
    found = {**metadata.packages_distributions(), "gradwire_lab": ["gradwire-lab"]}
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
