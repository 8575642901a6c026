"""A copy of a compressed DDP model: it trains as DDP does, says so, and may be compressed itself."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.testing.processes import run_ranks
from tests.integrations.jobs import answers, batch, digest, model_of

SAID = "this DDP model is a copy of one with TopK(ratio=0.05"


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "averaged": lambda model: AveragedModel(model).module,
    "saved": _saved,
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
    "twice": lambda model: _saved(copy.deepcopy(model)),
}


def _train(model: nn.Module, rank: int, first: int, steps: int) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(first, first + steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch(step, rank)[0]), batch(step, rank)[1]).backward()
        optimizer.step()
    return digest(model)


def _copied(rank: int, way: str) -> dict[str, Any]:
    heard = io.StringIO()
    logging.getLogger("gradwire").addHandler(logging.StreamHandler(heard))
    model = DistributedDataParallel(model_of())
    state = compress_ddp(model, "topk", ratio=0.05)
    _train(model, rank, 0, 3)
    made = WAYS[way](model)
    told = {"same": digest(made) == digest(model), "quiet": SAID not in heard.getvalue()}
    with torch.no_grad():
        made(batch(0, rank)[0])
    made.eval()(batch(0, rank)[0])
    made.train()
    told["not for evaluation"] = SAID not in heard.getvalue()
    dense = DistributedDataParallel(copy.deepcopy(model.module))
    told["dense"] = _train(made, rank, 3, 4) == _train(dense, rank, 3, 4)
    told["said"] = heard.getvalue().count(SAID) == (rank == 0)

    # The original goes on undisturbed, and a copy may be compressed.
    again = WAYS[way](model)
    own = compress_ddp(again, "topk", ratio=0.05)
    own.load_state_dict(state.state_dict())
    steps = state.metrics()["steps"]
    told["compressed"] = _train(again, rank, 7, 3) == _train(model, rank, 7, 3)
    told["steps"] = (steps, state.metrics()["steps"], own.metrics()["steps"])
    told["said no more"] = heard.getvalue().count(SAID) == (rank == 0)
    told["digest"] = digest(made)
    return told


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_trains_uncompressed_and_says_so_once(way: str) -> None:
    one, other = run_ranks(2, _copied, way)
    assert one == other
    assert one.pop("steps") == (3, 6, 6)
    assert one.pop("digest")
    assert one == dict.fromkeys(one, True)


def _followed(rank: int, way: str) -> tuple[int, list[Any], float]:
    """A scale that is read before each forward pass, as on a GPU, and an optimizer whose rates are followed."""
    model = DistributedDataParallel(model_of())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    state = compress_ddp(model, "topk", scaler=scaler, lr_correction=optimizer)
    state.units.read_ahead(model, torch.device("cuda"))
    made = WAYS[way](model)
    hooks = [hook.__self__ for hook in made._forward_pre_hooks.values() if isinstance(hook, MethodType)]
    made(batch(0, rank)[0])
    return len(hooks), [(units.scaler, units.optimizer) for units in hooks], state.units.now()[0] or 0.0


@pytest.mark.parametrize("way", ["deepcopy", "saved"])
def test_a_copy_has_no_copy_of_the_optimizer_and_the_scaler(way: str) -> None:
    assert run_ranks(1, _followed, way) == [(1, [(None, None)], 8.0)]


def _copied_optimizer(rank: int, way: str) -> dict[str, Any]:
    """An optimizer that is copied with its model, and steps; then it is given an exchange of its own."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = compress_optimizer(optimizer, model, "topk", ratio=0.05)
    _steps(model, optimizer, rank)
    again, copied = WAYS[way]((model, optimizer)) if way != "averaged" else (None, copy.copy(optimizer))
    told = answers({"refused": copied.step})
    if again is not None:
        twice = copy.deepcopy(copied)
        told |= answers({"twice": twice.step})
        own = compress_optimizer(copied, again, "topk", ratio=0.05)
        own.load_state_dict(state.state_dict())
        _steps(again, copied, rank)
        _steps(model, optimizer, rank)
        told["same"] = str(digest(again) == digest(model))
    return told


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    for step in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch(step, rank)[0]), batch(step, rank)[1]).backward()
        optimizer.step()


def _optimizers(rank: int) -> dict[str, dict[str, Any]]:
    return {way: _copied_optimizer(rank, way) for way in WAYS}


def test_a_copy_of_an_optimizer_refuses_to_step_until_it_is_compressed_itself() -> None:
    allowed = "optimizer must be the one that compress_optimizer was given, or be given to it"
    for told in run_ranks(2, _optimizers):
        for answer in told.values():
            assert answer.pop("same", "True") == "True"
            for text in answer.values():
                assert text == f"ConfigError: {allowed}, got a copy of it, whose gradients nobody averages"


def _copied_state(rank: int) -> str:
    state = copy.deepcopy(compress_ddp(DistributedDataParallel(model_of()), "twobit"))
    with pytest.raises(AttributeError) as told:
        state.metrics()
    return str(told.value)


def test_a_copy_of_a_state_says_what_it_is() -> None:
    told = run_ranks(1, _copied_state)[0]
    assert told.startswith("'metrics': this is a copy of the state of TwoBit(")
    assert "save state.state_dict()" in told
