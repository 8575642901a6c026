"""Files are as the formatter leaves them and without banners, and every variant has its test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradwire import registry
from tests.house.source import ROOT

FILES = [
    file
    for folder in ("src", "tests", "lab", "csrc", "tools", "examples", "benchmarks")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in {".py", ".cc", ".h", ".inc"}
]


def test_the_formatter_is_left_alone() -> None:
    told = f"# fmt: {'skip'}"
    assert sum(file.read_text(encoding="utf-8").count(told) for file in FILES) <= 10


BANNER = re.compile(r"^[ \t]*(?:#|//).*([-=#*/])\1{5}[ \t]*$", re.MULTILINE)
"""A comment that draws a line across the file."""


def test_no_comment_is_a_banner() -> None:
    found = [str(file.relative_to(ROOT)) for file in FILES if BANNER.search(file.read_text(encoding="utf-8"))]
    assert not found, f"a part of a file that wants a heading is a class or a file of its own: {found}"


def test_a_banner_is_found() -> None:
    lines = [f"# Answers {'-' * 20}", f"    # {'=' * 8}", f"// {'-' * 6}", "#" * 7]
    assert all(BANNER.search(f"x = 1\n{line}\ny = 2") for line in lines)
    assert not any(BANNER.search(line) for line in ["x = 7  # a - b", "# --no-build", "# a table: |---|---|"])


@pytest.mark.parametrize("kind", ["compressors", "memory", "strategies"])
def test_every_variant_has_a_test_of_its_name(kind: str) -> None:
    missing = [name for name in registry.names(kind) if not (ROOT / "tests" / kind / f"test_{name}.py").is_file()]
    assert not missing


def test_commands_of_the_newcomer_are_what_ci_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert script[-4:] == ["make test", "make test-lab", "make test-frameworks", "make test-build"]
    assert Path(ROOT / ".ci" / "run").stat().st_mode & 0o111
