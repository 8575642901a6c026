"""Training steps over links of a given rate: how fast they are, how long they wait, and what was predicted.

Invariants:
    * Contestants of a cell take turns in one group of ranks, one step each in a round. A ratio is one of two steps of
      the same round, and its interval is that of the median of these ratios.
    * A step ends when the slowest rank has ended it. The share that waits is what a step takes beyond one that
      exchanges nothing.
    * The prediction is made before the first step that counts, from the backward pass alone and from messages alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from gradwire.auto.choices import DENSE
from gradwire.auto.link_cost import Wire
from gradwire.auto.traffic import PredictedTraffic, dense_traffic
from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.fsdp import compress_fsdp
from gradwire.optim import CompressedStep
from gradwire.testing.processes import RankFailedError
from gradwire_lab.advise.cluster import Cluster
from gradwire_lab.advise.codec import Codec
from gradwire_lab.advise.examples import example
from gradwire_lab.advise.gauge import Alphas, measure_wire
from gradwire_lab.advise.pipeline import PipelineJob, compressed_step
from gradwire_lab.advise.profile import Profile, profile_step
from gradwire_lab.bench.statistics import slowest_samples
from gradwire_lab.experiments import models
from gradwire_lab.experiments.method_text import parse_method
from gradwire_lab.experiments.sharding import blocks
from gradwire_lab.experiments.torchhooks import TorchHook
from gradwire_lab.nccl.batch import agree_over, last_words
from gradwire_lab.nccl.rows_file import Row, RowsFile
from gradwire_lab.nccl.shaped import shaped
from gradwire_lab.nccl.way import Way, run_joined
from gradwire_lab.netlab import Link

__all__ = ["CELLS", "FIRST", "TINY_CELLS", "SpeedCell", "TimedModel", "measure_cells", "median_interval"]

PART = "speed"

PLAIN = "ddp"

FIRST = (PLAIN, "torch_bf16", "auto")
"""The contestants that come first."""

OTHERS = ("torch_powersgd", "step", "fsdp", "fsdp auto")

BATCHES = {"gpt2": 8, "resnet50": 64}
"""Examples of a rank in a step: windows of 1,024 tokens, pictures."""

DECIDING = 24
"""Most steps that auto has to decide in before the turns begin; it goes on deciding in them."""

ROUNDS = 20
"""Most rounds of a cell."""

_MORE, _GRACE = 20.0, 5.0
"""Seconds that the ranks of a cell may take beyond its share, and beyond the end of all."""

GOALS = {"1gbit": 5.0, "10gbit": 1.5}
"""The factor by which auto is to be faster where DDP waits for more than half of its step."""

NOT_SLOWER, WITHIN = 0.98, 0.10
"""A step of auto is not slower than DDP's by more than 2 %; a prediction is within 10 %."""


@dataclass(frozen=True)
class SpeedCell:
    """Contestants that take turns on one model over one link.

    Args:
        model: name in ``gradwire models``.
        link: rate of each rank's link.
        contestants: their labels; DDP takes part in any case.
        share: share of the time that is left which it may take.
    """

    model: str
    link: str
    contestants: tuple[str, ...]
    share: float = 0.5

    def case(self, label: str) -> str:
        """The name of a row."""
        return f"{self.model}, {self.link}, {label}"


CELLS = (
    SpeedCell("gpt2", "1gbit", FIRST, 0.75),
    SpeedCell("gpt2", "10gbit", FIRST, 0.6),
    SpeedCell("gpt2", "1gbit", OTHERS, 0.6),
    SpeedCell("gpt2", "10gbit", OTHERS),
    SpeedCell("resnet50", "1gbit", FIRST),
    SpeedCell("resnet50", "10gbit", FIRST),
    SpeedCell("gpt2", "25gbit", FIRST),
    SpeedCell("resnet50", "1gbit", OTHERS),
    SpeedCell("resnet50", "25gbit", FIRST),
    SpeedCell("resnet50", "10gbit", OTHERS),
    SpeedCell("gpt2", "25gbit", OTHERS),
    SpeedCell("resnet50", "25gbit", OTHERS),
)
"""The cells in the order in which they matter: a plain step of GPT-2 takes about four seconds at 1 Gbit/s."""

