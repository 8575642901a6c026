"""A program that runs a training script until enough steps of its DistributedDataParallel were profiled; started by
``script.py``.

    python -m gradwire.advise._probe FILE STEPS SCRIPT [ARGUMENT ...]

Law: the script is not changed and does not notice. Its own communication hook is not registered, for the step is to be
timed without an exchange. When it has made ``STEPS`` steps and those that warm up, its profile is in FILE and it ends
as if it had called ``sys.exit()``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from gradwire.adaptive import is_adaptive
from gradwire.advise.profile import StepProfiler, shortest

__all__ = ["BUILT", "WARM_UP", "profile_ddp"]

BUILT = {"built": True}
"""Content of FILE once the script has wrapped a model."""

WARM_UP = 2


def profile_ddp(
    done: Callable[[StepProfiler, bool, Optimizer | None], None], steps: int, built: Callable[[], None]
) -> None:
    """Profile the first DistributedDataParallel that is made.

    Args:
        done: function that gets the profiler, whether the model computes on the processor, and the first optimizer
            that made a step, if there is one.
        steps: number of steps after which ``done`` is called, besides those that warm up.
        built: called when it was made.
    """
    profilers: dict[int, StepProfiler] = {}
    stepped: list[Optimizer] = []
    register_optimizer_step_post_hook(lambda optimizer, *_: stepped.append(optimizer) if not stepped else None)
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
                done(profiler, next(self.parameters()).device.type == "cpu", next(iter(stepped), None))
            profiler.begin()
        return forward(self, *args, **options)

    def ignore(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        if id(self) not in profilers:
            register(self, *args, **options)

    patched.__init__, patched.forward, patched.register_comm_hook = make, step, ignore


def main() -> None:
    """Read the command line, and run the script."""
    file, steps, script, *arguments = sys.argv[1:]
    where = Path(file)

    def done(profiler: StepProfiler, busy: bool, optimizer: Optimizer | None) -> None:
        told = profiler.profile(WARM_UP, busy=busy, typical=shortest).as_dict()
        if optimizer is not None:
            told["optimizer"] = {"name": type(optimizer).__name__, "adaptive": is_adaptive(optimizer)}
        where.write_text(json.dumps(told), encoding="utf-8")
        sys.exit(0)

    profile_ddp(done, int(steps), lambda: print(json.dumps(BUILT), file=where.open("w", encoding="utf-8")))
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
