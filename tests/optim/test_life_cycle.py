"""Calls around the steps of any of the optimizers: loading in another order, moving, wrapping, freezing, copying."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.optim import CompressedStep, DiLoCo, OneBitAdam
from gradwire.testing.processes import run_ranks
from tests.heard import without_name
from tests.integrations.jobs import answers
from tests.once import once
from tests.optim.jobs import digest, forward, make, model_of, parameters

SPARSE: dict[str, Any] = {"compressor": "topk", "ratio": 0.1, "min_numel": 0}
LOCAL: dict[str, Any] = {"var_freeze_step": 1, "local_step_scaler": 1, "local_step_clipper": 4, "min_numel": 0}

CUT = 5
APART: dict[str, tuple[str, dict[str, Any]]] = {
    "within a round": ("diloco", {**SPARSE, "every": 3}),
    "shrunk within a round": ("compressed_step", {**SPARSE, "every": 3}),
    "keep": ("compressed_step", {**SPARSE, "keep": True}),
    "late, within a round": ("compressed_step", {**SPARSE, "late": True, "every": 3}),
    "zeroone_adam": ("zeroone_adam", LOCAL),
}
"""Optimizers whose ranks are apart after ``CUT`` steps."""

ORDERS = {
    "model, make, state": "lms",
    "make, model, state": "mls",
    "make, state, model": "msl",
    "make, state": "ms",
    "model, make, state of an earlier version": "lmo",
    "make, model, state of an earlier version": "mlo",
}
IN_ALL = "shrunk within a round"
"""The optimizer that is loaded in all orders; the others are in the first one, everybody's, alone."""


def _train(model: nn.Module, optimizer: Any, rank: int, steps: range) -> None:
    for step in steps:
        forward(model, optimizer, step, rank).backward()
        optimizer.step()


def _orders(rank: int) -> dict[tuple[str, str], tuple[bool, bool, bool]]:
    """Return whether a run that goes on after each order has this rank's weights, and ends where it would have; and
    whether the log has a warning.
    """
    told = {}
    for what, (kind, options) in APART.items():
        model = model_of()
        optimizer = make(kind, model, options)
        _train(model, optimizer, rank, range(CUT))
        saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        assert optimizer.in_step is False  # type: ignore[attr-defined]
        _train(model, optimizer, rank, range(CUT, CUT + 3))
        end = parameters(model)
        for order, calls in list(ORDERS.items())[: None if what == IN_ALL else 1]:
            again, state, heard = model_of(seed=9 + rank), copy.deepcopy(saved[1]), io.StringIO()
            handler = logging.StreamHandler(heard)
            logging.getLogger("gradwire").addHandler(handler)
            for call in calls:
                if call == "l":
                    again.load_state_dict(saved[0])
                elif call == "m":
                    optimizer = make(kind, again, options)
                else:
                    optimizer.load_state_dict({key: state[key] for key in state if call == "s" or key != "own"})
            weights = digest(again.state_dict()) == digest(saved[0])
            _train(again, optimizer, rank, range(CUT, CUT + 3))
            logging.getLogger("gradwire").removeHandler(handler)
            told[what, order] = weights, parameters(again) == end, "of an earlier version" in heard.getvalue()
    return told


@once
def orders() -> list[dict[tuple[str, str], tuple[bool, bool, bool]]]:
    return run_ranks(2, _orders)


def test_in_whatever_order_it_is_loaded_a_rank_goes_on_from_its_own_weights() -> None:
    for rank, told in enumerate(orders()):
        for (what, order), (weights, end, _) in told.items():
            lost = (what, order) == (IN_ALL, "model, make, state of an earlier version")
            assert (weights, end) == (not (lost and rank), not lost), (what, order)


def test_a_state_without_a_ranks_weights_is_reported_once() -> None:
    for rank, told in enumerate(orders()):
        for (what, order), (*_, heard) in told.items():
            assert heard == ("earlier" in order and rank == 0), (what, order)


def _wrapped(rank: int) -> dict[str, str]:
    def stepped(kind: str) -> None:
        model = model_of()
        optimizer = make(kind, model, {})
        wrapped = DistributedDataParallel(model)
        forward(wrapped, optimizer, 0, rank).backward()
        optimizer.step()

    return answers({kind: partial(stepped, kind) for kind in ("diloco", "onebit_adam")})


def test_a_model_that_is_wrapped_after_its_optimizer_was_made_is_refused_in_the_first_step() -> None:
    for told in run_ranks(2, _wrapped):
        for kind, name in (("diloco", "DiLoCo"), ("onebit_adam", "OneBitAdam")):
            assert f"{name} must be given parameters whose gradients nobody else averages" in told[kind]
            assert "'0.weight', which DistributedDataParallel averages: use gradwire.compress_ddp" in told[kind]


KINDS: dict[str, dict[str, Any]] = {
    "diloco": {**SPARSE, "every": 2},
    "qsparse_local": {**SPARSE, "every": 1},
    "compressed_step": {**SPARSE, "keep": True},
    "onebit_adam": {"freeze_step": 1, "min_numel": 0},
    "zeroone_adam": LOCAL,
    "micro_adam": SPARSE,
}