TINY_CELLS = (
    SpeedCell("gpt2", "100mbit", FIRST, 0.6),
    SpeedCell("gpt2", "100mbit", OTHERS, 0.6),
    SpeedCell("resnet50", "1gbit", FIRST),
)
"""Those of a rehearsal, with the small variants of the models."""


class TimedModel:
    """A model with a way to exchange, and its steps.

    Args:
        label: one of the labels of ``CELLS``.
        cell: cell in which it takes part.
        device: device of the model.
        small: the small variant of the model.
    """

    def __init__(self, label: str, cell: SpeedCell, device: str, *, small: bool) -> None:
        torch.manual_seed(0)
        self.label, self.device = label, device
        self.module = models.build(cell.model, small=small).to(device)
        torch.manual_seed(1 + dist.get_rank())
        self.inputs = inputs_of(self.module, cell.model, device, small=small)
        self.model: nn.Module = self.module
        self.state: Any = None
        if label.startswith("fsdp"):
            mesh = init_device_mesh(device, (dist.get_world_size(),))
            for block in list(blocks(self.module)):
                fully_shard(block, mesh=mesh)
            fully_shard(self.module, mesh=mesh)
            if label == "fsdp auto":
                self.state = compress_fsdp(self.module, quiet=True)
        elif label != "step":
            # Torch's PowerSGD waits in callbacks, which hangs on Gloo with more than one bucket.
            whole = 1 + (sum(param.nbytes for param in self.module.parameters()) >> 20)
            alone = label == "torch_powersgd" and device == "cpu"
            # The ranks have made the same weights; to send them would take seconds on a slow link.
            self.model = DistributedDataParallel(self.module, init_sync=False, bucket_cap_mb=whole if alone else None)
            if label == "auto":
                self.state = compress_ddp(self.model, quiet=True)
            elif label != PLAIN:
                TorchHook(self.model, {"name": label.removeprefix("torch_")})
        self.optimizer: Any = torch.optim.AdamW(self.module.named_parameters(), lr=1e-4)
        if label == "step":
            self.optimizer = CompressedStep(self.optimizer)

    def step(self, *, exchanges: bool = True) -> None:
        """Make a step.

        Args:
            exchanges: false: gradients stay on their rank; of DDP alone.
        """
        self.optimizer.zero_grad()
        within = nullcontext() if exchanges else cast(DistributedDataParallel, self.model).no_sync()
        with within:
            forward_backward(self.model, self.inputs, self.device)
        self.optimizer.step()

    def timed(self, *, exchanges: bool = True) -> float:
        """Make a step that all ranks begin together, and return the seconds of this one."""
        dist.barrier()
        finish(self.device)
        begun = time.perf_counter()
        self.step(exchanges=exchanges)
        finish(self.device)
        return time.perf_counter() - begun

    @property
    def decided(self) -> bool:
        """Return whether it has nothing to decide any more, or is not one that decides."""
        return self.label != "auto" or bool(self.state.decisions()["decisions"])

    def close(self) -> None:
        """Let go of the group that it has to itself."""
        if self.state is not None and hasattr(self.state, "close"):
            self.state.close()


def inputs_of(module: nn.Module, model: str, device: str, *, small: bool) -> Tensor:
    """A batch of random examples on a device."""
    batch = 2 if small else BATCHES[model]
    return example(module, model, batch, small=small).to(device)


def forward_backward(model: nn.Module, inputs: Tensor, device: str) -> None:
    """Compute the gradients, in bfloat16 on a GPU."""
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        out = model(inputs)
    out.float().square().mean().backward()


