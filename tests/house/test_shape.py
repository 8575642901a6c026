"""The ruler of the house measures what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import shape


@pytest.mark.parametrize(
    ("edges", "height"),
    [
        ({"a": set(), "b": set()}, 1),
        ({"a": set(), "b": {"a"}, "c": {"a", "b"}}, 3),
        ({"a": {"b"}, "b": {"a"}, "c": {"b"}}, 2),
    ],
)
def test_the_longest_chain_of_imports_is_the_number_of_floors(edges: dict[str, set[str]], height: int) -> None:
    assert shape.floors(edges) == height


def test_lines_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    text = '"""A module.\n\nIts text.\n"""\n\n__all__ = ["a"]\n\n# Why.\na = 1  # And how.\n"""A number."""\n'
    (tmp_path / "a.py").write_text(text)
    lines = shape.Module.read(tmp_path / "a.py", tmp_path).lines
    assert lines == {
        "files": 1,
        "lines": 10,
        "docstrings": 5,
        "comments": 2,
        "code": 2,
        "statements": 4,
        "functions": 0,
        "exported": 1,
    }


def test_fields_that_another_file_assigns_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Exchange:\n    weight: int\n    def set(self):\n        self.weight = 1\n")
    (tmp_path / "b.py").write_text("def change(a):\n    a.weight, a.other = 1, 2\n")
    read = [shape.Module.read(tmp_path / name, tmp_path) for name in ("a.py", "b.py")]
    (held,) = shape.classes(read)
    assert (held.fields, held.methods, held.outside) == ({"weight"}, 1, [f"{tmp_path / 'b.py'}:2"])


def test_a_package_and_its_own_file_are_each_shown_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    package = tmp_path / "package"
    (package / "inside").mkdir(parents=True)
    (package / "__init__.py").write_text("a = 1\n")
    (package / "inside" / "b.py").write_text("b = 1\nc = 2\n")
    monkeypatch.setattr(shape, "PACKAGES", [package])
    monkeypatch.setattr(sys, "argv", ["shape", "--no-trace"])
    shape.main()
    rows = [line.rsplit(maxsplit=8)[:3] for line in capsys.readouterr().out.splitlines()[1:4]]
    assert rows == [["package", "1", "1"], ["package.inside", "1", "2"], ["package in all", "2", "3"]]


def test_calls_are_counted_only_while_a_function_runs() -> None:
    from gradwire.errors import nearest

    trace = shape.Trace()
    trace.watch()
    try:
        nearest("a", ["b"])
        assert trace.calls == 0
        trace.count(lambda: nearest("a", ["b"]))
        once = trace.calls
        nearest("a", ["b"])
        assert trace.calls == once > 0
        trace.count(lambda: nearest("a", ["b"]))
    finally:
        trace.end()
    assert (trace.calls, len(trace.files), trace.changes) == (2 * once, 1, 0)
