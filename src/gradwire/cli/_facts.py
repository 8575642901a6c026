"""What this installation consists of: each fact a value and the reason for it."""

from __future__ import annotations

import importlib.util
import os
import platform
from importlib import metadata
from typing import Any

import torch
import torch.distributed as dist

from gradwire._extras import declared
from gradwire.ops.native import kernel_info
from gradwire.version import __version__

__all__ = ["findings"]

Fact = dict[str, Any]


def findings() -> dict[str, dict[str, Fact]]:
    """Section -> item -> ``{"value": ..., "reason": ...}``.

    >>> sorted(findings())
    ['backends', 'extras', 'gpu', 'kernels', 'threads', 'versions']
    """
    return {
        "versions": _versions(), "kernels": _kernels(), "threads": _threads(), "backends": _backends(), "gpu": _gpu(),
        "extras": _extras(),
    }  # fmt: skip


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
    why_target = f"GRADWIRE_SIMD={forced}" if forced else "the best this CPU has"
    return {
        "in use": _fact("C++" if info["loaded"] else "torch reference", _why_kernels(info)),
        "target": _fact(info["target"], why_target if info["loaded"] else "the reference has none"),
        "targets": _fact(info["targets"], "supported by this CPU and built in, best first"),
        "openmp": _fact(info["openmp"], "built with OpenMP" if info["openmp"] else "kernels run on one thread"),
    }


def _why_kernels(info: dict[str, object]) -> str:
    if info["loaded"]:
        return "the extension gradwire._kernels is loaded"
    if info["reference_forced"]:
        return "torch reference in use because GRADWIRE_KERNELS=reference"
    if importlib.util.find_spec("gradwire._kernels") is None:
        return "torch reference in use because the extension is not there: no compiler was found at installation"
    return f"torch reference in use because the extension does not load: {info['reason']}"


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
        "triton": _fact(
            triton, "GPU kernels can be compiled" if triton else "not installed: pip install 'gradwire[triton]'"
        ),
        "gpu kernels": _fact("triton" if cuda and triton else None, _why_gpu_kernels(cuda, triton)),
    }


def _why_gpu_kernels(cuda: bool, triton: bool) -> str:
    if not cuda:
        return "there is no GPU to run them on"
    return "CUDA and triton are here" if triton else "torch reference in use on the GPU because triton is missing"


def _extras() -> dict[str, Fact]:
    facts = {}
    for extra, names in declared().items():
        missing = [name for name in names if not _installed(name)]
        reason = f"missing {', '.join(missing)}: pip install 'gradwire[{extra}]'" if missing else ", ".join(names)
        facts[extra] = _fact(not missing, reason)
    return facts


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
