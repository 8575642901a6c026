"""FSDP2 over real Gloo processes: a compressed reduce-scatter, and a compressed mean between replicas."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

import gradwire
from gradwire.testing.processes import run_ranks
from tests.forked import Forked
from tests.integrations.fsdp_jobs import HYBRID, STEPS, first_form, flat, flat_methods, hybrid, load_cut, save_cut
from tests.integrations.jobs import loss_of, model_of
from tests.once import once


@once
def told(kind: str, world: int) -> list[dict[str, Any]]:
    return run_ranks(world, {"flat": flat, "hybrid": hybrid}[kind])


def check(results: list[dict[str, Any]], method: str, least: float) -> None:
    """All ranks hold the same, as good as FSDP alone, and what is not compressed is FSDP's own mean."""
    start = loss_of(model_of())
    plain, ours = results[0]["plain"], results[0][method]
    for result in results:
        assert all(torch.equal(*pair) for pair in zip(result[method]["weights"], ours["weights"], strict=True))
    assert start - ours["loss"] > 0.8 * (start - plain["loss"]) > 0.5
    assert ours["metrics"]["steps"] == STEPS
    assert ours["metrics"]["ratio"] > least
    if method == "none":
        for mine, theirs in zip(ours["weights"], plain["weights"], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("world", "method"), [(world, each) for world in (2, 3) for each in flat_methods(world)])
def test_a_compressed_reduce_scatter_trains_as_fsdp_does(world: int, method: str) -> None:
    least = {"none": 0.98, "fp16": 1.9}.get(method, 3.5)
    check([result["compared"] for result in told("flat", world)], method, least)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("method", HYBRID)
def test_only_the_replicate_dimension_is_compressed(method: str, world: int) -> None:
    check(told("hybrid", world), method, {"none": 0.98, "powersgd": 1.2}.get(method, 2.5))


@pytest.mark.parametrize("world", [2, 3])
def test_no_gradient_is_lost(world: int) -> None:
    assert max(result["conserved"] for result in told("flat", world)) < 1e-6


@pytest.mark.parametrize("world", [2, 3])
def test_an_overflow_on_one_rank_reaches_all_and_moves_no_residual(world: int) -> None:
    for result in told("flat", world):
        assert result["overflow"] == {"finite": [True, True, False, True], "same": True, "count": 1}


@pytest.mark.parametrize("world", [2, 3])
def test_it_resumes_bit_for_bit(world: int) -> None:
    assert all(result["resumed"] for result in told("flat", world))


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16"])
def test_reductions_of_16_bits(dtype: str) -> None:
    for result in told("flat", 2):
        assert result["mixed"][dtype]["loss"] < 0.7 * loss_of(model_of())
        assert result["mixed"][dtype]["ratio"] > 2.5


def test_a_running_state_takes_what_is_loaded_and_another_memory() -> None:
    for result in told("flat", 2):
        assert result["again"]["same"]
        assert result["again"]["none"] == 0 < result["again"]["some"]


def test_dense_steps_are_dense_for_all_parameters() -> None:
    for result in told("flat", 2):
        assert result["warm"][1] == result["warm"][0] == pytest.approx(1.0, abs=0.01)
        assert result["warm"][2] > 1.2


def test_accumulated_gradients_are_exchanged_once() -> None:
    assert {result["accumulated"] for result in told("flat", 2)} == {1}


def test_the_first_form_of_fsdp() -> None:
    results, start = run_ranks(3, first_form), loss_of(model_of())
    plain = results[0]["plain"]
    for result in results:
        torch.testing.assert_close(result["none"]["weights"], plain["weights"], rtol=1e-5, atol=1e-6)
        ours = result["qsgd"]
        assert torch.equal(ours["weights"], results[0]["qsgd"]["weights"])
        assert start - ours["loss"] > 0.8 * (start - plain["loss"]) > 0.5
        assert ours["residuals"] == ["_fsdp_wrapped_module.2", "_fsdp_wrapped_module.4", "root"]
        assert ours["metrics"]["steps"] == STEPS
        assert ours["metrics"]["ratio"] > 5
        assert "model must be a FullyShardedDataParallel module, got Sequential; wrap it first" in result["not wrapped"]
        assert "sharding_strategy must be FULL_SHARD or SHARD_GRAD_OP; without shards use DDP" in result["no shard"]


