"""DiLoCo in fragments, whose exchanges are under way while the ranks train on, over real Gloo processes."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.errors import ConfigError
from gradwire.optim import DiLoCo
from gradwire.optim.local._fragments import deal
from gradwire.testing.processes import run_ranks
from tests.optim.jobs import digest, forward, loss_of, make, model_of, parameters, refused, resume

SPARSE = {"compressor": "topk", "ratio": 0.1, "strategy": "two_phase", "min_numel": 0, "momentum": 0.5}
EXACT = {"compressor": "none", "lr": 1.0, "momentum": 0.0}
NAMES = [
    *("wte.weight", "wpe.weight"),
    *(f"h.{layer}.{part}" for layer in range(5) for part in ("attn.weight", "mlp.0.weight", "mlp.2.weight")),
    *("ln_f.weight", "head.weight"),
]


def _layers(part: list[int]) -> str:
    return "".join(sorted({NAMES[number].split(".")[1] for number in part}))


def test_layers_are_dealt_in_turns_or_as_neighbours_and_embeddings_and_head_are_apart() -> None:
    embeddings, *parts, head = deal(NAMES, 2, "strided")
    assert (embeddings, head) == ([0, 1], [17, 18])
    assert [_layers(part) for part in parts] == ["024", "13"]
    assert [_layers(part) for part in deal(NAMES, 2, "contiguous")[1:-1]] == ["01", "234"]
    assert sorted(chain.from_iterable(deal(NAMES, 5))) == list(range(len(NAMES)))
    assert deal(NAMES, 1) == [list(range(len(NAMES)))]
    assert deal([f"0.{number}" for number in range(4)], 2) == [[0, 2], [1, 3]]
    with pytest.raises(ConfigError, match=r"fragments must be at most 5, the layers .*, got 6"):
        deal(NAMES, 6)


def _alike(rank: int, options: dict[str, Any]) -> list[bool]:
    """One fragment that nobody trains beside is a round of the blocking optimizer, in every bit that is kept."""
    models = model_of(), model_of()
    blocking, streaming = make("diloco", models[0], options), make("diloco", models[1], {**options, "fragments": 1})
    alike = []
    for step in range(14):
        for model, optimizer in zip(models, (blocking, streaming), strict=True):
            forward(model, optimizer, step, rank).backward()
            optimizer.step()
            if step == 9:
                optimizer.synchronize()  # type: ignore[attr-defined]
        states = [digest({**each.state_dict(), "streams": {}}) for each in (blocking, streaming)]
        alike.append(states[0] == states[1] and parameters(models[0]) == parameters(models[1]))
        alike.append(blocking.in_step == streaming.in_step)  # type: ignore[attr-defined]
    sent = [each.metrics() for each in (blocking, streaming)]
    return [*alike, all(sent[0][key] == sent[1][key] for key in ("bytes_sent", "rounds", "steps", "residual_norm"))]


@pytest.mark.parametrize("options", [{**SPARSE, "every": 4}, {"compressor": "none", "every": 3}])
def test_one_fragment_without_delay_is_the_blocking_round_bit_for_bit(options: dict[str, Any]) -> None:
    assert all(all(alike) for alike in run_ranks(2, _alike, options))


STREAMED = {**SPARSE, "every": 6, "fragments": 3, "delay": 4}


@pytest.mark.parametrize(
    ("options", "cut"),
    [
        ({}, 9),
        ({"delay": 6}, 12),
        ({"mix": 0.5}, 15),
        ({"delay": 0}, 11),
        ({"layout": "contiguous", "fragments": 2, "mix": 0.0}, 8),
    ],
)
def test_a_checkpoint_with_fragments_under_way_continues_bit_for_bit(options: dict[str, Any], cut: int) -> None:
    assert all(run_ranks(2, resume, "diloco", cut, 24, {**STREAMED, **options}))


def _agreed(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    model = model_of(seed=3 + rank)
    optimizer = make("diloco", model, options)
    assert isinstance(optimizer, DiLoCo)
    agreed, under_way = [], []
    for step in range(120):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        agreed.append(digest(optimizer.agreed.data))
        under_way.append(len(optimizer.state_dict()["streams"]["flights"]))
    before = parameters(model)
    optimizer.synchronize()
    told = {"agreed": agreed, "under way": max(under_way), "before": before, "after": parameters(model)}
    return {**told, "in step": optimizer.in_step, "loss": loss_of(model), "metrics": optimizer.metrics()}


@pytest.mark.parametrize("mix", [None, 0.5])
def test_ranks_agree_after_every_step_while_several_fragments_are_under_way(mix: float | None) -> None:
    options = {"compressor": "qsgd", "bits": 4, "memory": "residual", "min_numel": 0, "momentum": 0.5, "every": 6}
    results = run_ranks(3, _agreed, {**options, "fragments": 3, "delay": 4, "mix": mix})
    assert len({tuple(result["agreed"]) for result in results}) == 1
    assert len(set(results[0]["agreed"])) == 59
    assert len({result["before"] for result in results}) == 3
    assert len({result["after"] for result in results}) == 1
    first = results[0]
    assert first["in step"]
    assert first["under way"] == 2
    assert first["loss"] < loss_of(model_of()) - 1.0
    assert (first["metrics"]["exchanges"], first["metrics"]["rounds"], first["metrics"]["steps"]) == (63, 21, 120)
    assert first["metrics"]["waited_seconds"] > 0


def _peak(rank: int) -> tuple[list[int], list[int], list[list[str]]]:
    """The elements that leave after each step of a period, and those of each fragment."""
    del rank
    model = nn.ModuleDict({"wte": nn.Embedding(40, 8), "h": nn.ModuleList(nn.Linear(8, 8) for _ in range(6))})
    optimizer = DiLoCo(torch.optim.SGD(model.named_parameters(), lr=0.1), fragments=6, every=14, **EXACT)
    sent, before = [], 0
    for _ in range(14):
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        optimizer.step()
        dense = optimizer.metrics()["dense_bytes"]
        sent.append((dense - before) // 4)
        before = dense
    sizes = {name: param.numel() for name, param in model.named_parameters()}
    return sent, [sum(sizes[name] for name in names) for names in optimizer.fragments], optimizer.fragments


def test_at_most_one_fragment_leaves_after_a_step() -> None:
    sent, sizes, fragments = run_ranks(2, _peak)[0]
    assert [elements for elements in sent if elements] == sizes == [320, *[72] * 6]
    assert [step for step, elements in enumerate(sent, 1) if elements] == [2, 4, 6, 8, 10, 12, 14]
    assert fragments[0] == ["wte.weight"]


def _given(rank: int, step: int, param: Tensor) -> Tensor:
    return torch.randn(param.shape, generator=torch.Generator().manual_seed(100 * step + rank))


def _account(rank: int, options: dict[str, Any]) -> float:
    """The largest difference between what was made by all ranks, and what was applied, waits or is under way."""
    model = model_of()
    optimizer = DiLoCo(torch.optim.SGD(model.named_parameters(), lr=0.01), **options)
    start = [param.detach().clone() for param in model.parameters()]
    made = [torch.zeros_like(param) for param in start]
    worst = 0.0
    for step in range(17):
        for param, total in zip(model.parameters(), made, strict=True):
            param.grad = _given(rank, step, param)
            total.add_(param.grad, alpha=0.01)
        optimizer.step()
        state = optimizer.state_dict()
        world = dist.get_world_size()
        kept = state["exchange"]["ranks"][str(rank)]["worker"].get("residual", {})
        for (name, param), begin, total in zip(model.named_parameters(), start, made, strict=True):
            agreed = state["kept"]["agreed"][name]
            # Residuals hold what was sent in part; a fragment under way is still in the parameters of its rank.
            waits = (agreed - param.detach()) + kept.get(name, torch.zeros(param.numel())).view_as(param)
            for flight in state["streams"]["flights"].values():
                if name in flight["own"]:
                    waits += flight["mean"][name] - flight["own"][name]
            rest = total - waits
            dist.all_reduce(rest)
            worst = max(worst, float((begin - agreed - rest / world).abs().max()))
    return worst


@pytest.mark.parametrize(
    "options",
    [
        {**EXACT, "every": 6, "fragments": 3, "delay": 4},
        {**EXACT, "compressor": "topk", "ratio": 0.1, "min_numel": 0, "every": 5, "fragments": 2, "delay": 5},
    ],
)
def test_everything_that_was_made_was_applied_or_waits_or_is_under_way(options: dict[str, Any]) -> None:
    assert max(run_ranks(3, _account, options)) < 2e-6


def _dropped(rank: int) -> tuple[bool, bool, int, str]:
    """A value of rank 1 that is not finite, in one of three fragments, while rank 0 alone makes changes."""
    model = model_of()
    optimizer = DiLoCo(torch.optim.SGD(model.named_parameters(), lr=0.01), every=6, fragments=3, delay=2, **EXACT)
    start = [param.detach().clone() for param in model.parameters()]
    for step in range(18):
        for param in model.parameters():
            param.grad = _given(rank, step, param) * (rank == 0)
        if (step, rank) == (7, 1):
            with torch.no_grad():
                next(model.parameters())[0, 0] = float("inf")
        optimizer.step()
    optimizer.synchronize()
    whole, met = True, True
    for param, begin in zip(model.parameters(), start, strict=True):
        made = sum((_given(0, step, param) for step in range(18)), torch.zeros_like(param)) * 0.01
        whole &= torch.allclose(begin - param, made / 2, atol=1e-6)
        met &= bool(param.isfinite().all())
    return whole, met and optimizer.in_step, int(optimizer.metrics()["nonfinite_steps"]), parameters(model)


def test_a_fragment_that_was_dropped_goes_with_the_next_round() -> None:
    results = run_ranks(2, _dropped)
    assert [result[:3] for result in results] == [(True, True, 1), (True, True, 1)]
    assert results[0][3] == results[1][3]


def _ahead(rank: int) -> bool:
    """Rank 1 begins when rank 0 is one step before the first deadline: nobody waits for anybody until then."""
    model = model_of()
    optimizer = make("diloco", model, {**EXACT, "every": 4, "delay": 3})
    store = dist.distributed_c10d._get_default_store()
    for step in range(12):
        if (step, rank) == (0, 1):
            store.get("ahead")
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        if (step, rank) == (5, 0):
            store.set("ahead", "")
    return bool(optimizer.metrics()["waited_seconds"] > 0)


def test_training_waits_at_the_deadline_only() -> None:
    assert run_ranks(2, _ahead) == [True, True]


def _broken(rank: int) -> tuple[str, bool]:
    """A parameter of rank 1 loses a row, so that it has no change to send; and what the others hold then."""
    model = model_of()
    optimizer = DiLoCo(torch.optim.SGD(model.named_parameters(), lr=0.01), every=6, fragments=3, delay=1, **EXACT)
    told, before = "", ""
    for step in range(6):
        for param in model.parameters():
            param.grad = _given(rank, step, param)
        if (step, rank) == (3, 1):
            model[2].weight.grad = None  # type: ignore[index, union-attr]
            model[2].weight.data = model[2].weight.data[:7]  # type: ignore[index, union-attr]
        try:
            optimizer.step()
        except Exception as error:
            told = f"{step} {type(error).__name__}: {error}"
            break
        before = digest(optimizer.agreed.data)
    return told, digest(optimizer.agreed.data) == before


def test_an_error_of_one_rank_is_raised_on_all_at_the_deadline_and_changes_nothing() -> None:
    results = run_ranks(2, _broken)
    assert [told.split()[0] for told, _ in results] == ["4", "4"]
    assert all("tensor" in told and held for told, held in results), results


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fragments": 0}, "DiLoCo.fragments must be an integer >= 1 or None, got 0"),
        ({"fragments": 4}, "DiLoCo.fragments must be at most 3, the layers whose number"),
        (
            {"fragments": 3, "every": 2},
            "DiLoCo.fragments must be so few that there are at most 2, the steps of a period",
        ),
        ({"delay": 9}, "DiLoCo.delay must be at most every, which is 8, got 9"),
        ({"delay": -1}, "DiLoCo.delay must be an integer >= 0, got -1"),
        ({"mix": 1.0}, "DiLoCo.mix must be in [0, 1) or None, got 1.0"),
        ({"layout": "random"}, "DiLoCo.layout must be 'strided' or 'contiguous', got 'random'"),
    ],
)
def test_bad_parameters_are_refused(options: dict[str, Any], text: str) -> None:
    assert text in run_ranks(1, refused, "diloco", {**EXACT, "every": 8, **options})[0]


def _elsewhere(rank: int) -> list[str]:
    del rank
    model = model_of()
    optimizer = make("diloco", model, {**EXACT, "every": 4, "fragments": 2, "delay": 2})
    for step in range(3):
        forward(model, optimizer, step, 0).backward()
        optimizer.step()
    told = []
    others = ({"fragments": None, "delay": 0}, {"fragments": 3}, {"every": 8}, {"delay": 1})
    for other in others:
        options = {**EXACT, "every": 4, "fragments": 2, "delay": 2, **other}
        try:
            make("diloco", model_of(), options).load_state_dict(optimizer.state_dict())
        except ConfigError as error:
            told.append(str(error))
    return told


def test_a_state_with_fragments_under_way_is_refused_where_these_are_others() -> None:
    without, *others = run_ranks(1, _elsewhere)[0]
    assert "got one with some under way" in without
    assert len(others) == 3
    assert all("the same fragments, every and delay" in told for told in others)
    assert all("in which fragment 0 was under way" in told for told in others)


def _counted(rank: int) -> list[int]:
    model = model_of(seed=3)
    optimizer = make("diloco", model, {**EXACT, "every": 3, "fragments": 2, "delay": 3})
    assert isinstance(optimizer, DiLoCo)
    rounds = []
    for step in range(12):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        rounds.append(optimizer.round)
    return rounds


def test_the_number_of_rounds_is_the_same_on_all_ranks_while_fragments_are_under_way() -> None:
    first, second = run_ranks(2, _counted)
    assert first == second
    assert first[-1] == 4
    assert first == sorted(first)
