"""The documentation says what the code declares."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradwire import registry
from tests.house.source import ROOT
from tests.house.tables import TABLES, current, memories, wanted


@pytest.mark.parametrize(("file", "marker"), TABLES)
def test_tables_are_those_of_the_registry(file: str, marker: str) -> None:
    assert current(file, marker) == wanted(file, marker), "run `make tables`"


def test_the_bytes_of_a_memory_are_those_of_the_form_in_which_it_is_stored() -> None:
    rows = list(memories())
    for name, nbytes in (("averaged_error", "1.02"), ("ef21", "8"), ("none", "0")):
        assert any(row.startswith(f"| [`{name}`]") and f" | {nbytes} | " in row for row in rows), name


@pytest.mark.parametrize(("kind", "page"), [("compressors", ""), ("memory", "memories"), ("strategies", "strategies")])
def test_every_variant_has_a_section(kind: str, page: str) -> None:
    for name in registry.names(kind):
        text = (ROOT / "docs" / "methods" / f"{page or registry.family(kind, name)}.md").read_text(encoding="utf-8")
        assert f"## {name}" in text.splitlines(), name


def links(page: Path) -> set[Path]:
    """The pages of the repository to which a page links."""
    found = re.findall(r"\]\(([\w./-]+\.md)[)#]", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in found}


def test_every_page_is_reached_from_the_readme() -> None:
    reached, new = set(), {ROOT / "README.md"}
    while new:
        assert all(page.is_file() for page in new), new
        reached |= new
        new = {link for page in new for link in links(page)} - reached
    assert not set((ROOT / "docs").rglob("*.md")) - reached
