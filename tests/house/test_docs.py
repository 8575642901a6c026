"""The documentation says what the code declares."""

from __future__ import annotations

import pytest

from gradwire import registry
from tests.house.source import ROOT
from tests.house.tables import TABLES, current, wanted


@pytest.mark.parametrize(("file", "marker"), TABLES)
def test_tables_are_those_of_the_registry(file: str, marker: str) -> None:
    assert current(file, marker) == wanted(file, marker), "run `make tables`"


@pytest.mark.parametrize(("kind", "prefix"), [("compressors", ""), ("memory", "memory "), ("comm", "strategy ")])
def test_every_variant_has_a_section(kind: str, prefix: str) -> None:
    headings = {line for line in (ROOT / "docs" / "methods.md").read_text().splitlines() if line.startswith("### ")}
    missing = [name for name in registry.names(kind) if f"### {prefix}{name}" not in headings]
    assert not missing


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert not [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in readme]
