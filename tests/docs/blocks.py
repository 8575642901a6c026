"""The code blocks of the pages: what becomes of each when the documentation is tested.

    ```python                          runs: with init_process_group as a script, else after those before it
    ```sh                              runs, in the page's folder
    ```python title="train.py"         is that file in the page's folder
    ```sh title="needs root"           does not run; what it "needs" or "takes" is the reason, and readers see it
    ```diff                            both sides compile; that of the README runs
    ```text                            is no code; so is a fence without a language

Pages of the site have no indented blocks: nothing would say what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.house.source import ROOT

LANGUAGES = {"python", "sh", "bash", "diff", "text"}
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?$")
REASON = re.compile(r"(needs|takes) \S")
FILE = re.compile(r"[\w-]+\.(py|sh)")


@dataclass(frozen=True)
class Block:
    """One fenced block; ``title`` is what the site shows above it."""

    page: str
    line: int
    language: str
    title: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def fate(self) -> str:
        """One of "diff", "file", "fragment", "script", "shell", "skipped", "text"; else what is wrong with it."""
        if self.language in ("", "text", "diff"):
            return self.language or "text"
        if FILE.fullmatch(self.title):
            return "file"
        if self.title:
            return "skipped" if REASON.match(self.title) else f"title {self.title!r} is neither a file nor a reason"
        if self.language == "python":
            return "script" if "init_process_group" in self.code else "fragment"
        return "shell" if self.language in ("sh", "bash") else f"language {self.language!r} is unknown"


@cache
def pages() -> tuple[str, ...]:
    """The README and the pages of the site, relative to the repository."""
    return ("README.md", *(file.relative_to(ROOT).as_posix() for file in sorted((ROOT / "docs").rglob("*.md"))))


@cache
def blocks(page: str) -> tuple[Block, ...]:
    return tuple(parse(page, (ROOT / page).read_text(encoding="utf-8")))


def parse(page: str, text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order.

    Raises:
        AssertionError: a fence says something that is not understood, or is not closed.
    """
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if line.startswith("```"):
            fence = FENCE.match(line)
            assert fence, f"{page}:{number} begins with {line!r}, not with a language and perhaps a title"
            code: list[str] = []
            for _, inner in lines:
                if inner == "```":
                    break
                code.append(f"{inner}\n")
            else:
                raise AssertionError(f"{page}:{number} is not closed")
            yield Block(page, number, fence[1], fence[2] or "", "".join(code))


def indented(page: str) -> Iterator[int]:
    """Numbers of the lines that begin an indented block."""
    before, fenced = "", False
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.startswith("```")
        if not fenced and not before and line.startswith("    "):
            yield number
        before = line.strip()


def of(fate: str) -> list[Block]:
    """Of all pages."""
    return [block for page in pages() for block in blocks(page) if block.fate == fate]


def write_files(page: str, folder: Path) -> None:
    """What the page has under the names of files."""
    (folder / "examples").symlink_to(ROOT / "examples")
    for block in blocks(page):
        if block.fate == "file":
            (folder / block.title).write_text(block.code, encoding="utf-8")
