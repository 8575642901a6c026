"""auto where the optimizer's steps are exchanged, on real ranks over channels that take as long as on a link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradwire.auto.exchanged_steps import figures
from gradwire.testing.processes import run_ranks
from tests.auto import jobs, step_jobs
from tests.heard import heard

ROOT = Path(__file__).parents[2]
WORDS = {0.5: "half a bit", 0.25: "a quarter of a bit", 0.125: "an eighth of a bit"}


@pytest.mark.parametrize("options", [{}, {"keep": True}, {"every": 4}])
def test_steps_are_exchanged_with_what_keeps_a_part_back_although_adam_made_them(options: dict[str, Any]) -> None:
    """On a link that becomes fast what waits is sent, and rounds are uncompressed again."""
    rates = (jobs.SLOW / 10, jobs.FAST)
    one, other = run_ranks(2, step_jobs.decided, {"budget": "small", **options}, rates)
    assert one["digest"] == other["digest"]
    assert one["auto"]["decisions"] == other["auto"]["decisions"]
    (slow, sent, waits), (fast, _, left) = one["parts"]
    assert [choice.partition(":")[0] for choice in slow] == ["topk"]
    assert sent < one["dense"] / 10
    assert waits > 0
    assert fast == ["dense"]
    assert left == 0


def test_within_the_usual_budget_nothing_waits() -> None:
    one, _ = run_ranks(2, step_jobs.decided, {}, (4 * jobs.SLOW / 10,), jobs.WIDE)
    ((choices, sent, waits),) = one["parts"]
    assert choices[0] != "dense"
    assert sent < one["dense"] / 2
    assert waits == 0
    assert sum(each["error"] for each in one["auto"]["buckets"]) <= 0.15


def test_decisions_are_made_again_and_saved() -> None:
    one, other = run_ranks(2, step_jobs.made_again)
    assert one["decisions"]
    assert one["phase"] == "replaying"
    assert one["made"] == one["decisions"] == other["decisions"]
    assert len({*one["digests"], *other["digests"]}) == 1


def test_a_step_that_is_not_finite_is_taken_back_with_what_it_kept() -> None:
    for found in run_ranks(2, step_jobs.spoilt):
        assert found["choices"] != ["dense"]
        assert found["kept"][0] == found["kept"][1] > 0
        assert found["counted"] == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"late": True}, "CompressedStep.late must be False with 'auto', got True"),
        ({"keep": True, "residual_dtype": "int4"}, "whose residual is stored in codes"),
        ({"memory": "residual"}, "memory must be left out with 'auto'"),
        ({"budget": "tiny"}, "budget must be one of"),
    ],
)
def test_a_mistake_is_named(options: dict[str, Any], said: str) -> None:
    for text in run_ranks(2, step_jobs.refused, options):
        assert said in text


def _advised(rank: int, optimizer: str, budget: str) -> list[str]:
    said = heard()
    training = jobs.Training(rank, optimizer, budget=budget)
    training.settle(jobs.SLOW / 20)
    return [text for text in said if "CompressedStep" in text]


@pytest.mark.parametrize(("optimizer", "count"), [("AdamW", 1), ("SGD", 0)])
def test_where_gradients_bear_nothing_faster_the_exchange_of_steps_is_named_once(optimizer: str, count: int) -> None:
    said, none = run_ranks(2, _advised, optimizer, "small")
    assert (len(said), none) == (count, [])
    assert all(
        "gradwire.CompressedStep(bits=0.125) sends 49 times fewer bytes (docs/auto.md#exchanged-steps)" in text
        for text in said
    )


def test_what_the_exchange_of_steps_costs_is_what_was_measured() -> None:
    known = figures()
    table = (ROOT / "docs" / "adaptive.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("|")]
    method = f"`{known['compressor']}`, {WORDS[known['bits']]}"
    (steps,) = (row for row in rows if row[1] == f"`CompressedStep`, {method}")
    plain = next(row for row in rows if row[1] == "`none`")
    assert (float(steps[2]), float(steps[-2])) == (known["fewer_bytes"], known["loss"])
    assert float(plain[-2]) == known["uncompressed_loss"]
