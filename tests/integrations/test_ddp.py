"""DDP over real Gloo processes: several buckets, rebuilt after the first step."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.frontends.ddp import GradwireState, compress_ddp, gradwire_hook
from gradwire.testing.processes import RankFailedError, run_ranks
from tests.integrations.jobs import batch, digest, loss_of, model_of, note, train_ddp, train_each, wait_for
from tests.once import once

SHORT, LONG = (12, 0.4), (50, 0.1)
"""Steps, and the learning rate at which plain DDP learns as much in them as in the others."""
FEW = 3
SETTINGS: dict[str, dict[str, Any]] = {
    "twobit": {"threshold": 1e-2},
    "topk": {"ratio": 0.05},
    "powersgd": {"rank": 4},
    "qsgd": {"bits": 4},
    "demo": {"sign": False},
    "gradiveq": {"size": 32, "components": 8, "period": 20, "sampled": 4},
}
"""Settings that suit mean losses; the rest run with their defaults."""


SLOW = {
    "onebit": 0.5,
    "signsgd": 0.5,
    "signum": 0.5,  # steps of one size, whatever the gradient's
    "adaptive_threshold": 0.7,
    "dgc": 0.6,
    "ef21": 0.7,
    "oktopk": 0.7,
    "sidco": 0.7,
    "demo": 0.5,  # 1 % of few
    "randomk": 0.5,
    "sketched_sgd": 0.5,  # 1 %, and not the largest
}
"""The share of plain DDP's progress that must be made, where it is less than 85 %."""

PATIENT = ("adaptive_threshold", "dgc", "efsignsgd", "onebit", "onebit_sgd", "signum", "variance")
"""Methods that learn less by fewer and larger steps."""


def pace(compressor: str) -> tuple[int, float]:
    return LONG if compressor in PATIENT else SHORT


@once
def trained(
    world: int, steps: int, rate: float, device: str = "cpu", backend: str = "gloo"
) -> dict[str, list[dict[str, Any]]]:
    """All methods of this pace, and DDP without a hook ("plain"), in one launch of the ranks."""
    names = (name for name in registry.names("compressors") if pace(name) == (steps, rate))
    return _train_all(world, steps, ("plain", *names), device, backend, rate)


@once
def few_steps() -> dict[str, list[dict[str, Any]]]:
    """Every method on three ranks, by which little divides; it need not learn there."""
    return _train_all(3, FEW, registry.names("compressors"), "cpu", "gloo")


def _train_all(
    world: int, steps: int, names: Iterable[str], device: str, backend: str, rate: float = 0.1
) -> dict[str, list[dict[str, Any]]]:
    options = {name: {"min_numel": 128, **SETTINGS.get(name, {})} if name != "plain" else {} for name in names}
    by_rank = run_ranks(world, train_each, steps, options, device, rate, timeout=800.0, backend=backend)
    return {name: [results[name] for results in by_rank] for name in options}


def check_progress(compressor: str, ours: list[dict[str, Any]], plain: list[dict[str, Any]]) -> None:
    """The ranks agree in every bit, and the loss went down as far as plain DDP's or the method's share of that."""
    assert len({result["digest"] for result in ours}) == 1
    start = loss_of(model_of())
    assert start - plain[0]["loss"] > 1.5
    assert start - ours[0]["loss"] > SLOW.get(compressor, 0.85) * (start - plain[0]["loss"])


@pytest.mark.parametrize("compressor", registry.names("compressors"))
def test_training_ends_bit_identical_and_as_good_as_plain_ddp(compressor: str) -> None:
    steps, rate = pace(compressor)
    results = trained(2, steps, rate)
    check_progress(compressor, results[compressor], results["plain"])
    metrics = results[compressor][0]["metrics"]
    assert metrics["steps"] == steps
    assert metrics["nonfinite_steps"] == 0
    assert metrics["ratio"] >= 1 if compressor == "none" else metrics["ratio"] > 1.5


@pytest.mark.parametrize("compressor", registry.names("compressors"))
def test_three_ranks_stay_bit_identical(compressor: str) -> None:
    ours = few_steps()[compressor]
    assert len({result["digest"] for result in ours}) == 1
    assert ours[0]["digest"] != digest(model_of())
    assert (ours[0]["metrics"]["steps"], ours[0]["metrics"]["nonfinite_steps"]) == (FEW, 0)


