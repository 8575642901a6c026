"""The profile of a user's own training script: one worker of ``torchrun`` runs it until it was watched long enough."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gradwire.errors import ConfigError, is_int, require
from gradwire_lab.advise._probe import SHARDED, WARM_UP
from gradwire_lab.advise.profile import Profile
from gradwire_lab.advise.run_optimizer import RunOptimizer

__all__ = ["profile_script"]


def profile_script(
    script: Path, arguments: Sequence[str] = (), *, steps: int = 5, deadline: float = 120.0
) -> tuple[Profile, RunOptimizer | None]:
    """Measure how long a step of a script takes without an exchange, and when its buckets are ready; and find its
    optimizer.

    Args:
        script: one that ``torchrun`` can run, which wraps its model into DistributedDataParallel.
        arguments: arguments of the script.
        steps: number of steps that count, after two others, >= 1.
        deadline: seconds for all of it, > 0.

    Returns:
        The profile, and the optimizers of the model together; None: it has none.

    Raises:
        ConfigError: no such file; it failed, ended too early, did not end in time, or shards its model: the text says
            which.
    """
    require(script.is_file(), "--script", "a file", str(script))
    require(is_int(steps, 1), "steps", "an integer >= 1", steps)
    require(deadline > 0, "--deadline", "seconds > 0", deadline)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "profile.json")
        code, said = _run(script, arguments, file, steps, deadline)
        told = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    if told is not None and "buckets" in told:
        found = told.pop("optimizer", None)
        optimizer = None if found is None else RunOptimizer(**found, source="the script's own")
        return Profile.from_dict(told), optimizer
    if told == SHARDED:
        raise ConfigError(
            f"--script {script} shards its model, and what is predicted is a step of DistributedDataParallel: "
            "gradwire.compress_fsdp(model) measures and decides while it trains (docs/fsdp.md); for a prediction wrap "
            "the model into DistributedDataParallel instead, on one worker"
        )
    raise ConfigError(f"--script {script} {_complaint(told is not None, code, said, steps, deadline)}")


def _run(script: Path, arguments: Sequence[str], file: Path, steps: int, deadline: float) -> tuple[int | None, str]:
    """Run the script; return its exit code, which is None after the deadline, and its last line."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    probe = ["-m", "gradwire_lab.advise._probe", str(file), str(steps), str(script), *arguments]
    process = subprocess.Popen(
        [*torchrun, *probe],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM if process.poll() is None else signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=10)
    return process.returncode, said


def _complaint(built: bool, code: int | None, said: str, steps: int, deadline: float) -> str:
    needed = f"{steps + WARM_UP + 1} forward passes in training mode with their backward passes"
    if code:
        return f"failed with exit code {code}: {_cause(said)}"
    if code is None:
        what = f"did not make {needed}" if built else "built no DistributedDataParallel"
        return f"{what} within the {deadline:g} s of --deadline"
    return (
        f"ended before it made {needed}" if built else "must wrap its model into DistributedDataParallel: it built none"
    )


def _cause(said: str) -> str:
    """The exception of the script: the first line of a traceback that names one, or else the last line of all."""
    lines = [re.sub(r"^\[rank\d+\]: ", "", line.strip()) for line in said.splitlines()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return named[0] if named else (lines[-1] if lines else "it said nothing")
