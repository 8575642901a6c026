"""Files are as the formatter leaves them, and every variant has its test."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire import registry
from tests.house.source import ROOT

FILES = [
    file
    for folder in ("src", "tests", "csrc")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in {".py", ".cc", ".h", ".inc"}
]


def test_the_formatter_is_left_alone() -> None:
    told = f"# fmt: {'skip'}"
    assert sum(file.read_text(encoding="utf-8").count(told) for file in FILES) <= 10


@pytest.mark.parametrize("kind", ["compressors", "memory", "comm"])
def test_every_variant_has_a_test_of_its_name(kind: str) -> None:
    missing = [name for name in registry.names(kind) if not (ROOT / "tests" / kind / f"test_{name}.py").is_file()]
    assert not missing


def test_commands_of_the_newcomer_are_what_ci_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert script[-3:] == ["make test", "make test-frameworks", "make test-build"]
    assert Path(ROOT / ".ci" / "run").stat().st_mode & 0o111
