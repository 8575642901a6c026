"""Ranks with local steps show what they have in common, reach it at once, and refuse what cannot be gone on with."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradwire
from gradwire.errors import ConfigError, GradwireError
from gradwire.optim import DiLoCo
from gradwire.optim.local.local_steps import LocalSteps
from gradwire.testing.processes import run_ranks
from tests.optim.jobs import digest, forward, make, model_of, parameters

SPARSE = {"compressor": "topk", "ratio": 0.1, "min_numel": 0}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("diloco", {**SPARSE, "every": 6}),
    ("diloco", {**SPARSE, "every": 6, "fragments": 3, "delay": 2}),
    ("diloco", {**SPARSE, "every": 6, "fragments": 2, "mix": 0.5}),
    ("qsparse_local", {**SPARSE, "every": 4}),
    ("compressed_step", {**SPARSE, "every": 3, "late": True}),
    ("compressed_step", {**SPARSE, "keep": True}),
]


def _local(kind: str, model: nn.Module, options: dict[str, Any]) -> LocalSteps:
    optimizer = make(kind, model, options)
    assert isinstance(optimizer, LocalSteps)
    return optimizer


def _shown(rank: int, kind: str, options: dict[str, Any]) -> tuple[list[str], list[str], bool]:
    """The digests in each block, those outside, and whether a run without blocks ends with the same bits."""
    model, other = model_of(), model_of()
    optimizer, alone = _local(kind, model, options), _local(kind, other, options)
    inside, outside = [], []
    for step in range(14):
        for each, by in ((model, optimizer), (other, alone)):
            forward(each, by, step, rank).backward()
            by.step()
        with optimizer.agreed_parameters():
            inside.append(parameters(model))
        outside.append(parameters(model))
    ends = [digest(each.state_dict()) for each in (optimizer, alone)]
    return inside, outside, ends[0] == ends[1] and outside[-1] == parameters(other)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_the_model_shows_what_all_agreed_on_and_goes_on_as_if_it_had_not(kind: str, options: dict[str, Any]) -> None:
    (first, own, same), (second, others, too) = run_ranks(2, _shown, kind, options)
    assert same
    assert too
    assert first == second
    assert own != others


def _inside(rank: int) -> list[str]:
    del rank
    optimizer = make("diloco", model_of(), {**SPARSE, "every": 2})
    assert isinstance(optimizer, DiLoCo)
    told = []
    with optimizer.agreed_parameters():
        for call in (
            optimizer.step,
            optimizer.synchronize,
            optimizer.state_dict,
            lambda: optimizer.load_state_dict({}),
            lambda: optimizer.agreed_parameters().__enter__(),
        ):
            try:
                call()
            except ConfigError as error:
                told.append(str(error))
    return told


def test_nothing_else_is_done_inside_of_it() -> None:
    told = run_ranks(1, _inside)[0]
    assert len(told) == 5
    assert all(each.endswith("must be outside of agreed_parameters(), got a call in its block") for each in told)


def _again(rank: int, options: dict[str, Any], steps: int) -> tuple[list[str], list[int]]:
    """The parameters before and after each of three calls after some steps, and the exchanges so far."""
    model = model_of()
    optimizer = make("diloco", model, options)
    assert isinstance(optimizer, DiLoCo)
    for step in range(steps):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
    seen, told = [parameters(model)], [optimizer.metrics()]
    for _ in range(3):
        optimizer.synchronize()
        seen.append(parameters(model))
        told.append(optimizer.metrics())
    return seen, [each.get("exchanges", each["rounds"]) for each in told]


@pytest.mark.parametrize(
    ("options", "steps", "exchanges"),
    [
        ({"every": 6}, 12, [2, 2, 2, 2]),
        ({"every": 6}, 14, [2, 3, 3, 3]),
        # Fragment 2 of 2 has just met in step 12, so that only the first one has a change.
        ({"every": 6, "fragments": 2}, 12, [4, 5, 5, 5]),
        ({"every": 6, "fragments": 2}, 13, [4, 6, 6, 6]),
        ({"every": 6, "fragments": 2, "delay": 3}, 12, [4, 6, 6, 6]),
    ],
)
def test_a_round_without_a_change_is_no_step_of_the_momentum(
    options: dict[str, Any], steps: int, exchanges: list[int]
) -> None:
    results = run_ranks(2, _again, {**SPARSE, **options}, steps)
    assert [result[1] for result in results] == [exchanges] * 2
    (seen, _), (others, _) = results
    assert seen[1:] == others[1:]
    assert len(set(seen[1:])) == 1


def _early(rank: int, kind: str, options: dict[str, Any]) -> str:
    """Rank 0 exchanges in the middle of a round, and rank 1 at its end."""
    model = model_of()
    optimizer = _local(kind, model, options)
    try:
        for step in range(6):
            forward(model, optimizer, step, rank).backward()
            optimizer.step()
            if (rank, step) == (0, 2):
                optimizer.synchronize()
        optimizer.synchronize()
    except GradwireError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("diloco", {"compressor": "none", "every": 6}),
        ("diloco", {"compressor": "none", "every": 6, "delay": 2}),
        ("qsparse_local", {"compressor": "none", "every": 6}),
    ],
)
def test_ranks_that_exchange_after_different_steps_hear_of_it(kind: str, options: dict[str, Any]) -> None:
    told = run_ranks(2, _early, kind, options)
    assert all("local_steps" in each for each in told), told


def _saved(rank: int, options: dict[str, Any], steps: int) -> dict[str, Any]:
    model = model_of()
    optimizer = make("diloco", model, options)
    for step in range(steps):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
    return copy.deepcopy(optimizer.state_dict())


def _loaded(rank: int, options: dict[str, Any], states: list[dict[str, Any]], on_resize: Any) -> str:
    optimizer = make("diloco", model_of(), options)
    before = digest(optimizer.state_dict())
    try:
        optimizer.load_state_dict(states[rank], on_resize)
    except GradwireError as error:
        assert digest(optimizer.state_dict()) == before
        return str(error)
    return ""


@pytest.mark.parametrize("options", [{"every": 6}, {"every": 4, "fragments": 2, "delay": 2}])
@pytest.mark.parametrize("on_resize", ["reshard", "reset", "error"])
def test_steps_of_a_round_are_not_lost_with_the_ranks_that_made_them(options: dict[str, Any], on_resize: str) -> None:
    options = {**SPARSE, **options}
    states = run_ranks(2, _saved, options, 9)
    merged = states[0]
    if on_resize == "reshard":
        merged = {**merged, "exchange": gradwire.merge_states([each["exchange"] for each in states])}
    (told,) = run_ranks(1, _loaded, options, [merged], on_resize)
    allowed = "state_dict must be saved after synchronize() for another number of ranks, here 1"
    assert told == f"{allowed}, got one of 2 from within a round"


def _renamed(state: dict[str, Any]) -> dict[str, Any]:
    kept = {key: {f"x.{name}": each for name, each in of.items()} for key, of in state["kept"].items()}
    return {**state, "kept": kept}


def _reshaped(state: dict[str, Any]) -> dict[str, Any]:
    kept = {key: {name: each[:1] for name, each in of.items()} for key, of in state["kept"].items()}
    return {**state, "kept": kept}


def _regrouped(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "param_groups": [*state["param_groups"], {"params": []}]}


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_renamed, "agreed of the state_dict must be tensors of this model's names and shapes, got"),
        (_reshaped, "agreed of the state_dict must be tensors of this model's names and shapes, got"),
        (_regrouped, "param_groups of the state_dict must be groups of [6] parameters, got [6, 0]"),
    ],
)
def test_a_state_of_another_model_on_one_rank_is_refused_on_all(spoil: Any, text: str) -> None:
    options = {**SPARSE, "every": 3}
    states = run_ranks(2, _saved, options, 6)
    told = run_ranks(2, _loaded, options, [states[0], spoil(states[1])], "error")
    assert all(text in each for each in told), told


def _between(rank: int) -> list[str]:
    """At a meeting of one, a state that was saved in step goes on with fragments, and without them again."""
    del rank
    told = []
    kinds = ({"every": 4, "fragments": 2}, {"every": 4})
    for before, after in (kinds, kinds[::-1]):
        first, second = (
            DiLoCo(
                torch.optim.AdamW(model_of().named_parameters()),
                "none",
                meeting=gradwire.Meeting(dist.HashStore(), "a"),  # type: ignore[arg-type]
                **options,  # type: ignore[arg-type]
            )
            for options in (before, after)
        )
        first.join()
        for _ in range(5):
            for param in first.params:
                param.grad = torch.ones_like(param)
            first.step()
        first.synchronize()
        second.load_state_dict(first.state_dict())
        told += [digest(each.state_dict()["kept"]) for each in (first, second)]
    return told


def test_a_state_goes_from_fragments_to_none_and_back_at_a_meeting() -> None:
    first, second, third, fourth = run_ranks(1, _between)[0]
    assert first == second
    assert third == fourth


def _misused(rank: int) -> list[str]:
    del rank
    named = [*model_of().named_parameters()]
    told = []
    for make_one in (
        lambda: DiLoCo(torch.optim.AdamW(named), meeting="10.0.0.1:7100"),  # type: ignore[arg-type]
        lambda: DiLoCo(torch.optim.LBFGS(param for _, param in named), "none"),
        lambda: DiLoCo.muloco(torch.optim.AdamW(named), decay=0.5),
    ):
        try:
            make_one()
        except ConfigError as error:
            told.append(str(error))
    return told


def test_bad_arguments_are_named() -> None:
    assert run_ranks(1, _misused)[0] == [
        "DiLoCo.meeting must be a gradwire.Meeting or None, got '10.0.0.1:7100'",
        "DiLoCo.inner must be one whose step needs no closure, got LBFGS",
        "decay must be left out without bits, where nothing is kept, got 0.5",
    ]


def _default(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    model = model_of()
    optimizer = make("diloco", model, {"every": 2, "min_numel": 0, **options})
    for step in range(2):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
    return optimizer.metrics()


def test_four_bits_keep_a_residual_unless_it_is_said_otherwise() -> None:
    assert run_ranks(2, _default, {})[0]["residual_norm"] > 0
    assert run_ranks(2, _default, {"memory": "none"})[0]["residual_norm"] == 0
