"""Learning rates that follow the noise of a code: measured right, the same on all ranks, and only during a step."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.engine.second_moment import EVERY, LEAST, MOST, SecondMoment
from gradwire.errors import ConfigError
from gradwire.testing.processes import run_ranks
from tests.once import once

RATE, WIDTH = 1e-2, 32
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "allgather": ("qsgd", {"bits": 2, "strategy": "allgather"}),
    "two_phase": ("qsgd", {"bits": 2, "strategy": "two_phase"}),
    "allreduce": ("global_qsgd", {"levels": 1}),
    "terngrad": ("terngrad", {"clip": 0.0}),
}


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def backward(model: nn.Module, step: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(100 * step + rank)
    model.zero_grad()
    x = torch.randn(4, WIDTH, generator=generator)
    (model(x) - torch.randn(4, WIDTH, generator=generator)).square().mean().backward()


def grads_of(model: nn.Module) -> list[Tensor]:
    return [param.grad.clone() for param in model.parameters() if param.grad is not None]


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([param.detach().flatten() for param in model.parameters()])


def measured(rank: int, method: str, options: dict[str, Any]) -> tuple[float, float]:
    """The factor after one step, and the same by hand."""
    model, exact = net(), net()
    backward(exact, 0, rank)
    means = grads_of(exact)
    for mean in means:
        dist.all_reduce(mean.div_(2))
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    state = gradwire.compress_optimizer(optimizer, model, method, variance_correction=True, min_numel=64, **options)
    backward(model, 0, rank)
    state.exchange_gradients()
    big = [(mean, grad) for mean, grad in zip(means, grads_of(model), strict=True) if mean.numel() >= 64]
    arrived, given = (torch.cat([each[which].flatten() for each in big]).double().norm() for which in (1, 0))
    found = state.metrics()["rate_factor"]
    state.close()
    return found, float(arrived / given)


def stepped(rank: int) -> dict[str, bool]:
    """A corrected optimizer beside one whose rates are multiplied by hand."""
    pairs = []
    for corrected in (True, False):
        model = DistributedDataParallel(net())
        optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.1)
        options = {"variance_correction": optimizer} if corrected else {}
        state = gradwire.compress_ddp(model, "qsgd", bits=2, min_numel=64, force=True, **options)
        pairs.append((model, optimizer, state, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)))
    same, rates, factors = [], [], []
    for step in range(6):
        for model, optimizer, _, schedule in pairs:
            backward(model, step, rank)
            factors.append(pairs[0][2].metrics()["rate_factor"])
            if optimizer is pairs[1][1]:
                optimizer.param_groups[0]["lr"] *= factors[-1]
            optimizer.step()
            if optimizer is pairs[1][1]:
                optimizer.param_groups[0]["lr"] /= factors[-1]
            schedule.step()
        rates.append(math.isclose(pairs[0][1].param_groups[0]["lr"], RATE * 0.9 ** (step + 1)))
        same.append(torch.allclose(weights_of(pairs[0][0]), weights_of(pairs[1][0]), rtol=1e-4, atol=1e-6))
    for _, _, state, _ in pairs:
        state.close()
    return {"same": all(same), "rates": all(rates), "corrected": min(factors) > 1.1}


def interrupted() -> tuple[float, float]:
    """The rate after a step that raised, and after the next one."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    state = gradwire.compress_ddp(model, "qsgd", bits=2, min_numel=64, variance_correction=optimizer)
    backward(model, 0, dist.get_rank())
    param, grad = model.module[0].weight, model.module[0].weight.grad
    optimizer.state[param] = {"step": torch.zeros(()), "exp_avg": None, "exp_avg_sq": None}
    with pytest.raises((TypeError, AttributeError, RuntimeError)):
        optimizer.step()
    first = optimizer.param_groups[0]["lr"]
    del optimizer.state[param]
    param.grad = grad
    optimizer.step()
    state.close()
    return first, optimizer.param_groups[0]["lr"]


