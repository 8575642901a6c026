"""No two modules have names that differ only by an s."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.house.source import ROOT


def twins(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The files, named singular first, whose names without underscores differ by a final s or by y and ies."""
    named: dict[str, list[str]] = {}
    for file in files:
        path = Path(file)
        name = (path.parent.name if path.stem == "__init__" else path.stem).strip("_")
        named.setdefault(name, []).append(file)
    for name, places in named.items():
        for other in (f"{name}s", f"{name.removesuffix('y')}ies"):
            yield from ((one, two) for one in places for two in named.get(other, ()))


@pytest.mark.parametrize("folder", ["src", "tests", "lab/src", "lab/tests"])
def test_no_two_names_differ_by_an_s(folder: str) -> None:
    files = [str(file.relative_to(ROOT)) for file in sorted((ROOT / folder).rglob("*.py"))]
    assert list(twins(files)) == []


def test_twins_are_found() -> None:
    assert list(twins(["a/link.py", "b/_links.py"])) == [("a/link.py", "b/_links.py")]
    assert list(twins(["a/state/__init__.py", "b/states.py"])) == [("a/state/__init__.py", "b/states.py")]
    assert list(twins(["family.py", "families.py"])) == [("family.py", "families.py")]
    assert list(twins(["a/link.py", "b/link.py", "linked.py", "class.py"])) == []
