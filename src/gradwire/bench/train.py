"""Train a task on this worker, with gradients exchanged by one method, and say what it cost."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gradwire.bench.tasks.base import Task
from gradwire.compressors.base import Compressor
from gradwire.integrations.ddp import GradwireState, compress_ddp

__all__ = ["Method", "Run", "train"]

UNTIMED = 10
"""Steps before the clocks start: DDP rebuilds its buckets, buffers are made, pages are touched."""

Watcher = Callable[[int, float], None]


@dataclass(frozen=True)
class Method:
    """How gradients are exchanged.

    Args:
        label: names it in tables and on progress bars.
        compressor: with its parameters.
        options: for ``compress_ddp``.
        loss_scale: the loss is multiplied by it before backward, and the averaged gradients are divided by it; for
            codes whose steps have a size of their own.
        recipe: what the method needs changed in the task's own recipe.
    """

    label: str
    compressor: Compressor
    options: Mapping[str, Any] = field(default_factory=dict)
    loss_scale: float = 1.0
    recipe: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """What a worker saw. Times are means of a step in seconds.

    ``compute`` is the training thread's CPU time; ``compress``, ``communicate`` and ``decompress`` are the wall time of
    the thread that talks to the network. They overlap, and ``communicate`` includes waiting for the slowest worker.
    ``state_bytes`` are those of a checkpoint of the exchange: memories, and the methods' own states. ``measures`` has
    everything that the task measures, the quality among it.
    """

    quality: float
    measures: dict[str, float]
    loss: float
    bytes_per_step: float
    ratio: float
    state_bytes: int
    nonfinite_steps: int
    seconds: dict[str, float]
    digest: str


def train(task: Task, method: Method, epochs: int, *, seed: int = 0, watch: Watcher | None = None) -> Run:
    """One run; every worker of the default process group must call it with the same arguments.

    Args:
        task: what is trained, with the recipe that the method needs.
        method: how gradients are exchanged.
        epochs: at least 1.
        seed: of the initial parameters.
        watch: called after each step with its number and this worker's loss.

    Raises:
        ConfigError, GroupError: as ``compress_ddp``.
    """
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.model())
    state = compress_ddp(model, method.compressor, **method.options)
    try:
        loss, seconds = fit(task, method, epochs, model, state, watch or (lambda _step, _loss: None))
    finally:
        state.close()
    metrics, measures = state.metrics(), task.measures(model.module)
    return Run(
        quality=measures[task.measure], measures=measures, loss=loss,
        bytes_per_step=metrics["bytes_sent"] / metrics["steps"], ratio=metrics["ratio"],
        state_bytes=tensor_bytes(state.exchange.state_dict()), nonfinite_steps=metrics["nonfinite_steps"],
        seconds=seconds, digest=digest(model.module),
    )  # fmt: skip


def fit(
    task: Task, method: Method, epochs: int, model: DistributedDataParallel, state: GradwireState, watch: Watcher
) -> tuple[float, dict[str, float]]:
    """The loop; returns the last epoch's mean loss and the times of a step."""
    optimizer, steps = task.recipe.build(model.parameters()), task.steps(epochs)
    schedule = LambdaLR(optimizer, lambda step: task.recipe.factor(step, steps))
    losses: list[float] = []
    clock = Clock(state)
    for step, (x, y) in enumerate(shares(task, epochs, model)):
        if step == min(UNTIMED, steps - 1):
            clock.reset()
        with clock:
            losses.append(step_of(task, method, model, optimizer, x, y))
        schedule.step()
        watch(step, losses[-1])
    return sum(losses[-task.steps(1) :]) / task.steps(1), clock.means()


def shares(task: Task, epochs: int, model: DistributedDataParallel) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in range(epochs):
        task.begin_epoch(model.module)
        yield from task.shares(epoch, dist.get_rank(), dist.get_world_size())


def step_of(task: Task, method: Method, model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> float:
    optimizer.zero_grad()
    loss = task.loss(model(x), y)
    torch.autograd.backward(loss * method.loss_scale)
    if method.loss_scale != 1.0:
        torch._foreach_div_([p.grad for p in model.parameters() if p.grad is not None], method.loss_scale)
    task.recipe.clip_(model.parameters())
    optimizer.step()
    return loss.item()


class Clock:
    """Adds up steps: wall time, this thread's CPU time, and the phases that the exchange measures itself."""

    def __init__(self, state: GradwireState) -> None:
        self.state = state
        self.reset()

    def reset(self) -> None:
        self.steps, self.wall, self.cpu = 0, 0.0, 0.0
        self.before = self.state.metrics()["seconds"]

    def __enter__(self) -> None:
        self.start = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.steps += 1
        self.wall += time.perf_counter() - self.start[0]
        self.cpu += time.thread_time() - self.start[1]

    def means(self) -> dict[str, float]:
        after = self.state.metrics()["seconds"]
        spent = {phase: after[phase] - self.before[phase] for phase in after}
        totals = {
            "step": self.wall, "compute": self.cpu, "compress": spent["encode"], "communicate": spent["communicate"],
            "decompress": spent["decode"],
        }  # fmt: skip
        return {name: total / self.steps for name, total in totals.items()}


def tensor_bytes(saved: Any) -> int:
    """Of all tensors in nested dicts and lists.

    >>> tensor_bytes({"worker": {"residual": {"weight": torch.zeros(3)}}, "owned": [[0, torch.zeros(2)]], "step": 7})
    20
    """
    if isinstance(saved, Tensor):
        return saved.nbytes
    inside = saved.values() if isinstance(saved, Mapping) else saved if isinstance(saved, list | tuple) else ()
    return sum(tensor_bytes(each) for each in inside)


def digest(model: nn.Module) -> str:
    """A SHA-256 of all parameters' bits: equal on two workers if and only if their models are."""
    sha = hashlib.sha256()
    for param in model.parameters():
        sha.update(param.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