def finish(device: str) -> None:
    """Wait until the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()


def measure_cells(
    file: RowsFile, way: Way, world: int, cells: Sequence[SpeedCell], *, deadline: float, small: bool
) -> list[str]:
    """Measure cells until the deadline, and append their rows.

    Args:
        file: file of the check.
        way: way to connect the ranks.
        world: number of ranks.
        cells: cells in their order.
        deadline: ``time.monotonic()`` at which the last one ends.
        small: the small variants of the models.

    Returns:
        The cases that were left out, each with the reason.
    """
    left, refused = [], ""
    for cell in cells:
        todo = tuple(each for each in cell.contestants if not file.has(PART, cell.case(each), world, way.name))
        if not todo:
            continue
        now = time.monotonic()
        if deadline - now < 5.0:
            left += [f"{cell.case(each)}: the time was over" for each in todo]
            continue
        if refused and cell.link != "none":
            left += [f"{cell.case(each)}: {refused}" for each in todo]
            continue
        end = now + cell.share * (deadline - now)
        refused = _measure_cell(file, way, world, cell, todo, end, min(end + _MORE, deadline + _GRACE), small)
        known = [each for each in todo if file.has(PART, cell.case(each), world, way.name)]
        left += [f"{cell.case(each)}: {refused or 'the time was over'}" for each in todo if each not in known]
    if refused:
        # What can be known without a link: that it runs, and what compression costs where nothing is gained.
        bare = SpeedCell(cells[0].model, "none", FIRST, 1.0)
        left += measure_cells(file, way, world, [bare], deadline=deadline, small=small)
    return left


def _measure_cell(
    file: RowsFile,
    way: Way,
    world: int,
    cell: SpeedCell,
    todo: tuple[str, ...],
    deadline: float,
    end: float,
    small: bool,
) -> str:
    """Measure the contestants of a cell, and return why no link could be shaped; empty: one could.

    Args:
        deadline: ``time.monotonic()`` after which no round begins.
        end: the same at which the ranks are ended.
    """
    named: Row = {"part": PART, "ranks": world, "way": way.name, "model": cell.model, "link": cell.link}
    with shaped(world, cell.link) as network:
        if network.refusal:
            return network.refusal
        named["shaped"] = network.how
        limit = max(1.0, end - time.monotonic())
        work = (way.device, str(file.path), named, cell, todo, deadline, small)
        try:
            run_joined(way, world, _turns, *work, timeout=limit, place=network.place)
        except RankFailedError as error:
            if not error.late:
                for label in todo:
                    if not file.has(PART, cell.case(label), world, way.name):
                        file.append({**named, "case": cell.case(label), "error": last_words(error)})
    return ""


def _turns(
    rank: int, device: str, path: str, named: Row, cell: SpeedCell, todo: tuple[str, ...], deadline: float, small: bool
) -> None:
    """Measure a cell on one rank; rank 0 appends the rows."""
    begun = time.monotonic()
    profile = _profile(cell, device, small=small)
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, dict(measure_wire(device)))
    wire = Alphas.of(found).wire(dist.get_world_size(), Link.parse(cell.link))
    labels = (PLAIN, *(each for each in todo if each != PLAIN))
    contestants = {label: TimedModel(label, cell, device, small=small) for label in labels}
    # Much of the time is for decisions: a step of auto is one of DDP's until then.
    deciding = _decide(contestants, begun + 0.6 * (deadline - begun), device)
    samples: dict[str, list[float]] = {label: [] for label in labels}
    for each in contestants.values():
        if each.label != "auto":
            # DDP sorts its buckets anew after the first step, and buffers are made in the one after.
            for _ in range(2):
                each.step()
    alone = [contestants[PLAIN].timed(exchanges=False) for _ in range(3)]
    for _ in range(ROUNDS):
        if agree_over(deadline, device) and samples[PLAIN]:
            break
        for label, each in contestants.items():
            samples[label].append(each.timed())
    chosen = _chosen(contestants)
    for each in contestants.values():
        each.close()
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (samples, alone))
    if rank == 0:
        slowest = {label: slowest_samples(each[0][label] for each in told) for label in labels}
        without = median(slowest_samples(each[1] for each in told))
        inputs = contestants[PLAIN].inputs
        examples = inputs.numel() if cell.model == "gpt2" else len(inputs)
        facts = {"bits_per_second": 8 * wire.rate, "alone": without, "deciding": deciding, "chosen": chosen}
        for label in todo:
            row = figures(slowest[label], slowest[PLAIN], without, examples * dist.get_world_size())
            row |= _prediction(label, profile, wire, chosen, median(slowest[label]))
            row |= _goals(label, cell.link, row)
            RowsFile(Path(path)).append(
                {**named, "case": cell.case(label), **row, **(facts if label == "auto" else {})}
            )


def _profile(cell: SpeedCell, device: str, *, small: bool) -> Profile:
    """The backward pass of the model when nothing is exchanged."""
    torch.manual_seed(0)
    module = models.build(cell.model, small=small).to(device)
    model = DistributedDataParallel(module, init_sync=False)
    inputs = inputs_of(module, cell.model, device, small=small)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        forward_backward(model, inputs, device)
        finish(device)

    return profile_step(model, step, 3, before=dist.barrier)


def _decide(contestants: Mapping[str, TimedModel], until: float, device: str) -> int:
    """Let auto make steps until it has decided on all ranks, and return their number."""
    auto = contestants.get("auto")
    made = 0
    while auto is not None and made < DECIDING and not agree_over(until, device) and not auto.decided:
        auto.step()
        made += 1
    return made


def _chosen(contestants: Mapping[str, TimedModel]) -> dict[str, int]:
    """The elements for which auto chose each method."""
    found: dict[str, int] = {}
    auto = contestants.get("auto")
    for bucket in auto.state.decisions()["buckets"] if auto is not None else []:
        name = str(bucket["choice"])
        found[name] = found.get(name, 0) + int(bucket["elements"])
    return found


def figures(samples: Sequence[float], plain: Sequence[float], alone: float, examples: int) -> Row:
    """The figures of a contestant.

    Args:
        samples: seconds of its steps, one of each round.
        plain: those of DDP in the same rounds.
        alone: seconds of a step that exchanges nothing.
        examples: tokens, or pictures, of a step on all ranks.

    Example:
        >>> row = figures([1.0, 2.0, 1.0], [2.0, 2.0, 3.0], 0.5, 10)
        >>> row["seconds"], row["speedup"], row["waiting"], row["per_second"]
        (1.0, 2.0, 0.5, 10.0)
    """
    step = median(samples)
    ratios = [theirs / mine for theirs, mine in zip(plain, samples, strict=True)]
    low, high, confidence = median_interval(ratios)
    return {
        "seconds": step,
        "samples": list(samples),
        "per_second": examples / step,
        "waiting": max(0.0, 1 - alone / step),
        "speedup": median(ratios),
        "speedup_low": low,
        "speedup_high": high,
        "confidence": confidence,
        "plain_waiting": max(0.0, 1 - alone / median(plain)),
    }


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """An interval of the median from the order of the samples, whatever their distribution, and its confidence.

    The narrowest one that has the confidence; of few samples the least and the largest, which have less of it.

    >>> median_interval([3.0, 1.0, 2.0])
    (1.0, 3.0, 0.75)
    >>> median_interval(list(range(1, 11)))
    (2, 9, 0.978515625)
    """
    ordered, n = sorted(samples), len(samples)

    def inside(k: int) -> float:
        return float(1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n)

    k = max((each for each in range(1, n // 2 + 1) if inside(each) >= confidence), default=1)
    return ordered[k - 1], ordered[n - k], max(0.0, inside(k))


def _prediction(label: str, profile: Profile, wire: Wire, chosen: Mapping[str, int], measured: float) -> Row:
    """The step that ``gradwire advise`` predicts, with codecs that take no time; nothing for what it does not know."""
    cluster = Cluster(wire.workers, wire)
    total: float | None = None
    if label == PLAIN:
        total = cluster.dense(profile).total
    elif label == "torch_bf16":
        halves = [
            PipelineJob(0.0, 0.0, PredictedTraffic((), dense_traffic(b.numel, wire.workers, 2)))
            for b in profile.buckets
        ]
        total = compressed_step(profile, halves, wire).total
    elif label == "auto" and chosen:
        main = max(chosen, key=lambda name: chosen[name])
        if main == DENSE.label:
            total = cluster.dense(profile).total
        else:
            method, _, strategy = main.partition(" over ")
            compressor = parse_method(method)
            codec = Codec.at_rate(profile.buckets, 0.0, 0.0)
            jobs = cluster.jobs(profile, compressor, codec, strategy or "allgather")
            total = cluster.compressed(profile, jobs).total
    return {"predicted": total, "off": None if total is None else total / measured - 1}


def _goals(label: str, link: str, row: Row) -> Row:
    """The goals that a row keeps and misses, in words, because none of them makes a result wrong."""
    found = {}
    if row["off"] is not None:
        found[f"prediction within {WITHIN:.0%}"] = abs(row["off"]) <= WITHIN
    if label == "auto":
        # Missed where the interval excludes it.
        found["not slower than DDP by more than 2 %"] = row["speedup_high"] >= NOT_SLOWER
        if link in GOALS and row["plain_waiting"] > 0.5:
            found[f"{GOALS[link]:g} times as fast as DDP"] = row["speedup"] >= GOALS[link]
    return {"goals": {name: "kept" if kept else "missed" for name, kept in found.items()}}
