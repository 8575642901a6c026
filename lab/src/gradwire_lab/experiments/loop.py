"""A training run with all its state between two steps, so that it can be saved there and resumed bit for bit.

Invariants:
    The next step depends on the parameters and buffers, the optimizer, the schedule, the residuals and states of the
    exchange, torch's generators, what a model carries from batch to batch, and the place in the data. The data itself
    depends on the epoch alone.

Why:
    DDP's buckets are settled before the first step, because sums of floats depend on them: otherwise a resumed run
    would make one step with other buckets than the unbroken one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from gradwire.engine.plan import Named
from gradwire_lab.experiments.clock import UNTIMED, Clock
from gradwire_lab.experiments.decisions import DecisionLog
from gradwire_lab.experiments.process_figures import forget_peak, interface_bytes, on_cpu, peak_bytes, resident_bytes
from gradwire_lab.experiments.records import Point
from gradwire_lab.experiments.sharding import cut_again, joined, whole
from gradwire_lab.experiments.start import begin_with
from gradwire_lab.experiments.synchronisation import synchronised, wrapped
from gradwire_lab.experiments.tasks.base import Task
from gradwire_lab.experiments.training_method import Method

__all__ = ["Loop", "StepCallback"]

StepCallback = Callable[[int, float], None]
"""A function that is called after every step with its number from 0 on, and this worker's loss."""

_COUNTED = ("bytes_sent", "dense_bytes", "nonfinite_steps")

_WARM: set[tuple[str, str, str]] = set()