class Laid(nn.Module):
    """A channels-last weight, a transposed one and a view with gaps; or all of them contiguous."""

    def __init__(self, *, contiguous: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        last = torch.randn(8, 4, 3, 3).contiguous(memory_format=torch.channels_last)
        for name, value in (("last", last), ("turned", torch.randn(9, 8).t()), ("gaps", torch.randn(6, 8)[:, ::2])):
            assert not value.is_contiguous()
            setattr(self, name, nn.Parameter(value.contiguous() if contiguous else value))


def _laid(rank: int) -> dict[str, bool]:
    told = {}
    for kind, options in KINDS.items():
        models = [Laid(contiguous=contiguous) for contiguous in (True, False)]
        for model in models:
            generator, optimizer = torch.Generator().manual_seed(rank), make(kind, model, options)
            for _ in range(3):
                for param in model.parameters():
                    param.grad = torch.empty_like(param).copy_(torch.randn(param.shape, generator=generator))
                optimizer.step()
        told[kind] = parameters(models[0]) == parameters(models[1])
    return told


def test_parameters_may_lie_in_memory_in_any_order() -> None:
    assert run_ranks(2, _laid) == [dict.fromkeys(KINDS, True)] * 2


def _rates(rank: int) -> dict[str, str]:
    def trained(kind: str, options: dict[str, Any]) -> None:
        model = model_of()
        optimizer = make(kind, model, options)
        _train(model, optimizer, rank, range(2))
        # As of ReduceLROnPlateau, where each rank gives it the loss of its own data.
        optimizer.param_groups[0]["lr"] *= 1 - 0.5 * rank
        _train(model, optimizer, rank, range(2, 4))

    def trained_alone() -> None:
        """The rates differ in a step that each rank makes by itself, and in no exchange."""
        model = model_of()
        optimizer = make("zeroone_adam", model, LOCAL)
        step = 2 * CUT
        _train(model, optimizer, rank, range(step))
        while not optimizer.in_step:
            _train(model, optimizer, rank, range(step, step := step + 1))
        optimizer.param_groups[0]["lr"] *= 1 - 0.5 * rank
        _train(model, optimizer, rank, range(step, step + 1))
        assert not optimizer.in_step
        optimizer.param_groups[0]["lr"] = 3e-3
        _train(model, optimizer, rank, range(step + 1, step + 4))

    given = {**KINDS, "zeroone_adam": {**LOCAL, "local_step_clipper": 2}}
    kinds = ("onebit_adam", "zeroone_adam", "micro_adam")
    return answers({**{kind: partial(trained, kind, given[kind]) for kind in kinds}, "alone": trained_alone})


def test_ranks_with_other_learning_rates_are_told_apart() -> None:
    for told in run_ranks(2, _rates):
        alone = told.pop("alone")
        assert alone.startswith("GroupError: ranks came apart: the learning rates since the last exchange.0 is 0.0")
        for kind, error in told.items():
            assert error.startswith("GroupError: ranks came apart: lr.0 is 0.003 on rank 0; 0.0015 on rank 1"), kind
        assert all("must be given the mean loss of all ranks" in error for error in (alone, *told.values()))


def test_rates_may_be_numbers_of_any_kind() -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        for lr in (np.float32(1e-3), torch.tensor(1e-3)):
            optimizer = make("onebit_adam", model := model_of(), {})
            optimizer.param_groups[0]["lr"] = lr
            _train(model, optimizer, 0, range(2))
            assert optimizer.followed()["lr"] == [pytest.approx(1e-3)]
            json.dumps(optimizer.followed())
    finally:
        dist.destroy_process_group()


class Half(nn.Module):
    """A frozen layer in float64, a frozen scalar, and a layer that is trained; batch normalisation before it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.frozen = nn.Linear(16, 8).double().requires_grad_(False)
        self.scale = nn.Parameter(torch.randn(4, 4).t()[:1, :1], requires_grad=False)
        self.norm = nn.BatchNorm1d(8)
        self.trained = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        trained: Tensor = self.trained(self.norm(self.frozen(x.double()).float() * self.scale))
        return trained


def _frozen(rank: int) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """All parameters after a step of each optimizer, the error when one is unfrozen, and the warnings."""
    ends, refused, handler = {}, {}, Heard()
    logging.getLogger("gradwire").addHandler(handler)
    for kind, options in KINDS.items():
        model = Half(seed=rank)
        optimizer = make(kind, model, {**options, "every": 1} if "every" in options else options)
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        if isinstance(optimizer, CompressedStep):
            optimizer.finish()
        ends[kind] = parameters(model)
        model.frozen.requires_grad_(True)
        refused |= answers({kind: optimizer.step})
    make("diloco", nn.SyncBatchNorm.convert_sync_batchnorm(Half(0)), {})
    return ends, refused, [text for text in handler.heard if "running statistics" in text]


class Heard(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(without_name(record.getMessage()))


@once
def frozen() -> list[tuple[dict[str, str], dict[str, str], list[str]]]:
    return run_ranks(2, _frozen)


def test_frozen_parameters_are_those_of_rank_0() -> None:
    first, other = frozen()
    assert first[0] == other[0]
    assert len(first[0]) == len(KINDS)


def test_a_parameter_that_is_unfrozen_later_would_be_trained_apart() -> None:
    for _, refused, _ in frozen():
        for kind in KINDS:
            assert "trained parameters must be those that were trained when the optimizer was made" in refused[kind]
            assert "got ['frozen.weight', 'frozen.bias']" in refused[kind]


def test_running_statistics_are_reported_on_one_rank() -> None:
    first, other = frozen()
    assert len(first[2]) == len(KINDS)
    assert "the running statistics of BatchNorm1d are each worker's own" in first[2][0]
    assert not other[2]


def test_at_a_meeting_frozen_parameters_are_those_of_the_first_that_came() -> None:
    place, made = dist.HashStore(), []
    for name in "01":
        model = Half(seed=int(name))
        inner = torch.optim.SGD(model.named_parameters(), lr=0.1)
        meeting = gradwire.Meeting(place, name, deadline=20.0, timeout=20.0)
        made.append((model, gradwire.local_sgd(inner, "none", every=1, meeting=meeting)))
    (first, steps), (second, comes) = made
    frozen = copy.deepcopy([first.frozen.state_dict(), first.scale])
    steps.join()
    coming = threading.Thread(target=comes.join)
    coming.start()
    while len(meeting.open().entries("joins")) < 2:
        threading.Event().wait(0.01)
    first(torch.randn(4, 16)).square().mean().backward()
    steps.step()
    coming.join()
    assert parameters(first) == parameters(second)
    for model in (first, second):
        assert digest([model.frozen.state_dict(), model.scale]) == digest(frozen)


def _copied(rank: int) -> dict[str, str]:
    told = {}
    for kind, options in KINDS.items():
        model = model_of()
        optimizer = make(kind, model, options)
        _train(copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=0.1), rank, range(1))
        ways = {"deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": pickle.dumps}
        told |= answers({f"{kind}, {way}": partial(call, optimizer) for way, call in ways.items()})
    return told


def test_a_copy_of_an_optimizer_is_refused() -> None:
    told = run_ranks(1, _copied)[0]
    assert len(told) == 3 * len(KINDS)
    assert all("cannot be copied or pickled: save state_dict()" in text for text in told.values())


NEEDED: dict[str, dict[str, Any]] = {
    "LambdaLR": {"lr_lambda": lambda step: 0.9**step},
    "MultiplicativeLR": {"lr_lambda": lambda _: 0.9},
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2]},
    "ExponentialLR": {"gamma": 0.9},
    "SequentialLR": {"schedulers": None, "milestones": [2]},
    "CosineAnnealingLR": {"T_max": 4},
    "ChainedScheduler": {"schedulers": None},
    "CyclicLR": {"base_lr": 1e-3, "max_lr": 1e-2, "step_size_up": 2},
    "CosineAnnealingWarmRestarts": {"T_0": 2},
    "OneCycleLR": {"max_lr": 1e-2, "total_steps": 8},
}
"""Arguments of torch's schedulers that have no default."""


def _scheduled(optimizer: Any, name: str) -> list[Any]:
    kinds = torch.optim.lr_scheduler
    given = dict(NEEDED.get(name, {}))
    if "schedulers" in given:
        given["schedulers"] = [kinds.ConstantLR(optimizer), kinds.ExponentialLR(optimizer, 0.9)]
    scheduler = getattr(kinds, name)(*([] if name == "ChainedScheduler" else [optimizer]), **given)
    seen = []
    for _ in range(5):
        optimizer.step()
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        seen.append(
            [(float(group["lr"]), group.get("betas"), group.get("momentum")) for group in optimizer.param_groups]
        )
    return seen


def test_every_scheduler_of_torch_does_what_it_does_to_the_inner_optimizer() -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        names = [name for name in torch.optim.lr_scheduler.__all__ if name != "LRScheduler"]
        assert {"OneCycleLR", "CyclicLR", "ReduceLROnPlateau"} <= set(names)
        made: list[Any] = [
            lambda inner: CompressedStep(inner, every=2),
            lambda inner: DiLoCo(inner, every=2),
            lambda inner: OneBitAdam(inner.param_groups[0]["params"], lr=0.1, betas=(0.9, 0.95)),
        ]
        for name, make_outer in ((name, each) for name in names for each in made):
            plain, inner = (
                torch.optim.AdamW(nn.Linear(4, 4).parameters(), lr=0.1, betas=(0.9, 0.95)) for _ in range(2)
            )
            assert _scheduled(make_outer(inner), name) == _scheduled(plain, name), name
        # CyclicLR cycles momentum, too.
        plain, inner = (torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1, momentum=0.9) for _ in range(2))
        assert _scheduled(DiLoCo(inner), "CyclicLR") == _scheduled(plain, "CyclicLR")
    finally:
        dist.destroy_process_group()
