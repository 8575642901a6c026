"""Saved and resumed: bit for bit on as many ranks, and nothing lost on another number of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.engine.checkpoint import merge_states
from gradwire.errors import ConfigError
from gradwire.testing.processes import run_ranks
from tests.integrations.checkpoint_jobs import (
    cases,
    ddp_and_dcp,
    equal,
    gather,
    gathering_devices,
    load_resized,
    resume_each,
    save_some,
)
from tests.once import once

STEPS = 3
RESIZED: dict[str, dict[str, Any]] = {
    "twobit": {"threshold": 1e-3, "strategy": "two_phase"},
    "topk": {"ratio": 0.05, "strategy": "two_phase"},
    "powersgd": {"rank": 2},
    "ef21": {"strategy": "two_phase"},
    "dgc": {},
    "variance": {},
}


@once
def resumed() -> list[dict[tuple[str, str], list[bool]]]:
    return run_ranks(2, resume_each, cases(), STEPS, timeout=800.0)


@pytest.mark.parametrize("case", cases(), ids="-".join)
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(case: tuple[str, str]) -> None:
    """Through ``torch.load(weights_only=True)``: what every later step gives, and what is kept at the end."""
    assert [result[case] for result in resumed()] == [[True] * (STEPS + 1)] * 2


REFUSED = {
    "in place": r"must have its \d+ tensors, got 0: .*gradwire\.read_checkpoint",
    "no memory": r"state has 'residual', but the memory here keeps nothing: use the memory that it was saved with",
    "renamed": r"state has 'module\.weight' of 3 elements, not the model's",
    "world": r"world of the state must be 2, as the group's, got 3; on_resize='reshard' .* on_resize='reset'",
    "word": r"on_resize must be 'error', 'reshard' or 'reset', got 'split'",
    "no state": r"state must be what state_dict\(\) gave, with version, world, step and ranks, got \['step'\]",
    "rank missing": r"state must have what rank [01] saved, got that of none",
    "file of rank 1": r"rank 0 was .*: state must have what rank 0 saved, got that of rank 1: each rank loads the file",
    "other key": r"key 'hook' is not in the checkpoint: .*gradwire",
    "steps": r"GroupError: .*state\.step is 3 on rank 0; 4 on rank 1",
}


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(2, ddp_and_dcp, str(tmp_path_factory.mktemp("dcp")))


def test_a_fresh_ddp_goes_on_bit_for_bit_from_files_and_from_distributed_checkpoints(ddp: list[dict[str, Any]]) -> None:
    for result in ddp:
        assert set(result["resumed"]) == {
            ("twobit", "file"),
            ("powersgd", "file"),
            ("topk", "file"),
            ("topk", "dcp"),
            ("topk", "dcp async"),
        }
        assert all(result["resumed"].values()), result["resumed"]


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_lose_residuals_is_refused(case: str, ddp: list[dict[str, Any]]) -> None:
    for result in ddp:
        assert re.search(REFUSED[case], result["refused"][case]), result["refused"][case]


def test_the_states_of_all_ranks_come_to_rank_0_one_after_the_other_in_pieces() -> None:
    piece = 2**14
    first, *others = run_ranks(3, gather, piece)
    assert equal(first["all"], merge_states([first["own"], *(each["own"] for each in others)]))
    assert [each["all"] for each in others] == [None, None]
    came = [[(rank, size) for rank, size in enumerate(sizes) if size] for sizes in first["received"]]
    assert all(len(each) == 1 for each in came), "a GPU would have to hold pieces of several ranks at once"
    ranks, sizes = zip(*(each[0] for each in came), strict=True)
    assert list(ranks) == sorted(ranks)
    assert max(sizes) == piece
    assert all(ranks.count(rank) > 2 for rank in (1, 2))


def test_states_are_collected_on_the_cpu_only_where_the_group_serves_it() -> None:
    assert run_ranks(2, gathering_devices) == [["cpu", "cpu:0", "cpu:0"]] * 2


@once
def moved(before: int, after: int) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[dict[str, Any]]]]:
    by_rank = run_ranks(before, save_some, RESIZED)
    saved = {name: [states[name] for states in by_rank] for name in RESIZED}
    loaded = run_ranks(after, load_resized, RESIZED, saved)
    return saved, {name: [told[name] for told in loaded] for name in RESIZED}


def waiting(states: list[dict[str, Any]], buffer: str, power: int = 1) -> dict[str, Tensor]:
    """The part of the mean update that was not sent: the mean over the ranks, and what owners keep; of variances that
    of the mean."""
    merged = merge_states(states)
    world, found = merged["world"], {}
    for rank in merged["ranks"].values():
        for name, tensor in rank["worker"].get(buffer, {}).items():
            found[name] = found.get(name, 0) + tensor.double() / world**power
        for name, buffers in rank["owned"].items() if buffer == "residual" else ():
            for lo, view in buffers.get("residual", {}).items():
                found[name][int(lo) : int(lo) + view.numel()] += view
    return found


@pytest.mark.parametrize("method", [method for method in RESIZED if method != "ef21"])
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
def test_the_mean_update_that_waits_is_the_same_on_another_number_of_ranks(
    method: str, before: int, after: int
) -> None:
    saved, loaded = (part[method] for part in moved(before, after))
    assert all("on_resize='reshard'" in told["error"] for told in loaded)
    states = [told["state"] for told in loaded]
    for buffer in ("residual", "variance"):
        old, new = waiting(saved, buffer, 1 if buffer == "residual" else 2), waiting(states, buffer)
        assert set(old) == set(new)
        for name, tensor in old.items():
            torch.testing.assert_close(new[name], tensor, rtol=1e-6, atol=1e-9)
    for told in loaded:
        assert told["metrics"]["steps"] == 3
        assert told["metrics"]["bytes_sent"] > 0
        reset = told["reset"]
        assert (reset["residual_norm"], reset["steps"], reset["nonfinite_steps"]) == (0.0, 2, 0)
        # Counters begin at zero together: what the workers told each other while they loaded belongs to no step.
        names = ("bytes_sent", "bytes_received", "local_bytes", "compared_bytes", "dense_bytes")
        assert [reset[name] for name in names] == [0] * 5
        assert reset["ratio"] == reset["total_ratio"] == 1.0
        assert {reset[f"{phase}_seconds"] for phase in ("encode", "communicate", "decode")} == {0.0}
    waits = waiting(saved, "residual")
    assert all(float(tensor.abs().sum()) > 0 for tensor in waits.values())


def test_estimates_stay_the_estimates_of_one_mean() -> None:
    for told in moved(3, 2)[1]["ef21"]:
        for name, estimate in told["state"]["ranks"].popitem()[1]["worker"]["local"].items():
            mean = moved(3, 2)[0]["ef21"][0]["ranks"]["0"]["worker"]["mean"][name]
            torch.testing.assert_close(estimate, mean, rtol=1e-4, atol=1e-7)


def test_states_of_different_steps_are_not_one() -> None:
    one = {"version": 1, "world": 2, "step": 3, "ranks": {"0": {}}}
    with pytest.raises(ConfigError, match="step of the states must be 3 in all of them, got 4"):
        merge_states([one, {**one, "step": 4}])
    with pytest.raises(ConfigError, match="states must be at least one"):
        merge_states([])
