"""Soak test: training for a long time with all kinds of faults, and an account of what must not be lost.

Invariants:
    For each parameter and each stretch of ``STRETCH`` steps, over all workers,

        sum of gradients + residuals before = sum of what was decoded + residuals after

    to rounding. A step in which the exchange gave NaN counts on neither side. Gradients are taken as they go into DDP's
    bucket, faults included, and what was decoded as it comes out. A restart makes every object anew, from what
    ``torch.save`` wrote, and goes back to the stretch that was saved.
"""

from __future__ import annotations

import gc
import hashlib
import io
import math
import os
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.frontends.ddp import compress_ddp
from gradwire.kernels.stored import read
from gradwire.memory.base import Memory
from gradwire_lab.experiments.launch import launch

__all__ = ["FAULTS", "GROWTH", "METHODS", "ROUNDING", "STRETCH", "SoakPlan", "SoakReport", "soak"]

STRETCH = 25
"""Steps between two counts."""

ROUNDING = 1e-5
"""The share of the gradients, and of the residuals, by which sums of a stretch may differ."""

GROWTH = 32 * 2**20, 0.05
"""Bytes, and share, by which a worker's memory may be larger at the end than after a fifth of the run."""

FAULTS = {"nan": 0.01, "inf": 0.01, "huge": 0.02, "zero": 0.03}
"""Chance of each in a step of a worker."""

METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("topk", {"ratio": 0.05}),
    ("efsignsgd", {}),
    ("qsgd", {"bits": 4}),
    ("three_lc", {}),
    ("powersgd", {"rank": 2}),
    ("twobit", {"threshold": "auto"}),
    ("fp16", {"strategy": "allgather"}),
    ("onebit", {"scale": "mean"}),
    ("topk", {"ratio": 0.1, "strategy": "two_phase"}),
    ("efsignsgd", {"strategy": "two_phase"}),
    ("blockwise8", {}),
)
"""The methods that take turns, all with a residual: those whose books balance to the rounding of float32. They do not
where float16 itself is summed (``fp16`` over ``allreduce``), nor where an unbiased method compresses a mean again
(``qsgd`` over ``two_phase``): that noise is kept by nobody."""


@dataclass(frozen=True)
class SoakPlan:
    """The plan of a soak test.

    Args:
        seconds: least seconds of training; 0: as long as ``steps``.
        steps: least number of steps.
        seed: seed of models, data, faults and events.
        workers: processes.
        memory: memory of all methods; it must keep what it says.
    """

    seconds: float = 0.0
    steps: int = 500
    seed: int = 0
    workers: int = 4
    memory: Memory | str = "residual"


@dataclass(frozen=True)
class SoakReport:
    """The outcome of a soak test.

    Args:
        steps: number of steps that count, and of those that were made again after a restart.
        skipped: number of those steps in which an exchange gave NaN.
        faults: number of faults of all workers, by kind.
        restarts: number of restarts from checkpoints.
        changes: number of changes of the method.
        error: the largest part of a stretch that was lost or came twice.
        worst: the method of that stretch.
        identical: all workers ended with the same bits.
        rss: bytes of each worker after a fifth of the run, and at its end.
        loss: mean of the last stretch, of the first worker.
    """

    steps: int
    skipped: int
    faults: dict[str, int]
    restarts: int
    changes: int
    error: float
    worst: str
    identical: bool
    rss: tuple[tuple[int, int], ...]
    loss: float

    @property
    def broken(self) -> list[str]:
        """Sentences on what did not hold."""
        found = [] if self.identical else ["parameters differ between workers"]
        if not self.error <= ROUNDING:
            found.append(
                f"{self.error:.1e} of the gradients was lost or came twice with {self.worst}, rounding is below "
                f"{ROUNDING:.0e}"
            )
        grown = [
            f"{worker} by {after - before:,} bytes"
            for worker, (before, after) in enumerate(self.rss)
            if after - before > GROWTH[0] + GROWTH[1] * before
        ]
        return found + ([f"the memory of workers grew: {', '.join(grown)}"] if grown else [])


