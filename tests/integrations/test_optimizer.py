"""The plain training loop over real Gloo processes."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from gradwire.errors import ConfigError, GroupError
from gradwire.frontends._buckets import split
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.testing.processes import run_ranks
from tests.heard import heard
from tests.integrations.jobs import batch, digest, loss_of, model_of, train_loop


def test_ranks_that_start_apart_end_bit_identical_and_learn() -> None:
    results = run_ranks(2, train_loop, "twobit", 50, {"threshold": 1e-2, "min_numel": 128})
    assert len({result["digest"] for result in results}) == 1
    assert results[0]["loss"] < 0.5 * loss_of(model_of())
    assert results[0]["metrics"]["steps"] == 50
    assert results[0]["metrics"]["ratio"] > 8


def _by_hand(rank: int) -> tuple[str, int, list[bool]]:
    """A gradient scaler: the exchange comes first, so all ranks see one rank's overflow and skip together."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = compress_optimizer(optimizer, model, "twobit", threshold=1e-2, min_numel=0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    skipped = []
    for step in range(4):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss * (float("inf") if (step, rank) == (2, 1) else 1.0)).backward()
        before, scale = digest(model), scaler.get_scale()
        state.exchange_gradients()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(digest(model) == before and scaler.get_scale() < scale)
    return digest(model), state.metrics()["steps"], skipped


def test_an_overflow_makes_all_ranks_skip_the_same_step() -> None:
    results = run_ranks(3, _by_hand)
    assert len({result[0] for result in results}) == 1
    assert {result[1] for result in results} == {4}
    assert all(result[2] == [False, False, True, False] for result in results)


def _unused(rank: int) -> bool:
    """A parameter that gets no gradient on one rank counts as zero there, and is averaged on both."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    compress_optimizer(optimizer, model, "none")
    before = model[1].weight.detach().clone()
    loss = model[0](torch.ones(1, 8)).sum()
    if rank == 0:
        loss = loss + model[1](torch.ones(1, 8)).sum()
    loss.backward()
    optimizer.step()
    return torch.allclose(before - model[1].weight.detach(), torch.full((8, 8), 0.5))


def test_a_missing_gradient_counts_as_zero() -> None:
    assert all(run_ranks(2, _unused))


def _statistics(rank: int) -> list[str]:
    told = heard()
    for norm in (nn.BatchNorm1d(8, affine=False), nn.BatchNorm1d(8, track_running_stats=False), nn.SyncBatchNorm(8)):
        model = nn.Sequential(nn.Linear(8, 8), norm)
        compress_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, "none")
    return [text for text in told if "running statistics" in text]


def test_running_statistics_that_stay_apart_are_reported_on_one_rank() -> None:
    first, other = run_ranks(2, _statistics)
    assert not other
    assert len(first) == 1
    assert first[0].startswith(
        "compress_optimizer exchanges no buffers: the running statistics of BatchNorm1d are each"
    )


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="over the model's own parameters"):
        compress_optimizer(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0), nn.Linear(2, 2))


def test_without_a_process_group_the_error_says_what_to_do() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="init_process_group"):
        compress_optimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)


def test_buckets_are_consecutive_and_no_larger_than_asked() -> None:
    params = [(str(i), nn.Parameter(torch.zeros(size))) for i, size in enumerate([100, 100, 300_000, 10, 10])]
    buckets = split(params, bucket_mb=1.0)
    assert [[name for name, _ in bucket] for bucket in buckets] == [["0", "1"], ["2"], ["3", "4"]]


def _misused(rank: int) -> list[str]:
    """A closure, a parameter that becomes trainable, and one that is frozen: nobody would notice."""
    answers = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = compress_optimizer(optimizer, model, "none")
    model(torch.ones(1, 4)).sum().backward()
    for case in ("closure", "unfrozen", "frozen"):
        try:
            model[0].requires_grad_(case == "unfrozen")
            model[1].requires_grad_(case != "frozen")
            optimizer.step(lambda: 1.0) if case == "closure" else optimizer.step()
        except ConfigError as error:
            answers.append(str(error))
    state.close()
    return answers


def test_what_would_let_ranks_part_is_refused() -> None:
    closure, unfrozen, frozen = run_ranks(2, _misused)[0]
    assert closure.startswith("closure must be None")
    assert unfrozen.startswith("optimizer must be over the parameters that were trainable at set-up, got 2 more")
    assert frozen.endswith("got 2 frozen since: make a new state without them")


def _wrong_on_one_rank(rank: int, kind: str) -> str:
    model = nn.Sequential(nn.LazyLinear(8)) if kind == "lazy" else model_of()
    optimizer = torch.optim.SGD((nn.Linear(2, 2) if kind == "other model" and rank else model).parameters(), lr=0.1)
    if kind == "frozen":
        for param in model[0].parameters():
            param.requires_grad_(False)
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    try:
        compress_optimizer(optimizer, model, "topk", bucket_mb=-1 if kind == "bucket" and rank else 25)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("bucket", r"GroupError: rank 1 .*bucket_mb must be a number > 0, got -1"),
        ("other model", r"GroupError: rank 1 .*over the model's own parameters"),
        ("frozen", r"ConfigError: optimizer must be over parameters that are trainable"),
        (
            "lazy",
            r"ConfigError: 0.weight must be made: .* run the model once on a batch before, got one without a shape",
        ),
    ],
)
def test_what_is_wrong_on_one_rank_is_raised_on_all(kind: str, named: str) -> None:
    errors = run_ranks(2, _wrong_on_one_rank, kind)
    assert errors[0] == errors[1]
    assert re.match(named, errors[0])


def _alone(rank: int) -> str:
    """Rank 1 leaves; rank 0 is left waiting."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compress_optimizer(optimizer, model, "topk", timeout=200.0)
    if rank == 1:
        return ""
    x, y = batch(0, rank)
    nn.functional.cross_entropy(model(x), y).backward()
    try:
        optimizer.step()
    except GroupError as error:
        return str(error)
    return "nothing was raised"


