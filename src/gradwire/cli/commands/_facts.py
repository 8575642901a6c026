"""Facts about this installation: each has a value and the reason for it."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradwire._extras import declared, install
from gradwire._short_traceback import VARIABLE, check_variable
from gradwire.errors import ConfigError, nearest, require
from gradwire.kernels.native import SLOWER, kernel_info, problem, remedy
from gradwire.version import __version__

__all__ = ["environment", "findings", "wrong"]

Fact = dict[str, Any]


def findings() -> dict[str, dict[str, Fact]]:
    """Collect the facts: section -> item -> ``{"value": ..., "reason": ...}``.

    >>> sorted(findings())
    ['backends', 'environment', 'extras', 'gpu', 'kernels', 'threads', 'versions']
    """
    return {
        "versions": _versions(),
        "kernels": _kernels(),
        "threads": _threads(),
        "backends": _backends(),
        "gpu": _gpu(),
        "extras": _extras(),
        "environment": environment(),
    }


def _fact(value: Any, reason: str) -> Fact:
    return {"value": value, "reason": reason}


def _versions() -> dict[str, Fact]:
    return {
        "gradwire": _fact(__version__, "as installed"),
        "python": _fact(platform.python_version(), f"{platform.python_implementation()} on {platform.platform()}"),
        "torch": _fact(
            torch.__version__, f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
        ),
    }


def _kernels() -> dict[str, Fact]:
    info = kernel_info()
    forced = os.environ.get("GRADWIRE_SIMD")
    why_target = f"GRADWIRE_SIMD={forced}" if forced and not info["problem"] else "the best this CPU has"
    return {
        "in use": _fact(_kernels_in_use(info), _why_kernels(info)),
        "target": _fact(info["target"], why_target if info["loaded"] else "the reference has none"),
        "targets": _fact(info["targets"], "supported by this CPU and built in, best first"),
        "openmp": _fact(info["openmp"], "built with OpenMP" if info["openmp"] else "kernels run on one thread"),
    }


def _kernels_in_use(info: dict[str, object]) -> str | None:
    if info["problem"]:
        return None
    return "C++" if info["loaded"] else "torch reference"


def _why_kernels(info: dict[str, object]) -> str:
    if info["problem"]:
        return f"no operation runs: {info['problem']}"
    if info["loaded"]:
        return "the extension gradwire._kernels is loaded"
    if info["reference_forced"]:
        return "torch reference in use because GRADWIRE_KERNELS=reference"
    if importlib.util.find_spec("gradwire._kernels") is None:
        why = "the extension is not there: no compiler was found at installation"
    else:
        why = f"the extension does not load: {info['reason']}"
    return f"torch reference in use because {why}. {SLOWER} For the kernels, {remedy()}"


def _threads() -> dict[str, Fact]:
    omp = os.environ.get("OMP_NUM_THREADS")
    return {
        "torch": _fact(
            torch.get_num_threads(), f"OMP_NUM_THREADS={omp}" if omp else "torch's default for this machine"
        ),
        "OMP_NUM_THREADS": _fact(
            omp, "set in the environment" if omp else "not set; torchrun sets 1 for several workers"
        ),
        "cores": _fact(_cores(), "this process may run on them"),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _backends() -> dict[str, Fact]:
    if not dist.is_available():
        return {"torch.distributed": _fact(False, "torch was built without it")}
    built = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
    return {
        name: _fact(here, "built into torch" if here else "not in this build of torch") for name, here in built.items()
    }


def _gpu() -> dict[str, Fact]:
    cuda, triton = torch.cuda.is_available(), bool(kernel_info()["triton"])
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else []
    missing = "no GPU is visible" if torch.version.cuda else "this torch is a CPU build"
    return {
        "cuda": _fact(cuda, ", ".join(names) if cuda else missing),
        "triton": _fact(triton, "GPU kernels can be compiled" if triton else f"not installed: {install('triton')}"),
        "gpu kernels": _fact("triton" if cuda and triton else None, _why_gpu_kernels(cuda, triton)),
    }


def _why_gpu_kernels(cuda: bool, triton: bool) -> str:
    if not cuda:
        return "there is no GPU to run them on"
    return "CUDA and triton are here" if triton else "torch reference in use on the GPU because triton is missing"


def _of_kernels(name: str, _text: str) -> None:
    """Raise the error of a variable that was read when gradwire was imported; the error then begins with its name."""
    if problem is not None and problem.startswith(name):
        raise ConfigError(problem)


def _integer(name: str, least: int, text: str) -> None:
    right = text.strip().isdecimal() and int(text) >= least
    require(right, name, f"an integer >= {least}", text)


def _seconds(name: str, text: str) -> None:
    try:
        right = 0 < float(text) < 1e9
    except ValueError:
        right = False
    require(right, name, "seconds > 0", text)


VARIABLES: dict[str, Callable[[str], object]] = {
    **{name: partial(_of_kernels, name) for name in ("GRADWIRE_KERNELS", "GRADWIRE_SIMD")},
    "GRADWIRE_SERVERS": lambda text: require(bool(text), "GRADWIRE_SERVERS", "endpoints separated by commas", text),
    "GRADWIRE_KEYS": lambda text: require(Path(text).is_dir(), "GRADWIRE_KEYS", "a folder of gradwire keygen", text),
    "GRADWIRE_RANK": partial(_integer, "GRADWIRE_RANK", 0),
    "GRADWIRE_WORLD_SIZE": partial(_integer, "GRADWIRE_WORLD_SIZE", 1),
    "GRADWIRE_NUM_SERVERS": partial(_integer, "GRADWIRE_NUM_SERVERS", 1),
    "GRADWIRE_INSECURE": lambda text: require(text in ("", "0", "1"), "GRADWIRE_INSECURE", "0 or 1", text),
    "GRADWIRE_START_TIMEOUT": partial(_seconds, "GRADWIRE_START_TIMEOUT"),
    "GRADWIRE_SERVER_TIMEOUT": partial(_seconds, "GRADWIRE_SERVER_TIMEOUT"),
    "GRADWIRE_HOST": str,
    "GRADWIRE_SERVER_OPTIONS": str,
    "GRADWIRE_METHOD_FILES": str,
    "GRADWIRE_RUN": lambda text: require(text in ("", "watch", "apply"), "GRADWIRE_RUN", "watch or apply", text),
    VARIABLE: check_variable,
}
"""Every variable that gradwire reads, and what raises ConfigError where its value cannot work."""


def environment() -> dict[str, Fact]:
    """The variables of gradwire that are set, each with its error if it has one."""
    facts = {name: _fact(text, _why(name, text)) for name, text in os.environ.items() if name.startswith("GRADWIRE_")}
    return facts or {"GRADWIRE_...": _fact(None, "none of gradwire's variables is set")}


def wrong() -> list[str]:
    """The variables whose value cannot work, each with the values that are allowed."""
    found = (_complaint(name, text) for name, text in os.environ.items() if name in VARIABLES)
    return [said for said in found if said is not None]


def _why(name: str, text: str) -> str:
    if name not in VARIABLES:
        return f"gradwire reads no variable of this name: {nearest(name, VARIABLES)}"
    return _complaint(name, text) or "read from the environment"


def _complaint(name: str, text: str) -> str | None:
    try:
        VARIABLES[name](text)
    except ConfigError as error:
        return str(error)
    return None


def _extras() -> dict[str, Fact]:
    facts = {}
    for extra, distributions in declared().items():
        names = [name for name, here in distributions.items() if here]
        missing = [name for name in names if not _installed(name)]
        reason = f"missing {', '.join(missing)}: {install(extra)}" if missing else ", ".join(names)
        facts[extra] = _fact(not missing, reason) if names else _fact(None, "none of its packages is for this platform")
    return facts


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