def test_the_example_learns() -> None:
    script = str(Path(__file__).parents[2] / "examples" / "fsdp2.py")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        Forked([script], {**told, "RANK": rank, "LOCAL_RANK": rank}, subprocess.PIPE, subprocess.PIPE) for rank in "01"
    ]
    (said, _), *_ = ended = [rank.communicate(800) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ended
    start, loss, ratio = re.search(
        r"step 0 loss (\S+).*^loss (\S+) ratio (\S+)", said, re.DOTALL | re.MULTILINE
    ).groups()
    assert float(loss) < 0.8 * float(start)
    assert float(ratio) > 6


REFUSED = {
    "not sharded": "model must be a module after fully_shard, got Sequential; call fully_shard on it first",
    "rounds": "got 'powersgd', which is averaged in rounds; with hybrid sharding",
    "size": "got 'strom', which has a variable size",
    "memory": "memory must be one that keeps nothing of the mean .*; with replicate= every memory .* got 'ef21'",
    "change": "got 'strom', which has a variable size",
    "replicas": r"state must be of a model without replicate=, got \['parts', 'shards', 'step', 'version', 'world'\]",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused(case: str) -> None:
    for result in told("flat", 2):
        assert re.search(REFUSED[case], result["refused"][case]), result["refused"][case]


SAVED = [("flat", "topk"), ("fsdp1", "qsgd"), ("2", "powersgd"), ("2", "qsgd"), ("4", "qsgd")]
LOADED = [
    ("flat", "flat", "topk"),
    ("fsdp1", "fsdp1", "qsgd"),
    ("2", "1", "powersgd"),
    ("2", "2", "qsgd"),
    ("4", "2", "qsgd"),
    ("2", "1", "qsgd"),
]


@once
def carried() -> tuple[dict[tuple[str, str], list[Any]], dict[tuple[str, str, str], list[Any]]]:
    """The states that four ranks saved, by way and method, and those of two ranks that loaded them."""
    with tempfile.TemporaryDirectory() as folder:
        saved = run_ranks(4, save_cut, SAVED, folder)
        loaded = run_ranks(2, load_cut, LOADED, folder)
    return (
        {case: [told[case] for told in saved] for case in SAVED},
        {case: [told[case] for told in loaded] for case in LOADED},
    )


def waiting(states: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The part of each parameter's mean update that was not sent, its shards one after the other, without the
    padding."""
    merged, found = gradwire.merge_states(states), {}
    parts = [merged["parts"][str(shard)] for shard in range(merged["shards"])] if "parts" in merged else [merged]
    for part in parts:
        means: dict[str, torch.Tensor] = {}
        for rank in part["ranks"].values():
            for name, tensor in rank["worker"]["residual"].items():
                means[name] = means.get(name, 0) + tensor.double() / merged["world"]
            for name, buffers in rank.get("owned", {}).items():
                for lo, view in buffers.get("residual", {}).items():
                    means[name][int(lo) : int(lo) + view.numel()] += view
        for name, mean in means.items():
            found[name] = torch.cat([found[name], mean]) if name in found else mean
    sizes = {name: param.numel() for name, param in model_of().named_parameters()}
    return {name: mean[: sizes.get(name)] for name, mean in found.items()}


@pytest.mark.parametrize(("before", "after", "method"), LOADED)
def test_the_mean_update_that_waits_is_the_same_on_other_shards(before: str, after: str, method: str) -> None:
    saved, loaded = carried()[0][before, method], carried()[1][before, after, method]
    wrong = "world" if before == after else "shards"
    assert all(f"{wrong} of the state must be" in told["error"] for told in loaded)
    old, new = waiting(saved), waiting([told["state"] for told in loaded])
    assert set(old) == set(new)
    for name, mean in old.items():
        shorter = min(len(mean), len(new[name]))
        assert float(mean.abs().sum()) > 0
        torch.testing.assert_close(new[name][:shorter], mean[:shorter], rtol=1e-6, atol=1e-9)
        assert not mean[shorter:].any()
    for told in loaded:
        assert told["steps"] == 3
        assert told["reset"] == 0.0
