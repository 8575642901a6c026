"""A program that runs a training script until enough steps of its DistributedDataParallel were profiled; started by
``script.py``.

    python -m gradwire_lab.advise._probe FILE STEPS SCRIPT [ARGUMENT ...]

Invariants:
    * The script is not changed and does not notice.
    * Its own communication hook is not registered, because the step is to be timed without an exchange.
    * After ``STEPS`` steps and those that warm up, its profile is in FILE, and it ends as if it had called
      ``sys.exit()``.

Failure modes:
    A model that is sharded ends the script at the first step of its optimizer, because nothing is predicted for such
    models.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import ASGD, SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradwire.engine.adaptive import is_adaptive
from gradwire.frontends.ownership import is_sharded
from gradwire_lab.advise.profile import StepProfiler, shortest

__all__ = ["BUILT", "SHARDED", "WARM_UP", "profile_ddp"]

BUILT = {"built": True}
"""Content of FILE once the script has wrapped a model."""

SHARDED = {"sharded": True}
"""Content of FILE if the script trains a model under FSDP."""

WARM_UP = 2


def profile_ddp(
    done: Callable[[StepProfiler, bool, Sequence[Optimizer]], None], steps: int, built: Callable[[], None]
) -> None:
    """Profile the first DistributedDataParallel that is made.

    Args:
        done: function that gets the profiler, whether the model computes on the processor, and the optimizers of its
            parameters.
        steps: number of steps after which ``done`` is called, besides those that warm up.
        built: called when it was made.
    """
    profilers: dict[int, StepProfiler] = {}
    patched: Any = DistributedDataParallel
    init, forward, register = patched.__init__, patched.forward, patched.register_comm_hook

    def make(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        if not profilers:
            profilers[id(self)] = StepProfiler(self)
            register(self, None, profilers[id(self)].__call__)
            patched_model: Any = self
            patched_model._comm_hooks.clear()  # A hook of the script is ignored, and must not be refused.
            built()

    def step(self: DistributedDataParallel, *args: Any, **options: Any) -> Any:
        profiler = profilers.get(id(self))
        if (
            profiler is not None
            and self.training
            and torch.is_grad_enabled()
            and (profiler.handed_out or not profiler.begun)
        ):
            profiler.end()
            if len(profiler.steps) >= steps + WARM_UP:
                done(profiler, next(self.parameters()).device.type == "cpu", optimizers_of(self))
            profiler.begin()
        return forward(self, *args, **options)

    def ignore(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        if id(self) not in profilers:
            register(self, *args, **options)

    patched.__init__, patched.forward, patched.register_comm_hook = make, step, ignore


def watch_for_shards(where: Path) -> None:
    """End the script at the first step of an optimizer that trains a model under FSDP, unless it has wrapped another.

    Args:
        where: FILE, which is there as soon as a model was wrapped.
    """

    def stepped(optimizer: Optimizer, *_: Any) -> None:
        params = (param for group in optimizer.param_groups for param in group["params"])
        if not where.exists() and any(map(is_sharded, params)):
            where.write_text(json.dumps(SHARDED), encoding="utf-8")
            sys.exit(0)

    register_optimizer_step_post_hook(stepped)


def optimizers_of(model: nn.Module) -> list[Optimizer]:
    """Find the optimizers that have parameters of a model, whether or not they have made a step."""
    gc.collect()
    trained = set(map(id, model.parameters()))
    found = [each for each in gc.get_objects() if issubclass(type(each), Optimizer)]
    return [each for each in found if any(id(p) in trained for group in each.param_groups for p in group["params"])]


def described(optimizers: Sequence[Optimizer]) -> dict[str, Any] | None:
    """Describe the optimizers of a model as ``RunOptimizer`` does; None: there are none.

    Nobody knows whether a class that is neither Adam's kin nor SGD bears a residual.
    """
    if not optimizers:
        return None
    names = sorted({type(each).__name__ for each in optimizers})
    adaptive = any(map(is_adaptive, optimizers))
    plain = all(isinstance(each, SGD | ASGD) for each in optimizers)
    return {"name": " and ".join(names), "adaptive": adaptive if adaptive or plain else None}


def main() -> None:
    """Read the command line, and run the script."""
    file, steps, script, *arguments = sys.argv[1:]
    where = Path(file)

    def done(profiler: StepProfiler, busy: bool, optimizers: Sequence[Optimizer]) -> None:
        told = profiler.profile(WARM_UP, busy=busy, typical=shortest).as_dict()
        told["optimizer"] = described(optimizers)
        where.write_text(json.dumps(told), encoding="utf-8")
        sys.exit(0)

    profile_ddp(done, int(steps), lambda: print(json.dumps(BUILT), file=where.open("w", encoding="utf-8")))
    watch_for_shards(where)
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
