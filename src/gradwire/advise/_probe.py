"""A program that runs a training script until enough steps of its DistributedDataParallel were watched; started by
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

from gradwire.advise.profile import Watch, shortest

__all__ = ["BUILT", "WARM_UP", "watch_ddp"]

BUILT = {"built": True}
"""Content of FILE once the script has wrapped a model."""

WARM_UP = 2


def watch_ddp(done: Callable[[Watch, bool], None], steps: int, built: Callable[[], None]) -> None:
    """Watch the first DistributedDataParallel that is made.

    Args:
        done: gets the watch, and whether the model computes on the processor.
        steps: number of steps after which ``done`` is called, besides those that warm up.
        built: called when it was made.
    """
    watches: dict[int, Watch] = {}
    patched: Any = DistributedDataParallel
    init, forward, register = patched.__init__, patched.forward, patched.register_comm_hook

    def make(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        if not watches:
            watches[id(self)] = Watch(self)
            register(self, None, watches[id(self)].__call__)
            patched_model: Any = self
            patched_model._comm_hooks.clear()  # A hook of the script is ignored, and must not be refused.
            built()

    def step(self: DistributedDataParallel, *args: Any, **options: Any) -> Any:
        watch = watches.get(id(self))
        if watch is not None and self.training and torch.is_grad_enabled() and (watch.handed_out or not watch.begun):
            watch.end()
            if len(watch.steps) >= steps + WARM_UP:
                done(watch, next(self.parameters()).device.type == "cpu")
            watch.begin()
        return forward(self, *args, **options)

    def ignore(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        if id(self) not in watches:
            register(self, *args, **options)

    patched.__init__, patched.forward, patched.register_comm_hook = make, step, ignore


def main() -> None:
    """Read the command line, and run the script."""
    file, steps, script, *arguments = sys.argv[1:]
    where = Path(file)

    def done(watch: Watch, busy: bool) -> None:
        where.write_text(json.dumps(watch.profile(WARM_UP, busy=busy, typical=shortest).as_dict()), encoding="utf-8")
        sys.exit(0)

    watch_ddp(done, int(steps), lambda: print(json.dumps(BUILT), file=where.open("w", encoding="utf-8")))
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
