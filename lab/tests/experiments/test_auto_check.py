"""Cells of ``gradwire check auto``: contestants in turns, a link that changes, and verdicts."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import ConfigError
from gradwire_lab.experiments.auto_check import CHANGED, ROUNDS, MatrixCell, measure, read_links
from gradwire_lab.experiments.auto_verdicts import read, verdicts
from gradwire_lab.netlab import Link
from lab.tests.netlab.conftest import here

SMALL = MatrixCell("lstm", small=True, steps=3, methods=("bf16", "topk:ratio=0.01"))


def row(auto: float, *, repeat: int = 0, ddp: float = 1.0, **methods: float) -> dict[str, Any]:
    """A measured cell: "within" keeps the budget, "beyond" does not, "kept" keeps something back."""
    seconds = {"ddp": ddp, **methods, "auto": auto}
    part = {"link": "1gbit", "methods": {name: {"seconds": time} for name, time in seconds.items()}, "deciding": []}
    facts = {"kind": "auto", "id": str(repeat), "model": "m", "workers": 2, "link": "1gbit", "compute": 0.0}
    facts |= {"gradients": "trained", "auto": "auto", "repeat": repeat, "parts": [part], "allowed": 0.15}
    errors = {"within": 0.1, "beyond": 0.2, "kept": None}
    return facts | {"errors": {name: errors[name] for name in methods}, "decisions": []}


@pytest.mark.timeout(600)
def test_all_contestants_take_turns_in_one_group_and_their_steps_are_told() -> None:
    found = measure(SMALL)
    assert "error" not in found
    assert json.loads(json.dumps(found)) == found
    assert (found["steps"], found["budget"]) == (3, 60.0)
    (part,) = found["parts"]
    assert list(part["methods"]) == ["ddp", "bf16", "topk:ratio=0.01", "auto"]
    assert {len(each["samples"]) for each in part["methods"].values()} == {ROUNDS}
    assert len(part["deciding"]) == 3
    # 16 bits add nothing that a batch would notice; what topk keeps back is not allowed.
    assert 0 < found["errors"]["bf16"] < 1e-4 < found["allowed"]
    assert found["errors"]["topk:ratio=0.01"] is None
    assert found["decisions"][0] == {"step": 1, "phase": "watching", "buckets": []}
    (verdict,) = verdicts([found])
    assert verdict.best == "bf16"
    assert verdict.behind == pytest.approx(part["methods"]["auto"]["seconds"] / part["methods"]["ddp"]["seconds"])


@pytest.mark.timeout(600)
def test_the_link_changes_while_the_workers_run() -> None:
    reason = here()
    if reason:
        pytest.skip(reason)
    links = read_links("1gbit,20mbit,1gbit")
    found = measure(dataclasses.replace(SMALL, links=links, methods=("bf16",), budget=1.0))
    assert "error" not in found
    assert [part["link"] for part in found["parts"]] == ["1gbit", "20mbit", "1gbit"]
    assert [len(part["deciding"]) for part in found["parts"]] == [CHANGED] * 3
    fast, slow, again = (part["methods"]["ddp"]["seconds"] for part in found["parts"])
    # 1.4 MB take 0.55 s at 20 Mbit/s, and a fiftieth of that at 1 Gbit/s.
    assert slow > 0.5 > 2 * max(fast, again)
    assert [each.part for each in verdicts([found])] == ["1gbit", "20mbit", "1gbit"]


def test_a_cell_that_fails_is_a_row_with_the_reason() -> None:
    failed = measure(dataclasses.replace(SMALL, auto="auto:budget=tiny"))
    assert "tiny" in failed["error"]
    assert verdicts([failed]) == []


def test_the_best_is_the_fastest_that_keeps_the_budget() -> None:
    (verdict,) = verdicts([row(0.5, within=0.48, beyond=0.1, kept=0.05)])
    assert (verdict.best, verdict.behind, verdict.share, verdict.holds) == ("within", 0.5, 0.96, True)
    (verdict,) = verdicts([row(0.5, beyond=0.1)])
    assert (verdict.best, verdict.share, verdict.holds) == (None, None, True)


def test_the_median_of_the_repeats_counts() -> None:
    rows = [row(auto, repeat=place, within=1.0) for place, auto in enumerate((1.0, 1.01, 3.0))]
    (verdict,) = verdicts(rows)
    assert (verdict.repeats, verdict.behind, verdict.holds) == (3, 1.01, True)
    (verdict,) = verdicts([row(auto, repeat=place, within=1.0) for place, auto in enumerate((1.0, 1.03, 3.0))])
    assert (verdict.behind, verdict.holds) == (1.03, False)
    # As fast as plain DDP, and a fixed method would have been faster by more than a tenth.
    (verdict,) = verdicts([row(1.0, within=0.89)])
    assert (verdict.behind, verdict.holds) == (1.0, False)


def test_cells_of_other_settings_are_no_repeats() -> None:
    """A trial cell without a fixed method would leave the others without a best one, and without a missed goal."""
    slow = row(1.0, within=0.5) | {"steps": 32, "budget": 60.0}
    others = [
        slow | {"steps": 3},
        slow | {"budget": 1.0},
        row(1.0) | {"steps": 32, "budget": 60.0},
        row(1.0, within=0.5, beyond=0.1) | {"steps": 32, "budget": 60.0},
    ]
    found = verdicts([slow, *others, slow | {"repeat": 1}])
    assert [each.repeats for each in found] == [2, 1, 1, 1, 1]
    assert [each.best for each in found] == ["within", "within", "within", None, "within"]
    assert [each.holds for each in found] == [False, False, False, True, False]
    # Rows from before the budget was written.
    assert [each.repeats for each in verdicts([row(1.0), row(1.0, repeat=1)])] == [2]


def test_equal_cells_have_equal_ids_and_others_have_others() -> None:
    others = [
        {"repeat": 1},
        {"workers": 4},
        {"links": (Link.parse("1gbit"),)},
        {"compute": 0.1},
        {"methods": ("bf16",)},
        {"steps": 4},
        {"auto": "auto:budget=exact"},
    ]
    ids = {dataclasses.replace(SMALL, **change).id for change in others}
    assert len(ids | {SMALL.id}) == 1 + len(others)
    assert dataclasses.replace(SMALL, compute=0).id == SMALL.id


def test_cells_are_read_but_failed_ones_and_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    assert read(file) == []
    first, last = row(1.0), row(2.0)
    failed = {"kind": "auto", "id": "7", "error": "a worker died"}
    file.write_text("\n".join([*map(json.dumps, (first, failed, {"model": "a replay"}, last)), '{"kind": "au']))
    assert read(file) == [last]
    file.write_text('{"kind": "au\n' + json.dumps(first))
    with pytest.raises(ConfigError, match=r"cells.jsonl, line 1"):
        read(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"links": ()}, "MatrixCell.links must be at least one link"),
        ({"links": (Link(), Link.parse("1gbit"))}, "MatrixCell.links must be links with a rate, where it changes"),
        ({"links": (Link.parse("1tbit"),)}, "must be at most 100gbit in a lab"),
        ({"repeat": -1}, "MatrixCell.repeat must be an integer >= 0, got -1"),
        ({"auto": "topk"}, "MatrixCell.auto must be auto, or auto:PARAMETER=VALUE,..., got 'topk'"),
        ({"methods": ("topc",)}, "unknown compressor 'topc'"),
        ({"model": "resnet21"}, "unknown model 'resnet21'"),
        ({"budget": math.nan}, "ReplayPlan.budget must be seconds > 0"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        dataclasses.replace(SMALL, **change)
