"""The site is built without a warning, has every page, and asks nobody else for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gradwire import registry
from tests.house.source import ROOT, exported

pytest.importorskip("mkdocstrings_handlers.python", reason="the extra docs is not installed")
pytest.importorskip("material", reason="the extra docs is not installed")


pytestmark = pytest.mark.timeout(900)


class Fetched(HTMLParser):
    """The addresses that a browser fetches to show a page: sources, and links that are no links to click."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name in ("src", "srcset", "poster") or (name == "href" and tag == "link")):
                self.found.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there_and_in_the_navigation(site: Path) -> None:
    """A page that is in no navigation, a link or an anchor that leads nowhere: the strict build has refused them."""
    pages = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 9
    home = (site / "index.html").read_text(encoding="utf-8")
    assert not [page for page in pages if not (site / page).is_file() or f'href="{page.as_posix()}"' not in home]


def test_the_reference_has_what_is_offered(site: Path) -> None:
    package = (site / "api" / "index.html").read_text(encoding="utf-8")
    names = [
        name for name in exported("gradwire") or [] if name not in ("__version__", "helpers", "optim", "schedules")
    ]
    assert not [name for name in names if f'id="gradwire.{name}"' not in package]
    for kind in ("compressors", "memory", "strategies"):
        page = (site / "api" / f"{kind}.html").read_text(encoding="utf-8")
        classes = [registry.find(kind, name) for name in registry.names(kind)]
        assert not [cls for cls in classes if f'id="{cls.__module__}.{cls.__qualname__}"' not in page]


def test_equations_and_examples_of_docstrings_are_code(site: Path) -> None:
    text = (site / "api" / "compressors.html").read_text(encoding="utf-8")
    assert "&gt;&gt;&gt;" in text or ">>>" in text
    assert "<blockquote>" not in text
    assert "Source:</strong>" in text


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = Fetched(page.read_text(encoding="utf-8")).found
        assert fetched
        assert not [url for url in fetched if re.match(r"(\w+:)?//", url)], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_long_signatures_are_wrapped(site: Path) -> None:
    """They are only where a formatter is installed with mkdocstrings, which says nothing of its absence."""
    text = (site / "api" / "optim.html").read_text(encoding="utf-8")
    signatures = re.findall(r'<div class="doc-signature highlight">(.*?)</div>', text, re.DOTALL)
    lines = [re.sub(r"<[^>]+>", "", line) for each in signatures for line in each.splitlines()]
    assert any(line.startswith("    variance_correction") for line in lines)
    assert max(map(len, lines)) <= 100
