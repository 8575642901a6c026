"""Workers of several ranks, each with a shard of the model, over real Gloo processes."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from gradwire.frontends.ownership import on_rank
from gradwire.kernels.stored import read
from gradwire.optim import DiLoCo, QsparseLocal
from gradwire.testing.processes import run_ranks
from tests.optim.jobs import digest, forward, model_of

EXACT: dict[str, Any] = {"compressor": "none", "every": 5, "lr": 0.7, "momentum": 0.5}
STREAMED = {**EXACT, "every": 6, "fragments": 3, "delay": 4}
FOUR_BITS = {**STREAMED, "compressor": "qsgd", "bits": 4, "memory": "residual", "min_numel": 0}
SHARDS, REPLICAS = (2, 2), (2, 2, 1)


def _mesh(shape: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh(
        "cpu", shape, mesh_dim_names=("islands", "shard") if len(shape) == 2 else ("islands", "replicate", "shard")
    )


def _sharded(mesh: DeviceMesh, seed: int = 3) -> nn.Module:
    """Rows of 64 and 10 go to two ranks; the mesh inside an island has all dimensions but the outer one."""
    names = mesh.mesh_dim_names
    assert names is not None
    inside, model = mesh[names[1:]], model_of(seed)
    for layer in model:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=inside)
    return fully_shard(model, mesh=inside)


def _make(model: nn.Module, options: dict[str, Any]) -> DiLoCo | QsparseLocal:
    options = dict(options)
    kind = options.pop("kind", DiLoCo)
    inner: Optimizer = torch.optim.AdamW(model.named_parameters(), lr=3e-3)
    return kind(inner, **options)


def _train(optimizer: Any, model: nn.Module, steps: range, island: int) -> None:
    for step in steps:
        forward(model, optimizer, step, island).backward()
        optimizer.step()


def _plain(rank: int, options: dict[str, Any]) -> list[Tensor]:
    model = model_of(3 + rank)
    optimizer = _make(model, options)
    _train(optimizer, model, range(22), rank)
    optimizer.synchronize()
    return [param.detach() for param in model.parameters()]


def _as_islands(rank: int, shape: tuple[int, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The ranks of an island have the same data, and islands begin apart."""
    mesh = _mesh(shape)
    island = mesh.get_local_rank("islands")
    model = _sharded(mesh, 3 + island)
    optimizer = _make(model, {**options, "islands": mesh["islands"]})
    _train(optimizer, model, range(22), island)
    before = digest([on_rank(param) for param in model.parameters()])
    optimizer.synchronize()
    whole = [param.full_tensor().detach() for param in model.parameters()]  # type: ignore[attr-defined]
    told = {"agreed": digest(optimizer.agreed.data), "before": before, "whole": whole, "in step": optimizer.in_step}
    return {**told, "metrics": optimizer.metrics(), "print": str(optimizer)}


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (SHARDS, EXACT),
        (SHARDS, {**STREAMED, "offload": True}),
        (SHARDS, {"compressor": "none", "every": 4, "kind": QsparseLocal}),
        (REPLICAS, STREAMED),
    ],
)
def test_islands_are_workers_of_one_rank_to_rounding(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    plain = run_ranks(2, _plain, options)[0]
    results = run_ranks(4, _as_islands, shape, options)
    for result in results:
        assert result["in step"]
        for ours, theirs in zip(result["whole"], plain, strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=3e-5)
    # Peers have the same bits, and so have replicas; shards differ.
    agreed = [result["agreed"] for result in results]
    assert agreed[:2] == agreed[2:]
    assert (agreed[0] == agreed[1]) == (shape == REPLICAS)
    # Islands were apart before the last exchange.
    assert results[0]["before"] != results[2]["before"]


def test_what_is_kept_twice_is_told_in_bytes_of_the_shard() -> None:
    first = run_ranks(4, _as_islands, SHARDS, {**FOUR_BITS, "offload": True})[0]
    elements = sum(param.numel() for param in model_of().parameters())
    assert first["metrics"]["kept_bytes"] == 3 * 4 * elements // 2
    assert first["print"].endswith("kept      13.8 kB agreed, 13.8 kB velocity, 13.8 kB residual")


def _resumed(rank: int, cut: int, shape: tuple[int, ...], options: dict[str, Any]) -> bool:
    """A run that is saved and goes on with new objects, through a file of each rank, ends as an uninterrupted one."""
    mesh = _mesh(shape)
    island, peers = mesh.get_local_rank("islands"), mesh.get_group("islands")
    model = _sharded(mesh)
    optimizer = _make(model, {**options, "islands": peers})
    _train(optimizer, model, range(cut), rank)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    _train(optimizer, model, range(cut, 24), rank)
    file.seek(0)
    weights, saved = torch.load(file, weights_only=True)
    again = _sharded(mesh, 9 + island)
    other = _make(again, {**options, "islands": peers})
    again.load_state_dict(weights)
    other.load_state_dict(saved)
    _train(other, again, range(cut, 24), rank)
    same = [digest([on_rank(param) for param in each.parameters()]) for each in (model, again)]
    return same[0] == same[1] and _all_of(other) == _all_of(optimizer)


def _all_of(optimizer: Any) -> str:
    state = optimizer.state_dict()
    for kept in state["state"].values():
        kept.update({key: on_rank(value) for key, value in kept.items()})
    return digest(state)


@pytest.mark.parametrize(
    ("cut", "shape", "options"),
    [
        (9, SHARDS, FOUR_BITS),
        (8, SHARDS, {**EXACT, "compressor": "topk", "ratio": 0.2, "min_numel": 0, "offload": True}),
        (11, REPLICAS, FOUR_BITS),
    ],
)
def test_a_state_of_each_rank_continues_bit_for_bit(cut: int, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    assert all(run_ranks(4, _resumed, cut, shape, options))


def _spoilt(rank: int, options: dict[str, Any], where: str) -> dict[str, Any]:
    """A value of rank 1, in one shard of island 0, is not finite at step 7: in its gradient, or in its parameter."""
    mesh = _mesh(SHARDS)
    island = mesh.get_local_rank("islands")
    model = _sharded(mesh)
    optimizer = _make(model, {**options, "islands": mesh["islands"]})
    _train(optimizer, model, range(7), island)
    forward(model, optimizer, 7, island).backward()
    first = next(model.parameters())
    before = digest([on_rank(param) for param in model.parameters()])
    if rank == 1:
        assert where == "parameter" or first.grad is not None
        with torch.no_grad():
            on_rank(first if where == "parameter" else first.grad)[0, 0] = float("inf")  # type: ignore[arg-type]
    agreed = digest(optimizer.agreed.data)
    optimizer.step()
    left_out = digest([on_rank(param) for param in model.parameters()]) == before
    dropped = digest(optimizer.agreed.data) == agreed
    _train(optimizer, model, range(8, 16), island)
    optimizer.synchronize()
    finite = all(bool(on_rank(param).isfinite().all()) for param in model.parameters())
    told = {"left out": left_out, "dropped": dropped, "finite": finite, "agreed": digest(optimizer.agreed.data)}
    return {**told, "count": optimizer.metrics()["nonfinite_steps"]}


def _overflown(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    """A parameter of rank 0 moves so far that its change overflows in 16 bits, after it was found to be finite."""
    mesh = _mesh(SHARDS)
    island, model = mesh.get_local_rank("islands"), _sharded(mesh)
    optimizer = _make(model, {**options, "islands": mesh["islands"]})
    _train(optimizer, model, range(5), island)
    forward(model, optimizer, 5, island).backward()
    kept = optimizer.exchange.residuals.worker["residual"]
    before = digest([read(kept[name]) for name in sorted(kept)])
    if rank == 0:
        with torch.no_grad():
            on_rank(next(model.parameters()))[0, 0] = 1e6
    agreed = digest(optimizer.agreed.data)
    optimizer.step()
    if isinstance(optimizer, DiLoCo) and optimizer.streams is not None:
        optimizer.streams.rest()
    dropped, undone = digest(optimizer.agreed.data) == agreed, digest([read(kept[name]) for name in sorted(kept)])
    return {"dropped": dropped, "undone": undone == before, "count": optimizer.metrics()["nonfinite_steps"]}


@pytest.mark.parametrize("streamed", [{}, {"fragments": 1}])
def test_what_overflows_in_one_shard_is_undone_in_all(streamed: dict[str, Any]) -> None:
    options = {"compressor": "fp16", "memory": "residual", "every": 3, "min_numel": 0, "momentum": 0.0, **streamed}
    for told in run_ranks(4, _overflown, options):
        assert told == {"dropped": True, "undone": True, "count": 1}


def test_a_gradient_that_is_not_finite_in_one_shard_leaves_out_the_step_of_its_island() -> None:
    results = run_ranks(4, _spoilt, {**EXACT, "every": 5}, "gradient")
    assert [each["left out"] for each in results] == [True, True, False, False]
    assert all(each["finite"] for each in results)
    assert [each["agreed"] for each in results[:2]] == [each["agreed"] for each in results[2:]]


@pytest.mark.parametrize("options", [{**EXACT, "every": 8}, {**STREAMED, "every": 8, "delay": 0}])
def test_a_change_that_is_not_finite_in_one_shard_drops_the_round_of_all(options: dict[str, Any]) -> None:
    results = run_ranks(4, _spoilt, options, "parameter")
    assert all(each["finite"] and each["count"] == 1 for each in results)
    # The first parameter is in the fragment that leaves first, and so later ones are not dropped.
    assert all(each["dropped"] == ("fragments" not in options) for each in results)
    assert [each["agreed"] for each in results[:2]] == [each["agreed"] for each in results[2:]]


def _mistaken(mistake: str, rank: int, mesh: DeviceMesh) -> tuple[nn.Module, dict[str, Any]]:
    """A model and options with one mistake, on all ranks or on rank 3 alone."""
    islands: dict[str, Any] = {
        "no islands": None,
        "another dimension": mesh["shard"],
        "two dimensions": mesh,
        "a name": "islands",
    }
    options = {**EXACT, "timeout": 30.0, "islands": islands.get(mistake, mesh["islands"])}
    if mistake == "other shards":
        mesh = DeviceMesh("cpu", [[0, 1], [3, 2]], mesh_dim_names=("islands", "shard"))
    model = model_of() if mistake == "plain" else _sharded(mesh)
    if mistake == "mixed":
        model[4] = nn.Linear(64, 10)  # type: ignore[index]
    elif mistake == "both":
        options["process_group"] = mesh.get_group("islands")
    elif mistake == "offload":
        options["offload"] = "host"
    elif mistake == "mixed here" and rank == 3:
        model[4] = nn.Linear(64, 10)  # type: ignore[index]
    elif rank == 3 and mistake in ("another rate", "wrong here"):
        options["lr"] = 0.1 if mistake == "another rate" else -1.0
    return model, options


def _refused(rank: int, mistakes: list[str]) -> dict[str, str]:
    mesh, told = _mesh(SHARDS), {}
    for mistake in mistakes:
        model, options = _mistaken(mistake, rank, mesh)
        try:
            _make(model, options)
        except Exception as error:
            told[mistake] = f"{type(error).__name__}: {error}"
    # They can all go on after their mistakes.
    model, options = _mistaken("", rank, mesh)
    optimizer = _make(model, options)
    state = optimizer.state_dict()
    try:
        optimizer.load_state_dict({**state, "shard": {"at": [0], "of": [2]}})
    except Exception as error:
        told["state"] = f"{type(error).__name__}: {error}"
    optimizer.load_state_dict(state)
    return told


MISTAKES = {
    "no islands": "give DiLoCo or local SGD islands=, the mesh of the ranks that hold the same shard",
    "another dimension": "islands must be a mesh without the other ranks of the model's mesh, got ranks ",
    "two dimensions": "such as mesh['islands'], or the group of these ranks, got one of 2 dimensions",
    "a name": "islands must be a DeviceMesh of one dimension over the ranks that hold the same shard",
    "both": "islands must be None with a process_group, got both",
    "plain": "parameters must be DTensors with islands, all of them, as after fully_shard",
    "mixed": "got plain tensors: 4.weight, 4.bias",
    "mixed here": "got plain tensors: 4.weight, 4.bias",
    "other shards": "GroupError: ",
    "another rate": "GroupError: ",
    "wrong here": "DiLoCo.lr must be a finite number > 0, got -1.0",
    "offload": "DiLoCo.offload must be True or False, got 'host'",
}


def test_mistakes_are_refused_on_all_ranks_with_names() -> None:
    results = run_ranks(4, _refused, list(MISTAKES))
    for told in results:
        for mistake, text in MISTAKES.items():
            assert text in told[mistake], (mistake, told[mistake])
    assert "shard" in results[2]["other shards"]
    assert "lr" in results[0]["another rate"]
    assert results[1]["mixed here"].startswith("GroupError: rank 3 was configured wrongly: ConfigError: ")
    # Shard 0 has the state of its own place; the other ranks of the islands are told.
    assert results[1]["state"].startswith("ConfigError: state_dict must be that of shard {'at': [1], 'of': [2]}")
    assert results[0]["state"].startswith("GroupError: the exchange of another shard of this island failed")
