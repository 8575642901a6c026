"""A gradient is averaged once: what wants to average it a second time is refused, on all ranks, with what to do."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from gradwire import rounds
from gradwire.contrib.fsdp1 import compress_fsdp1
from gradwire.frontends.ddp import GradwireState, compress_ddp, gradwire_hook
from gradwire.frontends.fsdp import compress_fsdp
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.optim import CompressedStep, DiLoCo, OneBitAdam, QsparseLocal, ZeroOneAdam
from gradwire.testing.processes import run_ranks
from tests.heard import without_name
from tests.integrations.jobs import STREAMS, answers, batch, digest, model_of
from tests.once import once


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _compiled(rank: int) -> tuple[str, int]:
    ddp = DistributedDataParallel(model_of())
    compiled: Any = torch.compile(ddp, backend="eager")
    state = compress_ddp(compiled, "twobit", threshold=1e-3, min_numel=0)
    optimizer = sgd(ddp)
    for step in range(2):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(compiled(x), y).backward()
        optimizer.step()
    return digest(ddp), state.metrics()["steps"]


def test_a_compiled_ddp_model_is_taken_as_what_is_inside() -> None:
    results = run_ranks(2, _compiled)
    assert results[0] == results[1]
    assert results[0][1] == 2


def _over_ddp(rank: int) -> dict[str, str]:
    ddp = DistributedDataParallel(model_of())
    compiled: Any = torch.compile(ddp, backend="eager")
    params = list(ddp.parameters())
    return answers(
        {
            "the model": lambda: compress_optimizer(sgd(ddp), ddp, "topk"),
            "compiled": lambda: compress_optimizer(sgd(ddp), compiled, "topk"),
            "its module": lambda: compress_optimizer(sgd(ddp), ddp.module, "topk"),
            "inside another": lambda: compress_optimizer(sgd(ddp), nn.Sequential(ddp, nn.Linear(10, 2)), "topk"),
            "OneBitAdam": lambda: OneBitAdam(params, freeze_step=1),
            "ZeroOneAdam": lambda: ZeroOneAdam(params),
            "DiLoCo": lambda: DiLoCo(sgd(ddp), "qsgd"),
            "QsparseLocal": lambda: QsparseLocal(sgd(ddp)),
            "CompressedStep": lambda: CompressedStep(sgd(ddp)),
            "local_sgd": lambda: rounds.local_sgd(sgd(ddp)),
            "diloco": lambda: rounds.diloco(sgd(ddp)),
        }
    )


def test_what_ddp_averages_is_not_exchanged_again() -> None:
    results = run_ranks(2, _over_ddp)
    assert results[0] == results[1]
    for case, told in results[0].items():
        assert re.match(r"ConfigError: .*, which DistributedDataParallel averages: use gradwire.compress_ddp", told), (
            case
        )


@once
def over_a_state() -> list[dict[str, dict[str, str]]]:
    return run_ranks(2, _over_states)


def _over_states(rank: int) -> dict[str, dict[str, str]]:
    return {kind: _over_a_state(kind) for kind in ("optimizer", "onebit", "diloco")}


def _over_a_state(kind: str) -> dict[str, str]:
    model = model_of()
    optimizer = sgd(model)
    if kind == "optimizer":
        kept: Any = compress_optimizer(optimizer, model, "topk")
    elif kind == "onebit":
        kept = OneBitAdam(model.parameters(), freeze_step=1)
    else:
        kept = DiLoCo(sgd(model), "qsgd")
    told = answers(
        {
            "compress_optimizer": lambda: compress_optimizer(optimizer, model, "twobit"),
            "another optimizer": lambda: compress_optimizer(sgd(model), model, "twobit"),
            "OneBitAdam": lambda: OneBitAdam(model.parameters(), freeze_step=1),
            "DiLoCo": lambda: DiLoCo(sgd(model), "qsgd"),
            "compress_ddp": lambda: compress_ddp(DistributedDataParallel(model), "twobit"),
            "half of it": lambda: compress_optimizer(sgd(model[0]), model[0], "twobit"),
        }
    )
    del kept
    return told


@pytest.mark.parametrize(
    ("kind", "who"),
    [
        ("optimizer", r"gradwire\.compress_optimizer exchanges already: .*state\.change\(\.\.\.\)"),
        ("onebit", "OneBitAdam exchanges already: go on with that optimizer"),
        ("diloco", "DiLoCo exchanges already: go on with that optimizer"),
    ],
)
def test_what_has_a_state_gets_no_other(kind: str, who: str) -> None:
    results = [result[kind] for result in over_a_state()]
    assert results[0] == results[1]
    for case, told in results[0].items():
        assert re.match(f"ConfigError: .*, which {who}", told), (case, told)


def _freed(rank: int, how: str) -> tuple[str, int]:
    """A state that was closed, or whose optimizer is gone, stands in nobody's way."""
    model = model_of()
    optimizer = sgd(model)
    state = compress_optimizer(optimizer, model, "topk", lr_correction=True)
    if how == "closed":
        state.close()
    else:
        optimizer = sgd(model)
        del state
    state = compress_optimizer(optimizer, model, "none")
    x, y = batch(0, rank)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    return digest(model), state.metrics()["steps"]