STRATEGIES = ("allgather", "broadcast", "two_phase")


@once
def by_strategies() -> list[dict[str, dict[str, Any]]]:
    return run_ranks(3, _by_strategies)


def _by_strategies(rank: int) -> dict[str, dict[str, Any]]:
    """Plain DDP, and two bits by each strategy."""
    options = {**SETTINGS["twobit"], "min_numel": 128}
    steps, rate = pace("twobit")
    ours = {each: train_ddp(rank, "twobit", steps, {**options, "strategy": each}, rate=rate) for each in STRATEGIES}
    return {"plain": train_ddp(rank, "plain", steps, {}, rate=rate), **ours}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_bit_by_every_strategy(strategy: str) -> None:
    results = by_strategies()
    check_progress("twobit", [each[strategy] for each in results], [each["plain"] for each in results])


def test_no_compression_is_plain_ddp_bit_for_bit() -> None:
    results = trained(2, *SHORT)
    assert results["none"][0]["digest"] == results["plain"][0]["digest"]


def _of_dtype(rank: int, dtype: torch.dtype) -> dict[str, tuple[str, float, list[str]]]:
    """A digest, bytes an element and the threads, of DDP without a hook and of methods that send what is there."""
    told = {}
    for method in ("plain", "none", "bf16"):
        model = DistributedDataParallel(model_of().to(dtype), bucket_cap_mb=0.02)
        state = compress_ddp(model, method) if method != "plain" else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            x, y = batch(step, rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(dtype)).float(), y).backward()
            optimizer.step()
        threads = [thread.name for thread in threading.enumerate() if thread.name == "gradwire"]
        figures = state.metrics() if state is not None else {}
        numel = sum(param.numel() for param in model.parameters())
        told[method] = (digest(model), figures.get("bytes_sent", 0) / numel / 4 * 3 / 4, threads)
        if state is not None:
            assert figures["communicate_seconds"] > 0
            assert figures["steps"] == 4
            state.close()
    return told


@pytest.mark.parametrize(("dtype", "nbytes"), [(torch.float32, 4), (torch.float16, 2), (torch.bfloat16, 2)])
def test_what_is_sent_as_it_is_is_plain_ddp_bit_for_bit_without_a_thread(dtype: torch.dtype, nbytes: int) -> None:
    """Three ranks, several buckets, which DDP rebuilds; gradients of 16 bits travel in 16."""
    for told in run_ranks(3, _of_dtype, dtype):
        same = ("none", "bf16") if dtype == torch.bfloat16 else ("none",)
        for method in same:
            found, each, threads = told[method]
            assert found == told["plain"][0]
            assert each == pytest.approx(nbytes, rel=0.01)
            assert threads == []