def resumed(rank: int) -> dict[str, Any]:
    """A run that is saved after a measured step and one that is not, and the counters of each step."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), RATE)
        return (
            model,
            optimizer,
            gradwire.compress_optimizer(
                optimizer, model, "qsgd", bits=2, block=16, variance_correction=True, min_numel=64
            ),
        )

    def run(model: nn.Module, optimizer: torch.optim.Optimizer, state: Any, steps: range) -> list[int]:
        sent = []
        for step in steps:
            before = state.metrics()["bytes_sent"]
            backward(model, step, rank)
            optimizer.step()
            sent.append(state.metrics()["bytes_sent"] - before)
        return sent

    whole = made()
    sent = run(*whole, range(4))
    saved = [copy.deepcopy(each.state_dict()) for each in whole]
    run(*whole, range(4, 9))
    again = made()
    for each, state in zip(again, saved, strict=True):
        each.load_state_dict(state)
    factor = again[2].metrics()["rate_factor"]
    run(*again, range(4, 9))
    same = torch.equal(weights_of(whole[0]), weights_of(again[0]))
    kept = whole[2].metrics()["rate_factor"]
    whole[2].change("qsgd", bits=3)
    changed = whole[2].metrics()["rate_factor"]
    run(*whole, range(9, 10))
    fewer = whole[2].metrics()["rate_factor"]
    for _, _, state in (whole, again):
        state.close()
    return {"same": same, "sent": sent, "factor": factor, "kept": kept, "changed": changed, "fewer": fewer}


def not_finite(rank: int) -> float:
    """The factor after a step in which one rank had a gradient that is not finite."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    state = gradwire.compress_optimizer(optimizer, model, "qsgd", bits=2, variance_correction=True, min_numel=64)
    backward(model, 0, rank)
    if rank == 1:
        for param in model.parameters():
            param.grad.fill_(math.inf)
    state.exchange_gradients()
    state.close()
    return state.metrics()["rate_factor"]


def after_a_step(state: Any, optimizer: torch.optim.Optimizer, squares: Tensor) -> tuple[float, float]:
    """The factor that was measured, and that of the squares of what arrived on this rank and of the exact mean."""
    dist.all_reduce(squares)
    found = state.metrics()["rate_factor"]
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == RATE
    state.close()
    return found, float((squares[0] / squares[1]).sqrt())


def sharded(rank: int) -> tuple[float, float]:
    """The factor of a sharded model after one step, and the same by hand."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model: Any = net()
    exact = net()
    backward(exact, 0, rank)
    means = grads_of(exact)
    for mean in means:
        dist.all_reduce(mean.div_(2))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    state = gradwire.compress_fsdp(model, "qsgd", bits=2, block=16, min_numel=64, variance_correction=optimizer)
    backward(model, 0, rank)
    sums = torch.zeros(2, dtype=torch.float64)
    for param, mean in zip(model.parameters(), means, strict=True):
        if mean.numel() // 2 < 64:
            continue
        part = mean.chunk(2)[rank]
        sums += torch.stack([param.grad.to_local().double().square().sum(), part.double().square().sum()])
    return after_a_step(state, optimizer, sums)


def sharded_flat(rank: int) -> tuple[float, float]:
    """The factor of a model under FSDP1 after one step, and the same by hand: of its one flat parameter."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    exact = net()
    backward(exact, 0, rank)
    mean = torch.cat([grad.flatten() for grad in grads_of(exact)])
    dist.all_reduce(mean.div_(2))
    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    state = gradwire.compress_fsdp1(model, "qsgd", bits=2, block=16, min_numel=64, variance_correction=optimizer)
    backward(model, 0, rank)
    part, grad = mean.chunk(2)[rank], next(model.parameters()).grad
    assert grad is not None
    sums = torch.stack([grad.double().square().sum(), part.double().square().sum()])
    return after_a_step(state, optimizer, sums)


def begun_again(rank: int) -> dict[str, Any]:
    """The factor in the first step after a state that has none, of other ranks, and where a schedule sends less."""

    def made(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), RATE)
        given = {"bits": 2, "min_numel": 64, "force": True, "variance_correction": True, **options}
        return model, optimizer, gradwire.compress_optimizer(optimizer, model, "qsgd", **given)

    def run(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for step in range(steps):
            backward(model, step, rank)
            optimizer.step()

    found: dict[str, Any] = {}
    for name, options in {"without": {"variance_correction": False}, "with": {}}.items():
        model, optimizer, state = made(**options)
        run(model, optimizer, 5)
        saved = copy.deepcopy(state.state_dict())
        states: list[Any] = [None, None]
        dist.all_gather_object(states, saved)
        state.close()
        if name == "with":
            group = [dist.new_group([each]) for each in range(2)][rank]
            model, optimizer, state = made(process_group=group)
            state.load_state_dict(gradwire.merge_states(states), on_resize="reshard")
        else:
            model, optimizer, state = made()
            state.load_state_dict(saved)
        before = state.metrics()["rate_factor"]
        run(model, optimizer, 1)
        found[name] = before, state.metrics()["rate_factor"]
        state.close()
    model, optimizer, state = made(bits=8, schedule={"bits": lambda step: 8 if step < 5 else 2})
    run(model, optimizer, 5)
    before = state.metrics()["rate_factor"]
    run(model, optimizer, 1)
    found["schedule"] = before, state.metrics()["rate_factor"]
    state.close()
    return found


def unharmed() -> tuple[list[int], float]:
    """Hooks on an optimizer whose state was refused, and its rate where a state is closed after a step that raised."""
    model = net()
    optimizer: Any = torch.optim.Adam(model.parameters(), RATE)
    with pytest.raises(ConfigError, match="variance_correction must be None"):
        gradwire.compress_optimizer(optimizer, model, "topk", ratio=0.1, min_numel=64, variance_correction=True)
    hooks = [len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks)]
    state = gradwire.compress_optimizer(optimizer, model, "qsgd", bits=2, min_numel=64, variance_correction=True)
    backward(model, 0, dist.get_rank())
    optimizer.state[model[0].weight] = {"step": torch.zeros(()), "exp_avg": None, "exp_avg_sq": None}  # type: ignore[index]
    with pytest.raises((TypeError, AttributeError, RuntimeError)):
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] > RATE
    state.close()
    return hooks, optimizer.param_groups[0]["lr"]