@pytest.mark.parametrize("how", ["closed", "deleted"])
def test_a_state_that_ended_frees_its_parameters(how: str) -> None:
    results = run_ranks(2, _freed, how)
    assert results[0] == results[1]
    assert results[0][1] == 1


def _after_close(rank: int) -> str:
    model = model_of()
    optimizer = sgd(model)
    compress_optimizer(optimizer, model, "topk").close()
    return answers({"step": optimizer.step})["step"]


def test_a_step_behind_a_closed_state_is_an_error() -> None:
    told = run_ranks(2, _after_close)
    assert told[0].startswith("ConfigError: state of the optimizer must be open when it steps")
    assert told[0] == told[1]


def _unwrapped(rank: int) -> str:
    """The module may be trained without DDP once nobody holds the wrapper."""
    ddp = DistributedDataParallel(model_of())
    module = ddp.module
    ddp.itself = [ddp]  # A cycle, which only the collector takes apart.
    del ddp
    return answers({"": lambda: compress_optimizer(sgd(module), module, "topk")})[""]


def test_a_wrapper_that_is_gone_stands_in_nobodys_way() -> None:
    assert run_ranks(2, _unwrapped) == ["nothing was raised"] * 2


def _nodes(rank: int) -> tuple[str, str]:
    """Two nodes of two ranks: DDP inside each, DiLoCo between them."""
    inside = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    between = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    ddp = DistributedDataParallel(model_of(), process_group=inside)
    state = compress_ddp(ddp, "twobit", threshold=1e-3)
    optimizer = DiLoCo(sgd(ddp), "qsgd", every=2, process_group=between)
    for step in range(2):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    assert state.metrics()["steps"] == 2
    return digest(ddp), answers({"": lambda: DiLoCo(sgd(ddp), "qsgd", process_group=inside)})[""]


def test_ddp_inside_a_node_and_diloco_between_nodes_average_different_things() -> None:
    results = run_ranks(4, _nodes)
    assert len({digest for digest, _ in results}) == 1
    assert all("which " in told for _, told in results)


class Counted(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(without_name(record.getMessage()))


@once
def over_a_hook() -> list[dict[str, tuple[str, list[str]]]]:
    return run_ranks(2, _over_hooks)


def _over_hooks(rank: int) -> dict[str, tuple[str, list[str]]]:
    return {kind: _over_a_hook(kind) for kind in ("twice", "plain", "fp16", *(["mixed"] if STREAMS else []))}


def _over_a_hook(kind: str) -> tuple[str, list[str]]:
    options = {"mixed_precision": _half()} if kind == "mixed" else {}
    ddp = DistributedDataParallel(model_of(), **options)
    if kind == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if kind == "twice":
        compress_ddp(ddp, "topk")
    if kind == "plain":
        ddp.register_comm_hook(GradwireState(ddp, "topk"), gradwire_hook)
    handler, log = Counted(), logging.getLogger("gradwire")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    told = answers({"": lambda: compress_ddp(ddp, "twobit")})[""]
    log.removeHandler(handler)
    return told, handler.said


def _half() -> Any:
    from torch.nn.parallel.distributed import _MixedPrecision

    return _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("twice", r"got one that has 'gradwire_hook' already, .*state\.change\(\.\.\.\)"),
        ("plain", r"got one that has 'gradwire_hook' already, .*state\.change\(\.\.\.\)"),
        ("fp16", "got one that has 'fp16_compress_hook' already, and torch takes one; wrap the module anew"),
        pytest.param(
            *("mixed", "mixed_precision of DistributedDataParallel must be None"),
            marks=pytest.mark.skipif(not STREAMS, reason="its stream wants a driver"),
        ),
    ],
)
def test_a_second_hook_is_refused_before_anything_is_announced(kind: str, named: str) -> None:
    results = [result[kind] for result in over_a_hook()]
    assert results[0] == results[1]
    assert re.match(f"ConfigError: .*{named}", results[0][0])
    assert results[0][1] == []