def _buckets(rank: int) -> list[list[str]]:
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.02)
    state = GradwireState(model, "twobit", threshold=1e-3, min_numel=0)
    seen: list[list[str]] = []

    def spy(state: GradwireState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            seen.append([state._names[id(param)][0] for param in bucket.parameters()])
        return gradwire_hook(state, bucket)

    spy.__annotations__ = gradwire_hook.__annotations__
    model.register_comm_hook(state, spy)
    norms = []
    for step in range(3):
        x, y = batch(step, rank)
        nn.functional.cross_entropy(model(x), y).backward()
        norms.append({name: float(view.norm()) for name, view in state.exchange.residuals.worker["residual"].items()})
    assert set(norms[0]) == set(norms[2]) == {name for name, _ in model.module.named_parameters()}
    assert all(norms[2][name] > 0 for name in norms[2])
    return seen


def _short(rank: int) -> int:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    state = compress_ddp(model, "none")
    for _ in range(5):
        model(torch.randn(8, 64)).sum().backward()
    return int(state.metrics()["steps"])


def test_a_process_ends_well_where_its_last_sum_has_just_ended() -> None:
    """A thread of Gloo's that ends its own group aborts the process, in some of such runs."""
    for _ in range(5):
        assert run_ranks(3, _short, end=True) == [5] * 3


def test_residuals_follow_their_parameters_through_the_bucket_rebuild() -> None:
    seen = run_ranks(2, _buckets)[0]
    assert seen[0] != seen[1], "DDP did not rebuild its buckets, so this test tests nothing"


def _conserved(rank: int, strategy: str) -> float:
    """Largest difference between all gradients put in and all that came out or is kept, over three rebuilt steps."""
    torch.manual_seed(0)
    module = nn.Sequential(*[nn.Linear(24, 24, bias=False) for _ in range(6)])
    model = DistributedDataParallel(module, bucket_cap_mb=0.005)
    state = compress_ddp(model, "twobit", threshold=0.05, min_numel=0, strategy=strategy)
    put = {name: torch.zeros_like(param) for name, param in module.named_parameters()}
    got = {name: torch.zeros_like(param) for name, param in module.named_parameters()}
    for step in range(3):
        x = torch.randn(8, 24, generator=torch.Generator().manual_seed(10 * step + rank))
        local = torch.autograd.grad(module(x).square().mean(), list(module.parameters()))
        for name, grad in zip(put, local, strict=True):
            put[name] += grad
        model.zero_grad()
        model(x).square().mean().backward()
        for name, param in module.named_parameters():
            got[name] += param.grad
    world, worst = dist.get_world_size(), 0.0
    residuals = state.exchange.residuals
    for name in put:
        kept = residuals.worker["residual"][name] / world
        for _, lo, view in residuals.owned.get(name, []):
            kept[lo : lo + view.numel()] += view
        total = put[name].reshape(-1) / world - kept
        dist.all_reduce(total)
        worst = max(worst, float((total - got[name].reshape(-1)).abs().max()))
    return worst


@pytest.mark.parametrize("strategy", ["allgather", "two_phase"])
def test_a_bucket_rebuild_loses_no_gradient(strategy: str) -> None:
    assert max(run_ranks(3, _conserved, strategy)) < 1e-6


def _dtype(rank: int, dtype: torch.dtype) -> tuple[str, float]:
    model = DistributedDataParallel(model_of().to(dtype), bucket_cap_mb=0.02)
    state = compress_ddp(model, "twobit", threshold=2e-3, min_numel=128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(dtype)).float(), y).backward()
        optimizer.step()
    return digest(model), state.metrics()["ratio"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_models_keep_float32_residuals(dtype: torch.dtype) -> None:
    (first, ratio), (second, _) = run_ranks(2, _dtype, dtype)
    assert first == second
    assert ratio > 5


def _overflow(rank: int, compressor: str, options: dict[str, Any]) -> dict[str, Any]:
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.02)
    state = compress_ddp(model, compressor, min_numel=0, **options)
    seen = []
    for step in range(4):
        x, y = batch(step, rank)
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * (float("inf") if step == 2 and rank == 1 else 1.0)).backward()
        seen.append(all(param.grad.isfinite().all() for param in model.parameters()))
    return {"finite": seen, "metrics": state.metrics()}


@pytest.mark.parametrize(
    ("compressor", "options"),
    [("none", {}), ("bf16", {}), ("twobit", {"threshold": 1e-3}), ("topk", {"ratio": 0.1}), ("powersgd", {"rank": 1})],
)
def test_one_overflow_is_seen_by_all_and_poisons_nothing(compressor: str, options: dict[str, Any]) -> None:
    for result in run_ranks(3, _overflow, compressor, options):
        assert result["finite"] == [True, True, False, True]
        assert result["metrics"]["nonfinite_steps"] == 1
        assert result["metrics"]["residual_norm"] < float("inf")


TWO_BITS = ("twobit", {"threshold": 1e-3, "strategy": "two_phase"})


def _deserted(rank: int, how: str, method: tuple[str, dict[str, Any]], folder: str) -> str:
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.02)
    timeout = 10.0 if how == "asleep" else 200.0
    compressor, options = method
    compress_ddp(model, compressor, min_numel=0, timeout=timeout, **options)
    x, y = batch(0, rank)
    for _ in range(3):
        nn.functional.cross_entropy(model(x), y).backward()
    if rank == 1:
        if how == "asleep":
            wait_for(folder, (0, 2))
        Path(folder, "pid").write_text(str(os.getpid()))
        return how
    if rank == 0 and how == "gone before":
        until_gone(Path(folder, "pid"))
    try:
        nn.functional.cross_entropy(model(x), y).backward()
    except RuntimeError as error:
        note(folder, rank)
        wait_for(folder, (0, 2))  # A rank that leaves at once would be the one that the slower survivor loses.
        return str(error)
    return "nothing was raised"