def refused(make: Callable[[Any], Any]) -> str:
    model = DistributedDataParallel(net())
    with pytest.raises(ConfigError) as raised:
        make(model)
    # Nothing is left of it.
    gc.collect()
    gradwire.compress_ddp(model, "bf16").close()
    return str(raised.value)


def adam(model: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), RATE)


def changed_to(model: Any) -> None:
    state = gradwire.compress_ddp(DistributedDataParallel(model.module), "qsgd", variance_correction=adam(model))
    try:
        state.change("topk")
    finally:
        state.close()


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "topk": (
        lambda model: gradwire.compress_ddp(model, "topk", variance_correction=adam(model)),
        "variance_correction must be None with a method that is wrong on average or keeps back what it does not "
        "send, got 'topk' with memory 'residual'",
    ),
    "residual": (
        lambda model: gradwire.compress_ddp(model, "qsgd", bits=3, memory="residual", variance_correction=adam(model)),
        "got 'qsgd' with memory 'residual'",
    ),
    "override": (
        lambda model: gradwire.compress_ddp(
            model, "qsgd", overrides={"0.*": "signsgd"}, variance_correction=adam(model)
        ),
        "got 'signsgd'",
    ),
    "sgd": (
        lambda model: gradwire.compress_ddp(model, "qsgd", variance_correction=torch.optim.SGD(model.parameters())),
        "variance_correction must be an optimizer that divides by a mean of squares, as Adam does, got 'SGD'",
    ),
    "others": (
        lambda model: gradwire.compress_ddp(model, "qsgd", variance_correction=adam(net())),
        "variance_correction must be the one that trains this model's parameters, got one of others",
    ),
    "true": (
        lambda model: gradwire.compress_ddp(model, "qsgd", variance_correction=True),
        "variance_correction must be a torch.optim.Optimizer or None, got True",
    ),
    "optimizer": (
        lambda model: gradwire.compress_optimizer(adam(model.module), model.module, "qsgd", variance_correction=1),
        "variance_correction must be True or False, got 1",
    ),
    "change": (changed_to, "got 'topk'"),
}


