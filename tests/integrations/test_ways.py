"""The ways in which people train, each over real processes: nothing is lost, nothing is sent twice, ranks agree."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations.ways_jobs import all_ways

WORLD = 3


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    return run_ranks(WORLD, all_ways, timeout=800.0)


@pytest.fixture
def each(told: list[dict[str, Any]], request: pytest.FixtureRequest) -> list[Any]:
    """The reports of the ranks for the way that the test is named after."""
    way = request.node.name.removeprefix("test_")
    answers = [result.get(way, f"not reached: {result}") for result in told]
    for answer in answers:
        assert not isinstance(answer, str), answer
    return answers


def agree(answers: list[dict[str, Any]]) -> None:
    assert len({answer["digest"] for answer in answers}) == 1


def test_accumulation(each: list[dict[str, Any]]) -> None:
    """Under no_sync the sum of three micro-batches is exchanged once."""
    for answer in each:
        assert answer["steps"] == 2
        assert answer["balance"] < 1e-6


def test_uneven(each: list[dict[str, Any]]) -> None:
    for answer in each:
        assert answer["steps"] == 6
        assert answer["balance"] < 1e-6


def test_unused(each: list[dict[str, Any]]) -> None:
    agree(each)
    assert all(answer["steps"] == 8 and answer["better"] for answer in each)


@pytest.mark.parametrize("way", ["static_graph", "bucket_views", "shared", "recomputed"])
def test_it_trains(way: str, told: list[dict[str, Any]]) -> None:
    answers = [result[way] for result in told]
    agree(answers)
    for answer in answers:
        assert answer["better"]
        assert answer["steps"] == 6
        assert answer["ratio"] > 3
        assert answer.get("same", True)


def test_bucket_copies(each: list[dict[str, Any]], told: list[dict[str, Any]]) -> None:
    """Views of buckets, and a graph said to be static, change nothing."""
    for answer, result in zip(each, told, strict=True):
        assert answer["losses"] == result["bucket_views"]["losses"]
        assert answer["losses"] == pytest.approx(result["static_graph"]["losses"], rel=1e-4)


def test_several(each: list[dict[str, Any]]) -> None:
    agree(each)
    assert each[0]["second"] == each[1]["second"] != [each[0]["digest"]]
    assert {answer["steps"] for answer in each} == {4}


def test_interleaved(each: list[dict[str, Any]]) -> None:
    assert all(answer["same"] for answer in each)


def test_scaled(each: list[dict[str, Any]]) -> None:
    agree(each)
    for answer in each:
        assert answer["skipped"] == [False, False, False, True, False]
        assert answer["untouched"]
        assert answer["scale"] == 32.0


def test_changed(each: list[dict[str, Any]]) -> None:
    agree(each)
    for answer in each:
        assert answer["balance"] < 1e-6
        assert "memory 'none' of 'qsgd' would lose what waits" in answer["refused"][0]
        assert "ranks were configured differently: compressor.ratio" in answer["refused"][1]
        assert "force=True" in answer["refused"][2]
        assert answer["norm"] == 0.0


def test_used_or_lost(each: list[dict[str, Any]]) -> None:
    """Gradients that are set to None or to zero before anybody has used them are warned of, once and on one rank."""
    for rank, answer in enumerate(each):
        assert {name: said for name, said in answer["used"].items() if said} == {}
        for name, said in answer["lost"].items():
            assert len(said) == (rank == 0), name
        for name in ("none", "zero") if rank == 0 else ():
            (said,) = answer["lost"][name]
            assert "the gradients that were exchanged in step 4 were set to None or to zero" in said
            assert "inside `with model.no_sync():`, or call `model.module(x)`" in said


def test_generated(each: list[dict[str, Any]]) -> None:
    for rank, answer in enumerate(each):
        assert answer["exchanged"]["balance"] > 1e-3
        assert len(answer["exchanged"]["said"]) == (rank == 0)
        for way in ("no_sync", "module"):
            assert answer[way]["balance"] < 1e-6
            assert answer[way]["said"] == []


def refused_inside(told: dict[str, str]) -> None:
    for call in ("state_dict", "load_state_dict", "change", "close"):
        assert told[call].startswith(f"ConfigError: {call}() must be called between steps")
        assert "got a call inside a backward pass" in told[call]


def test_asked(each: list[dict[str, Any]]) -> None:
    """A state inside a backward pass would be that of a part of a step; the pass goes on as if nobody had asked."""
    agree(each)
    for answer in each:
        refused_inside(answer["told"])
        assert (answer["step"], answer["by the optimizer"]) == (1, 0)


def test_elsewhere(told: list[dict[str, Any]]) -> None:
    for result in told[:2]:
        assert (
            "process_group must be of the DDP model's own ranks [0, 1], which GradwireState finds"
            in result["elsewhere"]
        )
        assert "got one of ranks [0, 1, 2]" in result["elsewhere"]


def test_compiled(each: list[dict[str, Any]]) -> None:
    """The module inside, or DDP as a whole; the reducer that compiled autograd traces has tests of its own."""
    for answer in each:
        assert answer["inside"] == pytest.approx(answer["plain"], rel=1e-4)
        assert answer["outside"] == pytest.approx(answer["plain"], rel=1e-4)
        assert answer["steps"] == 6
