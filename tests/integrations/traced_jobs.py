"""Work of the ranks in the tests of DDP's Python reducer; each function is one launch."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from gradwire.frontends.ddp import GradwireState, compress_ddp, gradwire_hook
from tests.integrations.amp_jobs import kept
from tests.integrations.checkpoint_jobs import through_a_file
from tests.integrations.jobs import answers, batch, digest, model_of
from tests.integrations.ways_jobs import Branches


def run(rank: int, compiled: bool, steps: int, **options: Any) -> dict[str, Any]:
    """Training under the reducer that is configured, with one accumulated step."""
    torch._dynamo.reset()
    counters.clear()
    model = DistributedDataParallel(model_of(), bucket_cap_mb=1)
    state = compress_ddp(model, "topk", ratio=0.1, min_numel=128, **options)
    compiler = partial(torch.compile, backend="aot_eager")
    called = compiler(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        last = step % 4 != 2
        with nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(called(batch(step % 2, rank)[0]), batch(step % 2, rank)[1])
            with compiled_autograd._enable(partial(compiler, fullgraph=True)) if compiled else nullcontext():
                loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    captures = counters["compiled_autograd"]["captures"]
    told = {
        "losses": losses,
        "digest": digest(model),
        "steps": state.metrics()["steps"],
        "captures": captures,
        "ratio": state.metrics()["ratio"],
        "kept": kept(state),
    }
    state.close()
    return told


def reducers(rank: int) -> dict[str, Any]:
    told: dict[str, Any] = {"plain": run(rank, compiled=False, steps=8)}
    torch._dynamo.config.optimize_ddp = "python_reducer"
    try:
        told["eager"] = run(rank, compiled=False, steps=8)
        told["compiled"] = run(rank, compiled=True, steps=8)
        told["scaled"] = scaled(rank)
        told["unused"] = unused(rank)
        module = model_of()
        model = DistributedDataParallel(module)
        model.register_comm_hook(GradwireState(module, "topk"), gradwire_hook)
        told["module"] = answers({"": lambda: model(batch(0, rank)[0]).sum().backward()})[""]
    finally:
        torch._dynamo.config.optimize_ddp = True
    return told


def scaled(rank: int) -> dict[str, Any]:
    """An overflow on one rank under the Python reducer, and a state that is taken up again."""
    model = DistributedDataParallel(model_of())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    state = compress_ddp(model, "topk", ratio=0.1, min_numel=0, scaler=scaler)
    skipped, untouched = [], False
    for step in range(4):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        before, weights = kept(state), digest(model)
        loss = nn.functional.cross_entropy(model(x), y) * (float("inf") if (step, rank) == (2, 1) else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(digest(model) == weights)
        if step == 2:
            after = kept(state)
            untouched = all(torch.equal(after[name], before[name]) for name in before)
    state.load_state_dict(through_a_file(state.state_dict()))
    return {"skipped": skipped, "untouched": untouched, "digest": digest(model)}


def unused(rank: int) -> dict[str, str]:
    """At the optimizer's step, and where there is none at the next backward pass."""
    model = DistributedDataParallel(Branches())
    compress_ddp(model, "topk", min_numel=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    others = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)

    def backward() -> None:
        model(batch(0, rank)[0]).sum().backward()

    backward()
    others.step()
    return answers({"step": optimizer.step, "backward": backward})