def let_go() -> float:
    """The change that a step makes where the state was closed: the rate as it is."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    state = gradwire.compress_ddp(model, "qsgd", bits=2, min_numel=64, variance_correction=optimizer)
    backward(model, 0, dist.get_rank())
    state.close()
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    optimizer.step()
    return seen[0]


def all_of_them(rank: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    return {
        "measured": {name: measured(rank, *method) for name, method in METHODS.items()},
        "stepped": stepped(rank),
        "interrupted": interrupted(),
        "resumed": resumed(rank),
        "not finite": not_finite(rank),
        "sharded": sharded(rank),
        "sharded flat": sharded_flat(rank),
        "refused": {name: refused(make) for name, (make, _) in REFUSED.items()},
        "let go": let_go(),
        "begun again": begun_again(rank),
        "unharmed": unharmed(),
    }


@once
def told() -> list[dict[str, Any]]:
    return run_ranks(2, all_of_them)


@pytest.mark.parametrize("name", METHODS)
def test_the_factor_is_that_of_the_gradients_and_the_same_on_all_ranks(name: str) -> None:
    (found, expected), other = (each["measured"][name] for each in told())
    assert found == pytest.approx(min(expected, MOST), rel=1e-5)
    assert found == other[0]
    assert found > 1.2


@pytest.mark.parametrize(("how", "near"), [("sharded", 1e-5), ("sharded flat", 1e-2)])
def test_a_sharded_model_measures_over_all_shards(how: str, near: float) -> None:
    """A sample is measured of a tensor as large as the flat one."""
    (found, expected), (other, _) = (each[how] for each in told())
    assert found == other == pytest.approx(expected, rel=near)
    assert found > 1.05


def test_a_step_is_made_with_the_rate_times_the_factor_and_schedulers_see_the_rate() -> None:
    assert told()[0]["stepped"] == {"same": True, "rates": True, "corrected": True}


def test_a_step_that_raises_does_not_change_the_rate() -> None:
    first, second = told()[0]["interrupted"]
    assert second == RATE
    assert first > RATE  # torch calls no hook behind a step that raised: the next one begins with the rate itself.


def test_a_resumed_run_goes_on_bit_for_bit_and_another_method_is_measured_anew() -> None:
    found = told()[0]["resumed"]
    assert found["same"]
    assert found["factor"] > 1.1
    assert found["changed"] == 1.0
    assert 1.0 < found["fewer"] < found["kept"]


def test_only_measured_steps_send_more() -> None:
    first, second, third, fourth = told()[0]["resumed"]["sent"]
    assert first == second == fourth
    # Both matrices are samples of their own, uncompressed.
    assert first - third == 2 * 4 * WIDTH * WIDTH


def test_a_step_that_is_not_finite_says_nothing() -> None:
    assert [each["not finite"] for each in told()] == [1.0, 1.0]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_corrected_is_refused(name: str) -> None:
    assert REFUSED[name][1] in told()[0]["refused"][name]
    assert told()[1]["refused"][name] == told()[0]["refused"][name]


def test_a_closed_state_leaves_the_optimizer_alone() -> None:
    assert told()[0]["let go"] == RATE


@pytest.mark.parametrize("case", ["without", "with", "schedule"])
def test_the_next_step_is_measured_where_nothing_is_known(case: str) -> None:
    before, after = told()[0]["begun again"][case]
    assert before < 1.05 < 1.1 < after


def test_what_is_refused_or_closed_leaves_the_optimizer_as_it_was() -> None:
    assert [each["unharmed"] for each in told()] == [([0, 0], RATE)] * 2


def test_samples_are_small_and_move() -> None:
    class Alone:
        world = 1

        def begin_all_reduce(self, sample: Tensor) -> Callable[[], None]:
            seen.append(sample.clone())
            return lambda: None

    seen: list[Tensor] = []
    moment = SecondMoment(torch.device("cpu"))
    flat = torch.arange(1.0, 100 * LEAST)
    compares = [moment.begin(flat, [(0, 10), (10, len(flat))], step, Alone()) for step in (EVERY, 2 * EVERY)]  # type: ignore[arg-type]
    assert [len(sample) for sample in seen] == [10 + (len(flat) - 10) // 64] * 2
    assert torch.equal(seen[0][:10], seen[1][:10])
    assert not torch.isin(seen[0][10:], seen[1][10:]).any()
    compares[0](3 * flat, 0, 1.0)
    assert moment.factor == pytest.approx(3)
    moment.end_step(EVERY)
    compares[1](10 * flat, 0, 2.0)
    # 5 times as long counts as MOST: where gradients happen to cancel there is no bound.
    assert moment.factor == pytest.approx((3 + MOST) / 2)
    assert moment.state_dict() == {"before": pytest.approx(3.5), "since": 0}
    moment.restart(7)
    assert [moment.factor, moment.due(7), moment.due(8), moment.due(10)] == [1.0, False, True, False]


def test_what_a_step_of_large_noise_says_is_soon_measured_again() -> None:
    class Alone:
        world = 1

        def begin_all_reduce(self, _sample: Tensor) -> Callable[[], None]:
            return lambda: None

    moment, flat, measured = SecondMoment(torch.device("cpu")), torch.ones(2 * LEAST), []
    for step in range(1, 3 * EVERY):
        if moment.due(step):
            measured.append(step)
            compare = moment.begin(flat, [(0, len(flat))], step, Alone())  # type: ignore[arg-type]
            compare((10.0 if step == EVERY else 1.2) * flat, 0, 1.0)
        moment.end_step(step)
        if step == EVERY:
            assert moment.factor == pytest.approx((1.2 + MOST) / 2)
        elif step > EVERY + 4:
            assert moment.factor < 1.35
    assert measured[:12] == [1, 2, 4, 8, 16, 32, 64, 128, 129, 130, 131, 132]
    moment.changed(EVERY + 4)
    assert moment.state_dict() == {"before": None, "since": EVERY + 3}