def test_a_lost_peer_is_a_group_error() -> None:
    assert run_ranks(2, _alone)[0].startswith("rank 0 of 2 in step 1 lost rank 1: the process died")


def _skipped(rank: int) -> tuple[str, int]:
    """An exchange by hand whose step is skipped does not count for the next step's gradients."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = compress_optimizer(optimizer, model, "none")
    for step in range(3):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if step == 1:
            state.exchange_gradients()
            continue
        optimizer.step()
    return digest(model), state.metrics()["steps"]


def test_a_skipped_step_does_not_use_up_the_next_exchange() -> None:
    results = run_ranks(2, _skipped)
    assert len({digest for digest, _ in results}) == 1
    assert {steps for _, steps in results} == {3}


def _two_optimizers(rank: int) -> list[int]:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    model.register_buffer("calls", torch.zeros(3, dtype=torch.int16))
    states = []
    for half in model:
        optimizer = torch.optim.SGD(half.parameters(), lr=0.1)
        states.append((optimizer, compress_optimizer(optimizer, model, "none")))
    model(torch.ones(1, 64)).sum().backward()
    for optimizer, _ in states:
        optimizer.step()
    return [state.metrics()["bytes_sent"] for _, state in states]


def test_each_of_two_optimizers_exchanges_its_own_half() -> None:
    # One byte tells whether any rank has used the weight.
    assert run_ranks(2, _two_optimizers)[0] == [4 * 64 * 64 + 1, 4 * 64 * 64 + 1]


def _bucket_mb(rank: int) -> str:
    model = model_of()
    try:
        compress_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, "none", bucket_mb=25.0 - rank)
    except Exception as error:
        return str(error)
    return ""


def test_buckets_of_different_sizes_are_refused_at_set_up() -> None:
    assert (
        run_ranks(2, _bucket_mb)
        == ["ranks were configured differently: bucket_mb is 25.0 on rank 0; 24.0 on rank 1"] * 2
    )
