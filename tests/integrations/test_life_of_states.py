"""States that are changed, closed and saved at odd moments: nothing of the old one is left, and nothing is lost."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.testing.processes import run_ranks

BIAS = {"exclude": ["*.bias"], "min_numel": 16}


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))


def backward(model: nn.Module, rank: int = 0, size: float = 1.0) -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(rank))
    (size * model(x)).square().sum().backward()


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except gradwire.ConfigError as error:
        return str(error)
    return ""


def changed(rank: int) -> dict[str, Any]:
    model = DistributedDataParallel(layers())
    state = gradwire.compress_ddp(model, "topk", ratio=0.25, schedule={"ratio": lambda _: 0.5}, **BIAS)
    ratios = []
    for change in (None, {"ratio": 0.1}, {"schedule": {"ratio": lambda _: 0.2}}, {}):
        if change is not None:
            state.change("topk", **change)
        backward(model, rank)
        ratios.append(state.exchange.methods.at(state.exchange.step).ratio)  # type: ignore[attr-defined]
    state.change("qsgd", bits=8, drop=True)
    backward(model, rank)
    told = refusal(lambda: state.change("auto"))
    bad = refusal(lambda: state.change("qsgd", schedule={"bit": lambda _: 4}))
    bad += refusal(lambda: state.change("qsgd", schedule="bits"))
    state.close()
    return {"ratios": ratios, "method": state.exchange.methods.compressor.name, "auto": told, "bad": bad}


def excluded(rank: int) -> list[str]:
    """Patterns that match what is frozen, or what another optimizer trains, hold after a change, too."""
    model = layers()
    for param in model[0].parameters():
        param.requires_grad_(False)
    ddp = DistributedDataParallel(model)
    states = [gradwire.compress_ddp(ddp, "topk", exclude=["0.*"], min_numel=16)]
    other = layers()
    optimizer = torch.optim.SGD(other[1:].parameters(), lr=0.1)
    states.append(gradwire.compress_optimizer(optimizer, other, "topk", exclude=["0.*"], min_numel=16))
    for state in states:
        state.change("qsgd", bits=8)
    backward(ddp, rank)
    backward(other, rank)
    optimizer.step()
    names = [state.exchange.methods.compressor.name for state in states]
    for state in states:
        state.close()
    return names


def closed(rank: int) -> dict[str, Any]:
    """After each of several rounds nothing is left of the closed state but a guard, and that goes with the next."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dead, refused, hooks = [], [], []
    for _ in range(3):
        state = gradwire.compress_optimizer(optimizer, model, "topk", **BIAS)
        backward(model, rank)
        optimizer.step()
        dead.append(weakref.ref(state))
        state.close()
        del state
        gc.collect()
        hooks.append(len(optimizer._optimizer_step_pre_hooks))  # type: ignore[attr-defined]
        refused.append(refusal(optimizer.step))
    left = [param._post_accumulate_grad_hooks for param in model.parameters()]
    return {"alive": [each() is not None for each in dead], "refused": refused, "hooks": hooks, "left": left}


def overflowed(rank: int) -> list[int]:
    """A mean that float32 holds is infinite in the 16 bits of the gradients."""
    counted = []
    for way in ("optimizer", "ddp"):
        model: Any = nn.Linear(64, 64, bias=False).half()
        if way == "ddp":
            model = DistributedDataParallel(model)
            state: Any = gradwire.compress_ddp(model, "topk", ratio=0.01)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            state = gradwire.compress_optimizer(optimizer, model, "topk", ratio=0.01)
        for _ in range(3):
            model.zero_grad()
            (30000.0 * model(torch.eye(64, dtype=torch.float16))).sum().backward()
            if way == "optimizer":
                optimizer.step()
        counted.append(state.metrics()["nonfinite_steps"])
        state.close()
    return counted


def unscaled(rank: int) -> list[str]:
    """States that were saved with a scaler, loaded without one."""
    told = []
    for method in ("qsgd", "topk"):
        model = layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        state = gradwire.compress_optimizer(optimizer, model, method, scaler=scaler, **BIAS)
        backward(model, rank)
        state.exchange_gradients()
        saved = state.state_dict()
        state.close()
        other = gradwire.compress_optimizer(optimizer, model, method, **BIAS)
        told.append(refusal(lambda other=other, saved=saved: other.load_state_dict(saved)))
        other.close()
    return told


def copies(rank: int) -> list[int]:
    """Names of the copies with which a step can be undone, before and after there is nothing to undo."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = gradwire.compress_optimizer(
        optimizer, model, "topk", scaler=torch.amp.GradScaler("cpu", init_scale=1.0), **BIAS
    )
    kept = []
    for method in ("topk", "qsgd"):
        if method == "qsgd":
            state.change("qsgd", drop=True)
        backward(model, rank)
        state.exchange_gradients()
        kept.append(len(state.exchange.rollback._storage))
    state.close()
    return kept


class Towers(nn.Module):
    """Two networks that are trained in turn, as those of a GAN."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(16, 64, bias=False), nn.Linear(16, 64, bias=False)

    def forward(self, x: torch.Tensor, which: str) -> torch.Tensor:
        return getattr(self, which)(x)