class Loop:
    """A run, used as a context manager; every worker of the default process group must make it with the same arguments.

    Args:
        task: task that is trained, with the recipe that the method needs.
        method: method by which gradients are exchanged.
        epochs: number of epochs, >= 1.
        seed: seed of the initial parameters; with ``start`` it selects the order of the examples.
        device: device of the model.
        lab: true: this worker has a network interface of its own in a lab, whose bytes are counted.
        start: parameters to begin with, by name; None: what the seed draws.

    Raises:
        ConfigError, GroupError: ``synchronised`` refuses the method, or ``start`` belongs to another model.
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        epochs: int,
        seed: int = 0,
        device: str = "cpu",
        *,
        lab: bool = False,
        start: Mapping[str, Tensor] | None = None,
    ) -> None:
        warm_up(task, torch.device(device))
        forget_peak()
        self._memory: list[tuple[int, int | None]] = []
        self._resident = resident_bytes()
        self.task, self.method, self.epochs, self.device = task, method, epochs, torch.device(device)
        self.of_epoch = task.steps(1)
        torch.manual_seed(seed)
        # Runs that begin with the same parameters would otherwise be the same run, whatever their seeds.
        task.order = 0 if start is None else seed % 2**32
        model = task.model()
        if start is not None:
            begin_with(start, model, task.model_name)
        self.model = wrapped(model.to(self.device), method)
        if isinstance(self.model, DistributedDataParallel):
            settle_buckets(self.model, task, self.device)
        self.synchronisation = synchronised(self.model, method, task.recipe)
        self.optimizer = self.synchronisation.optimizer
        self.schedule = LambdaLR(self.optimizer, lambda step: task.recipe.factor(step, epochs * self.of_epoch))
        self.clock = Clock(self.synchronisation.counters, min(UNTIMED, epochs * self.of_epoch - 1))
        self.step, self.resumed = 0, 0
        self.losses: list[float] = []
        self.history: list[Point] = []
        self.measures: dict[str, float] = {}
        self.interface: int | None = 0 if lab else None
        self._seen: int | None = None
        self._before = dict.fromkeys(_COUNTED, 0)
        self.decisions = DecisionLog()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.synchronisation.close()
        if kind is None:
            self._leave()

    def _leave(self) -> None:
        """Destroy the run's own process group, whose threads would otherwise wake a hundred times a second during later
        runs.

        All workers are in it: so its name is a number that does not come again. After the barrier nobody needs it.
        """
        exchange = self.synchronisation.exchange
        group = None if exchange is None else exchange.channel.group
        if group is not None:
            dist.barrier()
            dist.destroy_process_group(group)

    @property
    def module(self) -> nn.Module:
        """The model without its wrapper."""
        inside: nn.Module = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
        return inside

    def gathered(self) -> nn.Module:
        """The module with all its parameters, which shards are brought together for. All workers must call it."""
        if not isinstance(self.model, FSDPModule):
            return self.module
        before = generators(self.device)
        made = whole(self.model, self.task.model().to(self.device))
        set_generators(before, self.device)
        return made

    def params(self) -> list[Named]:
        """The parameters that are averaged."""
        return [(name, tuple(param.shape)) for name, param in self.module.named_parameters() if param.requires_grad]

    @property
    def epoch(self) -> int:
        """The number of epochs that have ended."""
        return len(self.history)

    def counted(self) -> dict[str, int]:
        """Bytes, and skipped steps, since the beginning of the run, before it was resumed, too."""
        now = self.synchronisation.metrics()
        return {name: self._before[name] + now[name] for name in _COUNTED}

    def run_epoch(self, watch: StepCallback, between: Callable[[Loop], None]) -> Point:
        """Train to the end of the epoch, and measure the quality.

        Args:
            watch: called after each step.
            between: called after each step, too, when a checkpoint may be taken.
        """
        if not self.losses:
            self.task.begin_epoch(self.module)
        self.module.train()
        self._seen = None if self.interface is None else interface_bytes()
        for x, y in self._rest():
            with self.clock:
                self.losses.append(self._step(x.to(self.device), y.to(self.device)))
            self.schedule.step()
            self.step += 1
            self.decisions.note(self.step, self.synchronisation.exchange)
            watch(self.step - 1, self.losses[-1])
            between(self)
        self._count_interface()
        self._seen = None
        return self._end_epoch()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude the traffic of this worker's interface inside the block from the run's. All workers must call it."""
        if self.interface is not None:
            # Packets on their way belong to the run: they have arrived once all workers have ended the step.
            dist.barrier()
        self._count_interface()
        self._seen = None
        yield
        self._seen = None if self.interface is None else interface_bytes()

    def _count_interface(self) -> None:
        if self.interface is not None and self._seen is not None:
            now = interface_bytes()
            self.interface, self._seen = self.interface + now - self._seen, now

    def _rest(self) -> Iterator[tuple[Tensor, Tensor]]:
        shares = self.task.shares(self.epoch, dist.get_rank(), dist.get_world_size())
        return islice(shares, len(self.losses), None)

    def _step(self, x: Tensor, y: Tensor) -> float:
        model, scale = self.model, self.method.loss_scale
        self.optimizer.zero_grad()
        loss = add_gradients(model, self.task, x, y, scale)
        if scale != 1.0:
            torch._foreach_div_([p.grad for p in model.parameters() if p.grad is not None], scale)
        self.task.recipe.clip_(model.parameters())
        self.optimizer.step()
        return loss

    def _end_epoch(self) -> Point:
        """End the epoch; worker 0 measures it, and the others wait for its result."""
        if self.epoch + 1 == self.epochs:
            self.synchronisation.finish()
        found: list[Any] = [None, None]
        measured = self.gathered()
        if dist.get_rank() == 0:
            found[0] = self.task.measures(on_cpu(measured, self.device))
            found[1] = Point(
                self.epoch + 1,
                self.step,
                self.clock.elapsed,
                sum(self.losses) / len(self.losses),
                found[0][self.task.measure],
                self.counted()["bytes_sent"],
            )
        dist.broadcast_object_list(found, src=0)
        self.measures, point = found
        self.history.append(point)
        self.losses = []
        return self.history[-1]

    def memory(self) -> tuple[int, int | None]:
        """The peak of the resident bytes, and those at the beginning, of the process of this run that had the most."""
        return max([(peak_bytes(), self._resident), *self._memory], key=lambda figures: figures[0])

    def common(self) -> dict[str, Any]:
        """The state that is saved once: the same on all workers, or worker 0's. All workers must call it."""
        return {
            "params": {name: joined(param.detach()) for name, param in self.module.named_parameters()},
            "optimizer": self.synchronisation.common(),
            "schedule": self.schedule.state_dict(),
            "step": self.step,
            "history": [dataclasses.asdict(point) for point in self.history],
            "measures": self.measures,
            "resumed": self.resumed,
        }

    def own(self) -> dict[str, Any]:
        """The state of this worker alone."""
        self._count_interface()
        params = dict(self.module.named_parameters())
        buffers = {name: value for name, value in self.module.state_dict().items() if name not in params}
        return {
            "buffers": buffers,
            "exchange": self.synchronisation.own(),
            "generators": generators(self.device),
            "losses": self.losses,
            "clock": self.clock.state_dict(),
            "counted": self.counted(),
            "interface": self.interface,
            "memory": self.memory(),
        }

    def load(self, common: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Continue from the states ``common`` and ``own``. All workers must call it before their first step."""
        cut_again(self.module, {**common["params"], **own["buffers"]})
        self.synchronisation.load(common["optimizer"], own["exchange"])
        self.schedule.load_state_dict(common["schedule"])
        self.clock.load_state_dict(own["clock"], self.epochs * self.of_epoch - common["step"])
        self.step, self.measures = common["step"], dict(common["measures"])
        self.history, self.losses = [Point(**point) for point in common["history"]], list(own["losses"])
        self.resumed = common["resumed"] + 1
        # The link may be another one now: what was sent before is known only where there was one, too.
        self.interface = None if self.interface is None else own["interface"]
        # Earlier versions saved none.
        self._memory = [tuple(own["memory"])] if "memory" in own else []
        now = self.synchronisation.metrics()
        self._before = {name: own["counted"][name] - now[name] for name in _COUNTED}
        # The last thing: making the model has drawn from them.
        set_generators(own["generators"], self.device)


def add_gradients(model: nn.Module, task: Task, x: Tensor, y: Tensor, scale: float = 1.0) -> float:
    """Add the gradient of the mean loss over a worker's share, times ``scale``, to ``.grad``; return the mean.

    It is the sum over micro-batches i of n_i / n times the gradient of their mean loss, for n_i of n examples. DDP
    and FSDP2 exchange in the last one's backward pass alone, when everything is added up.
    """
    recipe, mean = task.recipe, 0.0
    size = recipe.micro or len(x)
    parts = list(zip(torch.split(x, size), torch.split(y, size), strict=True))
    for number, (inputs, targets) in enumerate(parts, 1):
        weight = len(inputs) / len(x)
        last = number == len(parts)
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        # DDP decides in the forward pass whether the backward pass exchanges.
        with nullcontext() if last or not isinstance(model, DistributedDataParallel) else model.no_sync():
            with torch.autocast(x.device.type, torch.bfloat16, enabled=recipe.autocast):
                loss = task.loss(model(inputs), targets)
            torch.autograd.backward(loss * (scale * weight))
        mean += weight * loss.item()
    return mean


def warm_up(task: Task, device: torch.device) -> None:
    """Make a step of a model that is thrown away, once in a process for each model.

    torch loads half of itself when the first optimizer is made and the first step is taken. That stays for all later
    runs; counted as the first one's, it would be more than most methods keep.
    """
    what = task.name, task.model_name, str(device)
    if what in _WARM:
        return
    _WARM.add(what)
    model = task.model().to(device)
    optimizer = task.recipe.build(model.parameters())
    task.begin_epoch(model)
    x, y = next(task.shares(0, dist.get_rank(), dist.get_world_size()))
    add_gradients(model, task, x.to(device), y.to(device))
    task.recipe.clip_(model.parameters())
    optimizer.step()


def settle_buckets(model: DistributedDataParallel, task: Task, device: torch.device) -> None:
    """Make one backward pass that only establishes the order of the gradients, by which DDP sorts its buckets."""
    before = generators(device)
    buffers = {name: value.clone() for name, value in model.module.named_buffers()}
    task.begin_epoch(model.module)
    x, y = next(task.shares(0, dist.get_rank(), dist.get_world_size()))
    add_gradients(model, task, x.to(device), y.to(device))
    model.zero_grad(set_to_none=True)
    task.begin_epoch(model.module)
    with torch.no_grad():
        for name, value in model.module.named_buffers():
            value.copy_(buffers[name])
    set_generators(before, device)


def generators(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's global generators, which dropout uses."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