def _sharded(rank: int) -> dict[str, str]:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    two = fully_shard(model_of(), mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    one = FullyShardedDataParallel(model_of(), device_id=torch.device("cpu"))
    original = FullyShardedDataParallel(model_of(), device_id=torch.device("cpu"), use_orig_params=True)
    told = answers(
        {
            "optimizer": lambda: compress_optimizer(sgd(two), two, "topk"),
            "optimizer of fsdp1": lambda: compress_optimizer(sgd(one), one, "topk"),
            "original parameters": lambda: compress_optimizer(sgd(original), original, "topk"),
            "OneBitAdam": lambda: OneBitAdam(two.parameters(), freeze_step=1),
            "DiLoCo": lambda: DiLoCo(sgd(one), "qsgd"),
            "ddp": lambda: compress_ddp(two, "topk"),
        }
    )
    compress_fsdp(two, "qsgd")
    compress_fsdp1(one, "qsgd")
    again = {"fsdp twice": lambda: compress_fsdp(two, "qsgd"), "fsdp1 twice": lambda: compress_fsdp1(one, "qsgd")}
    return told | answers(again)


def test_a_sharded_model_is_refused_with_the_call_that_is_right() -> None:
    results = run_ranks(2, _sharded)
    assert results[0] == results[1]
    for case, told in results[0].items():
        named = r"gradwire\.compress_fsdp1? exchanges already" if "twice" in case else r"gradwire\.compress_fsdp"
        assert re.match(f"ConfigError: .*{named}", told), (case, told)


MISTAKES: dict[str, Callable[[nn.Module], object]] = {
    "swapped": lambda model: compress_optimizer(model, sgd(model)),  # type: ignore[arg-type]
    "parameters": lambda model: compress_optimizer(model.parameters(), model),  # type: ignore[arg-type]
    "a class": lambda model: compress_optimizer(torch.optim.SGD, model),  # type: ignore[arg-type]
    "a model class": lambda model: compress_optimizer(sgd(model), nn.Linear),  # type: ignore[arg-type]
    "models": lambda model: compress_optimizer(sgd(model), [model, model]),  # type: ignore[arg-type]
    "nothing": lambda model: compress_optimizer(sgd(model), None),  # type: ignore[arg-type]
    "ddp of a class": lambda _: compress_ddp(nn.Linear),  # type: ignore[arg-type]
    "ddp of an optimizer": lambda model: compress_ddp(sgd(model)),  # type: ignore[arg-type]
    "ddp of a module": compress_ddp,
}
SAID = {
    "swapped": "got Sequential and SGD; they are the other way round",
    "parameters": "got generator and Sequential",
    "a class": "got the class SGD and Sequential",
    "a model class": "got SGD and the class Linear",
    "models": "got SGD and list; join models in a ModuleList",
    "nothing": "got SGD and NoneType",
    "ddp of a class": "got the class Linear; give an object of it",
    "ddp of an optimizer": "got SGD; for a plain",
    "ddp of a module": "got Sequential; for a plain",
}


@once
def mistaken() -> list[dict[tuple[str, bool], str]]:
    return run_ranks(2, _mistaken)


def _mistaken(rank: int) -> dict[tuple[str, bool], str]:
    """Each mistake on both ranks, and on the second alone."""
    right: Callable[[nn.Module], object] = lambda model: compress_optimizer(sgd(model), model)  # noqa: E731
    return {
        (case, alone): answers({"": partial(mistake if rank or not alone else right, model_of())})[""]
        for case, mistake in MISTAKES.items()
        for alone in (False, True)
    }


@pytest.mark.parametrize("case", MISTAKES)
@pytest.mark.parametrize("alone", [False, True])
def test_a_wrong_argument_is_named_on_all_ranks(case: str, *, alone: bool) -> None:
    told = [result[case, alone] for result in mistaken()]
    assert told[0] == told[1]
    assert told[0].startswith("GroupError: rank 1 was configured wrongly: ConfigError" if alone else "ConfigError: ")
    assert SAID[case] in told[0]


def _inside_its_module(rank: int) -> str:
    ddp = DistributedDataParallel(model_of())
    return answers({"": lambda: compress_ddp(ddp.module)})[""]


def test_the_module_inside_a_ddp_model_is_sent_to_the_ddp_model() -> None:
    assert run_ranks(2, _inside_its_module)[0].endswith("give the DDP model itself, not the module inside it")