def towers(rank: int) -> dict[str, Any]:
    world = dist.get_world_size()
    model, mesh = Towers(), init_device_mesh("cpu", (world,))
    for part in (model.a, model.b):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=10**6)
    state = gradwire.compress_fsdp(model, "topk", ratio=0.05, scaler=scaler, min_numel=16)
    optimizers = {name: torch.optim.SGD(getattr(model, name).parameters(), lr=0.01) for name in "ab"}
    steps: list[int] = []

    def passed(which: str, size: float = 1.0) -> None:
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(len(steps) + 100 * rank))
        scaler.scale((size * model(x, which)).square().mean()).backward()
        steps.append(state.exchange.step)

    for _ in range(2):
        for name, optimizer in optimizers.items():
            optimizer.zero_grad()
            passed(name)
            optimizer.step()
    # Before an optimizer has stepped, another pass is a part of the same step.
    for name in optimizers:
        passed(name)
    for optimizer in optimizers.values():
        optimizer.step()
    kept = state.exchange.residuals.worker["residual"]
    passed("a")
    optimizers["a"].step()
    state.exchange.end_step()
    good = {name: tensor.clone() for name, tensor in kept.items()}
    passed("b", float("inf"))
    state.exchange.end_step()
    same = {name: torch.equal(tensor, good[name]) for name, tensor in kept.items()}
    # A scale that has changed begins a step, too, so that residuals are in the unit of their gradients.
    scaler.update(2.0)
    passed("a")
    steps_and_unit = state.units.scale
    state.close()
    return {"steps": steps, "same": same, "unit": steps_and_unit, "closed": state.exchange.channel.closed}


def finished(rank: int) -> str:
    """Rank 0 alone calls ``finish``; the others go on with a step."""
    model = layers()
    inner = torch.optim.AdamW(model.named_parameters(), lr=1e-3)
    optimizer = gradwire.CompressedStep(inner, ratio=0.1, every=1, keep=True, min_numel=16)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model, rank)
        optimizer.step()
    try:
        if rank == 0:
            optimizer.finish()
        else:
            backward(model, rank)
            optimizer.step()
    except gradwire.GradwireError as error:
        return str(error)
    return ""


def everything(rank: int) -> dict[str, Any]:
    done = {each.__name__: each(rank) for each in (changed, excluded, closed, overflowed, unscaled, copies, towers)}
    return {**done, "finished": finished(rank)}


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    return run_ranks(2, everything)


def test_a_change_ends_a_schedule_and_may_begin_another(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert each["changed"]["ratios"] == [0.5, 0.1, 0.2, 0.01]
        assert each["changed"]["method"] == "qsgd"
        assert "schedule: 'qsgd' has no parameter 'bit'" in each["changed"]["bad"]
        assert "schedule must be a mapping from parameters to functions" in each["changed"]["bad"]


def test_a_change_to_auto_is_refused_with_the_reason(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert "'auto' decides only in a state that was made with it, got 'auto'" in each["changed"]["auto"]


def test_patterns_of_set_up_hold_after_a_change(told: list[dict[str, Any]]) -> None:
    assert [each["excluded"] for each in told] == [["qsgd", "qsgd"]] * 2


def test_nothing_of_a_closed_state_stays_with_its_optimizer(told: list[dict[str, Any]]) -> None:
    for each in told:
        assert each["closed"]["alive"] == [False] * 3
        assert each["closed"]["hooks"] == [1] * 3
        assert all("open when it steps, or ranks would train apart" in text for text in each["closed"]["refused"])
        assert not any(each["closed"]["left"])


def test_an_overflow_in_the_cast_back_is_counted_in_every_front_end(told: list[dict[str, Any]]) -> None:
    for each in told:
        first, second = each["overflowed"]
        assert first == second > 0


def test_a_state_without_residuals_needs_no_scaler(told: list[dict[str, Any]]) -> None:
    for each in told:
        free, kept = each["unscaled"]
        assert free == ""
        assert "scaler must be given, as when the state was saved at scale 4.0" in kept


def test_copies_for_undoing_go_with_the_method_that_needed_them(told: list[dict[str, Any]]) -> None:
    for each in told:
        before, after = each["copies"]
        assert before > after == 0


def test_networks_that_are_trained_in_turn_have_steps_of_their_own(told: list[dict[str, Any]]) -> None:
    """An overflow of one undoes nothing of the other."""
    for each in told:
        towers = each["towers"]
        assert towers["steps"] == [1, 2, 3, 4, 5, 5, 6, 7, 8]
        assert towers["same"] == {"a.weight": True, "b.weight": True}
        assert towers["unit"] == 2.0


def test_a_closed_state_of_a_sharded_model_gives_its_group_back(told: list[dict[str, Any]]) -> None:
    assert all(each["towers"]["closed"] for each in told)


def test_a_finish_that_one_rank_alone_calls_is_an_error_on_all(told: list[dict[str, Any]]) -> None:
    assert all("finish" in each["finished"] for each in told)
