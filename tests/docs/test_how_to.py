"""A page under "How to" has one task, and at most 1,500 words."""

from __future__ import annotations

import re

import pytest

from tests.house.source import ROOT

MOST = 1500


def how_to() -> list[str]:
    """The pages that the navigation of mkdocs.yml lists under "How to"."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    found = re.search(r"^  - How to:\n((?:      .*\n)+)", text, re.MULTILINE)
    assert found is not None
    return re.findall(r": (\S+\.md)$", found[1], re.MULTILINE)


def words(text: str) -> int:
    """Count the words of prose and tables: all between spaces that has a letter or a digit, without fenced blocks and
    addresses of links.
    """
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def test_words_are_those_of_prose_and_tables() -> None:
    text = "See [the page](page.md#part), or:\n\n```python\nx = 1\n```\n\n| a | 1.5 |\n|---|---|\n"
    assert words(text) == 6


def test_there_are_pages() -> None:
    assert {"ddp.md", "kvstore.md", "troubleshooting.md"} <= set(how_to())


@pytest.mark.parametrize("page", how_to())
def test_a_page_is_short(page: str) -> None:
    assert words((ROOT / "docs" / page).read_text(encoding="utf-8")) <= MOST
