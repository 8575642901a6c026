"""The code blocks of the pages: what becomes of each when the documentation is tested.

    ```sh title="install"              is not run: blocks below it run where nothing but what it installs is there
    ```python title="train.py"         is that file in the page's folder, from there on
    ```diff title="train.py"           changes that file, from there on; @@ stands for what is left out
    ```sh                              runs in the page's folder
    ```python                          runs after the page's other python blocks, on two workers of torchrun
    ```diff                            its new side runs like a python block
    ```sh title="needs root"           does not run; what it "needs" or "takes" is the reason, and readers see it
    ```text                            is no code; so is a fence without a language

A python block that imports gradwire and forms a process group is a script of its own, and begins with no names.
Pages have no indented blocks: nothing would say what they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.house.source import ROOT

FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?$")
REASON = re.compile(r"(needs|takes) \S")
FILE = re.compile(r"[\w-]+\.(py|sh)")
INSTALL = re.compile(r"pip install '?\.(?:\[([\w,-]+)\])?'?(?: \./(lab))?")


@dataclass(frozen=True)
class Block:
    """One fenced block; ``title`` is what the site shows above it, ``extras`` what is installed where it stands."""

    page: str
    line: int
    language: str
    title: str
    code: str
    extras: tuple[str, ...] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def fate(self) -> str:
        """One of "change", "file", "install", "python", "shell", "skipped", "text"; else what is wrong with it."""
        if self.language in ("", "text"):
            return "text"
        if self.language not in ("python", "diff", "sh", "bash"):
            return f"language {self.language!r} is unknown"
        if FILE.fullmatch(self.title):
            return "change" if self.language == "diff" else "file"
        if self.title == "install":
            return "install"
        if self.title:
            return "skipped" if REASON.match(self.title) else f"title {self.title!r} is neither a file nor a reason"
        return "shell" if self.language in ("sh", "bash") else "python"

    @property
    def python(self) -> str:
        """The Python of a block; that of a diff is its new side."""
        return side(self.code, "+") if self.language == "diff" else self.code

    @property
    def alone(self) -> bool:
        """Return whether it is a script that uses nothing of the page's other blocks."""
        return "init_process_group" in self.python and bool(re.search(r"^import gradwire$", self.python, re.MULTILINE))

    @property
    def commands(self) -> list[list[str]]:
        """The words of each line of a shell block, lines that go on joined, comments left out."""
        lines = self.code.replace("\\\n", " ").replace('"$(which gradwire)"', "gradwire").splitlines()
        return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def side(diff: str, sign: str) -> str:
    """One side of a diff: its common lines and those with ``sign``."""
    return "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] in ("", " ", sign))


def installs(code: str) -> set[str]:
    """The extras that the lines of an install block bring; the laboratory counts as one."""
    lines = [line for line in code.splitlines() if "pip install" in line]
    found = [INSTALL.search(line) for line in lines]
    assert lines, f"no line of {code!r} installs"
    assert all(found), f"{code!r} installs something else than '.' and its extras, and ./lab"
    given = [group.split(",") for match in found if match for group in match.groups() if group]
    return {extra for extras in given for extra in extras}


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
    extras: tuple[str, ...] | None = None
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
            block = Block(page, number, fence[1], fence[2] or "", "".join(code), extras)
            if block.fate == "install":
                extras = tuple(sorted({*(extras or ()), *installs(block.code)}))
            yield block


def indented(page: str) -> Iterator[int]:
    """Numbers of the lines that begin an indented block."""
    before, fenced = "", False
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.startswith("```")
        if not fenced and not before and line.startswith("    "):
            yield number
        before = line.strip()


def of(fate: str) -> list[Block]:
    """The blocks of all pages."""
    return [block for page in pages() for block in blocks(page) if block.fate == fate]


def apply(block: Block, folder: Path) -> None:
    """Write the block's file, or change it as the block says; a change of no file is a file's new side.

    Raises:
        AssertionError: the file has not what the diff changes, or has it twice.
    """
    file = folder / block.title
    if block.fate == "file" or not file.exists():
        file.write_text(block.python, encoding="utf-8")
        return
    for hunk in re.split(r"^@@\n", block.code, flags=re.MULTILINE):
        old, text = side(hunk, "-"), file.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{block}: {block.title} has {text.count(old)} times\n{old}"
        file.write_text(text.replace(old, side(hunk, "+")), encoding="utf-8")
