"""Training of a task on this worker, with gradients exchanged by one method, and the account of its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from gradwire_lab.experiments.decisions import Entry
from gradwire_lab.experiments.loop import Loop, StepCallback
from gradwire_lab.experiments.process_figures import digest, tensor_bytes
from gradwire_lab.experiments.records import Point
from gradwire_lab.experiments.run_snapshots import RunSnapshots
from gradwire_lab.experiments.synchronisation import CompressedGradients
from gradwire_lab.experiments.tasks.base import Task
from gradwire_lab.experiments.training_method import Method
from gradwire_lab.experiments.unpacked import unpacked_bytes

__all__ = ["Run", "train"]


@dataclass(frozen=True)
class Run:
    """The figures that a worker measured. Times are means of a step in seconds.

    ``compute`` is the training thread's CPU time; ``compress``, ``communicate`` and ``decompress`` are the wall time of
    the thread that talks to the network. They overlap, and ``communicate`` includes waiting for the slowest worker.
    ``state_bytes`` are those of a checkpoint of the exchange: memories, and the methods' own states. ``measures`` has
    everything that the task measures of worker 0's model, the quality among it. The rest is as in
    ``gradwire_lab.experiments.records.Record``.
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
    history: tuple[Point, ...]
    steps: int
    examples_per_second: float
    dense_bytes_per_step: float
    unpacked_bytes_per_step: float | None
    interface_bytes_per_step: float | None
    peak_rss_bytes: int
    start_rss_bytes: int | None
    resumed: int
    decisions: tuple[Entry, ...]


def train(
    task: Task,
    method: Method,
    epochs: int,
    *,
    seed: int = 0,
    watch: StepCallback | None = None,
    device: str = "cpu",
    lab: bool = False,
    tell: Callable[[Point], None] | None = None,
    snapshots: RunSnapshots | None = None,
    start: Mapping[str, Tensor] | None = None,
) -> Run:
    """Make one run; every worker of the default process group must call it with the same arguments.

    Args:
        task: task that is trained, with the recipe that the method needs.
        method: method by which gradients are exchanged.
        epochs: number of epochs, >= 1.
        seed: seed of the initial parameters; with ``start`` it selects the order of the examples.
        watch: called after each step with its number and this worker's loss.
        device: device of the model.
        lab: true: this worker's network interface is its own, and its bytes are counted.
        tell: called at the end of each epoch; in a resumed run first with the epochs before.
        snapshots: checkpoints from which the run goes on, and to which it is saved; None: it is not saved.
        start: parameters to begin with, by name; None: what the seed draws.

    Raises:
        ConfigError, GroupError: ``Loop`` or ``RunSnapshots`` refuses the arguments, or a worker failed.
    """
    with Loop(task, method, epochs, seed, device, lab=lab, start=start) as loop:
        if snapshots is not None:
            snapshots.restore(loop)
        if tell is not None:
            for point in loop.history:
                tell(point)
        between = _ignore if snapshots is None else snapshots.in_epoch
        while loop.epoch < epochs:
            point = loop.run_epoch(watch or _ignore, between)
            if tell is not None:
                tell(point)
            if snapshots is not None:
                snapshots.save(loop)
        return _run(loop)


def _ignore(*_: object) -> None:
    pass


def _run(loop: Loop) -> Run:
    counted, last, seconds = loop.counted(), loop.history[-1], loop.clock.means(loop.step)
    kept, sent = loop.synchronisation, counted["bytes_sent"] / loop.step
    unpacked = None
    if isinstance(kept, CompressedGradients):
        unpacked = unpacked_bytes(kept.exchange, loop.params(), sent)
    peak, start = loop.memory()
    return Run(
        quality=last.quality,
        measures=loop.measures,
        loss=last.loss,
        bytes_per_step=sent,
        ratio=counted["dense_bytes"] / counted["bytes_sent"] if counted["bytes_sent"] else 1.0,
        state_bytes=tensor_bytes(kept.kept()),
        nonfinite_steps=counted["nonfinite_steps"],
        seconds=seconds,
        digest=digest(loop.gathered()),
        history=tuple(loop.history),
        steps=loop.step,
        examples_per_second=loop.task.recipe.batch / seconds["step"],
        dense_bytes_per_step=counted["dense_bytes"] / loop.step,
        unpacked_bytes_per_step=unpacked,
        interface_bytes_per_step=None if loop.interface is None else loop.interface / loop.step,
        peak_rss_bytes=peak,
        start_rss_bytes=start,
        resumed=loop.resumed,
        decisions=tuple(loop.decisions.entries),
    )