def until_gone(pid: Path) -> None:
    """Rank 2 waits for this rank's message first, and this rank cannot even begin to receive from rank 1."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, ValueError):
            try:
                os.kill(int(pid.read_text()), 0)
            except ProcessLookupError:
                return
        time.sleep(0.02)
    raise AssertionError("rank 1 did not end")


LOST = {
    "gone": r"in step 4 lost rank 1: the process died, or gave up",
    "gone before": r"in step 4 lost rank 1: the process died, or gave up",
    "asleep": r"in step 4 waited timeout=10 s for rank 1 and got no answer",
}

DESERTED = {
    **{how: (how, TWO_BITS) for how in LOST},
    **{f"{how}, uncompressed": (how, ("none", {})) for how in LOST},
}


@pytest.fixture(scope="module", autouse=True)
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[list[str]]]]:
    """Ranks of which one is lost: they wait while the tests above run."""
    with ThreadPoolExecutor() as threads:
        yield {
            case: threads.submit(run_ranks, 3, _deserted, *each, str(tmp_path_factory.mktemp("deserted")))
            for case, each in DESERTED.items()
        }


@pytest.mark.parametrize("case", DESERTED)
def test_a_rank_that_does_not_answer_is_an_error_and_not_a_hang(case: str, lost: dict[str, Future[list[str]]]) -> None:
    answers, how = lost[case].result(), DESERTED[case][0]
    assert all(re.search(f"rank {rank} of 3 {LOST[how]}", answers[rank]) for rank in (0, 2)), answers


def _all_allocations(rank: int, compressors: list[str]) -> dict[str, list[float]]:
    return {name: _allocations(name) for name in compressors}


def _allocations(compressor: str) -> list[float]:
    """The largest CPU allocations made by a warm exchange of 2^19 elements, in sizes of the gradient."""
    from torch.profiler import ProfilerActivity, profile

    from gradwire.engine.exchange import Exchange
    from gradwire.engine.settings import build_compressor

    exchange = Exchange(build_compressor(compressor, {}), group=dist.group.WORLD)
    flat = torch.randn(
        2 ** (20 if compressor == "gradiveq" else 19)
    )  # Its basis has one size, whatever the gradient's.
    params = [("weight", (1024, flat.numel() // 1024))]
    for _ in range(7 if compressor == "gradiveq" else 3):  # It learns its basis in the first five.
        exchange.begin_step()
        exchange.run(flat, params)
        flat.normal_()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        exchange.begin_step()
        exchange.run(flat, params)
    allocated = [event.nbytes() for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return sorted(size / flat.nbytes for size in allocated if size > 0)[-3:]


KEEP_A_LIST = {
    "adaptive_sparse",
    "compose",
    "demo",
    "dgc",
    "entropy",
    "sidco",
    "sketchml",
    "sparseloco",
    "strom",
    "three_lc",
    "variance",
}
"""Methods that write down which elements they choose, or their codes, before they know how many bytes that takes."""


@once
def allocations() -> list[dict[str, list[float]]]:
    """The memory of each rank, by method; those that decompose a gradient take room of its size."""
    methods = [registry.build("compressors", name) for name in registry.names("compressors")]
    return run_ranks(2, _all_allocations, [method.name for method in methods if not capabilities.factorises(method)])


@pytest.mark.parametrize("compressor", registry.names("compressors"))
def test_a_warm_exchange_allocates_nothing_of_gradient_size(compressor: str) -> None:
    limit = 1 / 2 if compressor in KEEP_A_LIST else 1 / 16
    for rank in allocations():
        if compressor in rank:
            assert all(size <= limit for size in rank[compressor]), rank[compressor]


def test_a_failure_on_one_rank_reaches_the_test() -> None:
    with pytest.raises(RankFailedError, match="ZeroDivisionError"):
        run_ranks(2, divmod, 0)


def _freed(rank: int) -> int:
    """The number of states, of three, that are still there after their models are gone."""
    alive = []
    for _ in range(3):
        model = DistributedDataParallel(nn.Linear(64, 64))
        state = compress_ddp(model, "twobit")
        model(torch.ones(2, 64)).sum().backward()
        alive.append(weakref.ref(state))
        state.close()
        del model, state
        gc.collect()
    return sum(reference() is not None for reference in alive)


def test_a_closed_state_is_freed_with_its_model() -> None:
    assert run_ranks(2, _freed) == [0, 0]
