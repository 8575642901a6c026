"""The mutation tool takes no sample of files whose tests fail anyway."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import mutate


class Session:
    """Stands for cosmic-ray's session: one mutation of each of two files, and those that were chosen."""

    def __init__(self) -> None:
        files = ("memory/residual.py", "optim/exchanged.py")
        mutations = [
            SimpleNamespace(module_path=mutate.PACKAGE / file, start_pos=(1, 0), end_pos=(1, 1)) for file in files
        ]
        self.pending_work_items = [SimpleNamespace(mutations=(each,)) for each in mutations]
        self.chosen: list[object] | None = None

    def clear(self) -> None:
        self.chosen = []

    def add_work_items(self, items: list[object]) -> None:
        self.chosen = items


def test_a_sample_is_taken_only_of_files_whose_tests_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    session, codes = Session(), {"residual": 0, "exchanged": 1}
    work_db = SimpleNamespace(use_db=lambda _: nullcontext(session))
    monkeypatch.setitem(sys.modules, "cosmic_ray.work_db", work_db)
    monkeypatch.setitem(sys.modules, "cosmic_ray.work_item", SimpleNamespace(WorkItem=object))
    monkeypatch.setattr(mutate, "untested", lambda _: [])

    def tested(module: Path) -> int:
        return codes[module.stem]

    monkeypatch.setattr(mutate, "run_tests", tested)
    with pytest.raises(SystemExit, match=r"the tests of .*exchanged\.py fail without a mutation: mend them first"):
        mutate.sample("session.sqlite", count=1, seed=1)
    assert session.chosen is None
    codes["exchanged"] = 0
    mutate.sample("session.sqlite", count=1, seed=1)
    assert session.chosen is not None
    assert len(session.chosen) == 2