def soak(plan: SoakPlan, timeout: float = 120.0) -> SoakReport:
    """Run the plan on real workers over Gloo.

    Args:
        timeout: seconds that a collective may take.

    Raises:
        GroupError: a worker failed.
    """
    told = launch(plan.workers, work, plan, timeout=timeout)
    first = told[0]
    faults: Counter[str] = sum((Counter(each["faults"]) for each in told), Counter())
    return SoakReport(
        first["steps"],
        first["skipped"],
        {kind: faults[kind] for kind in FAULTS},
        first["restarts"],
        first["changes"],
        first["error"],
        first["worst"],
        len({each["digest"] for each in told}) == 1,
        tuple(each["rss"] for each in told),
        first["loss"],
    )


def work(plan: SoakPlan) -> dict[str, Any]:
    """Do the work of one worker."""
    return Soaked(plan).run()


class Soaked:
    """One worker: a model under DDP, faults in its gradients, and the account of them."""

    def __init__(self, plan: SoakPlan) -> None:
        self.plan, self.rank = plan, dist.get_rank()
        self.common = random.Random(plan.seed)
        self.own = random.Random(1000 * plan.seed + self.rank + 1)
        self.data = torch.Generator().manual_seed(1000 * plan.seed + self.rank)
        self.faults: Counter[str] = Counter()
        self.steps = self.skipped = self.restarts = self.changes = 0
        self.error, self.worst, self.method, self.start = 0.0, "", 0, time.monotonic()
        self.fault, self.scale = "", 1.0
        self._build()

    def run(self) -> dict[str, Any]:
        """Train stretch after stretch until the plan is done."""
        rss, losses = resident(), [0.0]
        saved = self._save()
        while (done := self._share_done()) < 1:
            losses = [self._step() for _ in range(STRETCH)]
            self._settle_up()
            event = self.common.random()
            if event < 0.25:
                self._restart(saved)
            elif event < 0.5:
                self._change()
            if event >= 0.25:
                saved = self._save()
            if done < 0.2:
                rss = resident()
        return {
            "steps": self.steps,
            "skipped": self.skipped,
            "faults": dict(self.faults),
            "restarts": self.restarts,
            "changes": self.changes,
            "error": self.error,
            "worst": self.worst,
            "rss": (rss, resident()),
            "loss": sum(losses) / len(losses),
            "digest": digest(self.model),
        }

    def _share_done(self) -> float:
        """The fraction of the plan that is done; the first worker's clock decides for all."""
        by_time = (time.monotonic() - self.start) / self.plan.seconds if self.plan.seconds else math.inf
        share = [min(by_time, self.steps / self.plan.steps) if self.plan.steps else by_time]
        dist.broadcast_object_list(share)
        # Memory and peers have settled, and things can be compared, only after everybody has come here.
        return float(share[0])

    def _build(self) -> None:
        torch.manual_seed(self.plan.seed)
        layers = nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        self.model = nn.Sequential(*layers)
        for name, param in self.model.named_parameters():
            param.register_hook(partial(self._spoil, name))  # type: ignore[no-untyped-call]
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=0.02)
        method, options = METHODS[self.method]
        self.state = compress_ddp(self.ddp, method, min_numel=64, memory=self.plan.memory, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.5)
        self._open_books()

    def _step(self) -> float:
        self.fault = self.own.choices([*FAULTS, ""], [*FAULTS.values(), 1 - sum(FAULTS.values())])[0]
        self.faults[self.fault] += bool(self.fault)
        self.scale = 10 ** self.own.uniform(1, 4)
        x = torch.randn(16, 32, generator=self.data)
        y = (x @ torch.linspace(-1, 1, 320).view(32, 10).sin()).argmax(1)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.ddp(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.steps += 1
        if self._book():
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        else:
            self.skipped += 1
        return float(loss.detach())

    def _spoil(self, name: str, grad: Tensor) -> Tensor:
        """The gradient with this step's fault in it, as the exchange gets it."""
        grad = grad.clone()
        if self.fault in ("nan", "inf") and self.own.random() < 0.5:
            grad.view(-1)[self.own.randrange(grad.numel())] = float(self.fault)
        elif self.fault == "huge":
            grad.mul_(self.scale)
        elif self.fault == "zero":
            grad.zero_()
        self.given[name] = grad
        return grad

    def _open_books(self) -> None:
        params = dict(self.model.named_parameters())
        self.given: dict[str, Tensor] = {}
        self.gone = {name: torch.zeros(param.shape, dtype=torch.float64) for name, param in params.items()}
        self.size = dict.fromkeys(params, 0.0)
        self.before = self._residuals()

    def _book(self) -> bool:
        """Add a step to the account; return whether all of it is finite, so that the optimizer may use it."""
        world, finite = dist.get_world_size(), True
        for name, param in self.model.named_parameters():
            mean = param.grad
            assert mean is not None
            if not bool(mean.isfinite().all()):
                finite = False
                continue
            # Every worker has the same mean: each takes its share of the sum out of its own account.
            self.gone[name] += self.given[name].double() - mean.double()
            self.size[name] += float(self.given[name].norm()) + float(mean.norm()) / world
        return finite

    def _settle_up(self) -> None:
        """Compare the sums that went in, came out and are still residual since the account began."""
        after = self._residuals()
        for name, gone in self.gone.items():
            lost = gone + (self.before[name] - after[name]).view(gone.shape)
            scale = torch.tensor([self.size[name], float(self.before[name].norm()), float(after[name].norm())]).double()
            dist.all_reduce(lost)
            dist.all_reduce(scale)
            share = float(lost.norm() / scale.sum().clamp_min(1e-30))
            # A NaN is what must be noticed, too, and no later share may take its place.
            if not math.isnan(self.error) and not share <= self.error:
                self.error, self.worst = share, self.state.exchange.methods.compressor.name
        self._open_books()

    def _residuals(self) -> dict[str, Tensor]:
        """The residuals of this worker by parameter; those that it keeps as an owner count for all."""
        kept = self.state.state_dict()["ranks"][str(self.rank)]
        waits = {name: torch.zeros(param.numel(), dtype=torch.float64) for name, param in self.model.named_parameters()}
        for name, tensor in kept["worker"].get("residual", {}).items():
            waits[name] += read(tensor, len(waits[name])).double()
        for name, buffers in kept["owned"].items():
            for lo, view in buffers.get("residual", {}).items():
                waits[name][int(lo) : int(lo) + view.numel()] += dist.get_world_size() * view.double()
        return waits

    def _change(self) -> None:
        self.method = (self.method + 1) % len(METHODS)
        name, options = METHODS[self.method]
        self.state.change(name, memory=self.plan.memory, **options)
        self.changes += 1

    def _save(self) -> bytes:
        file = io.BytesIO()
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "gradwire": self.state.state_dict(),
                "method": self.method,
            },
            file,
        )
        return file.getvalue()

    def _restart(self, saved: bytes) -> None:
        """Restart as if the process had died: only the saved state is left."""
        state: Mapping[str, Any] = torch.load(io.BytesIO(saved), weights_only=True)
        group = self.state.exchange.channel.group
        del self.ddp, self.state, self.optimizer, self.model
        gc.collect()
        dist.destroy_process_group(group)
        self.method = state["method"]
        self._build()
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.state.load_state_dict(state["gradwire"])
        self._open_books()
        self.restarts += 1


def resident() -> int:
    """The resident bytes of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def digest(model: nn.Module) -> str:
    """A digest of all parameters."""
    whole = torch.cat([param.detach().view(-1) for param in model.parameters()])
    return hashlib.sha256(whole.numpy().tobytes()).hexdigest()
