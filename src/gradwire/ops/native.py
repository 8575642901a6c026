"""The C++ kernels: loaded here or not, and why.

Two environment variables, read on import:

    GRADWIRE_KERNELS=auto|reference          reference: the torch versions everywhere, also on a GPU
    GRADWIRE_SIMD=avx512|avx2|neon|scalar    this SIMD target in place of the best that the CPU has

Law: a value that cannot work refuses every operation, with the reason, and not the import: ``gradwire doctor`` must
run to say so.
"""

import importlib
import importlib.util
import os
from typing import Any

import torch  # first: the extension shares the OpenMP runtime that torch brings along

from gradwire.errors import ConfigError, require

__all__ = ["check_environment", "kernel_info", "kernels", "problem", "reference_forced"]

_CHOICES = ("auto", "reference")


def _load() -> tuple[Any, str | None]:
    """The extension module, or None and the reason."""
    if reference_forced:
        return None, "GRADWIRE_KERNELS=reference"
    try:
        return importlib.import_module("gradwire._kernels"), None
    except ModuleNotFoundError:
        return None, "the C++ extension is not built: no working C++ compiler was found on installation"
    except ImportError as error:
        return None, f"{type(error).__name__}: {error}"


def _select_target() -> None:
    name = os.environ.get("GRADWIRE_SIMD")
    if not name or reference_forced:
        return
    if kernels is None:
        raise ConfigError(f"GRADWIRE_SIMD={name} needs the C++ kernels, which are not loaded ({_reason})")
    try:
        kernels.set_target(name)
    except ValueError as error:
        raise ConfigError(f"GRADWIRE_SIMD: {error}") from None


def _find_problem() -> str | None:
    choice = os.environ.get("GRADWIRE_KERNELS", "auto")
    try:
        require(choice in _CHOICES, "GRADWIRE_KERNELS", " or ".join(_CHOICES), choice)
        _select_target()
    except ConfigError as error:
        return str(error)
    return None


reference_forced = os.environ.get("GRADWIRE_KERNELS") == "reference"
kernels, _reason = _load()
problem = _find_problem()
"""What is wrong with one of the two variables; None: nothing."""


def check_environment() -> None:
    """Refuse to go on where one of the two variables cannot work.

    Raises:
        ConfigError: naming it.
    """
    if problem is not None:
        raise ConfigError(problem)


def kernel_info() -> dict[str, object]:
    """Which kernels run here, and why: what ``gradwire doctor`` prints.

    Returns:
        ``loaded``: whether the C++ kernels run on the CPU; ``reason``: why not, or None; ``targets``: the SIMD targets
        of this CPU, best first; ``target``: the one in use, or None; ``openmp``: whether they were built with threads;
        ``threads``: how many the calling thread gives them; ``triton``: whether GPU kernels can be imported;
        ``reference_forced``: whether GRADWIRE_KERNELS=reference; ``problem``: why no operation runs at all, or None.

    >>> sorted(kernel_info())
    ['loaded', 'openmp', 'problem', 'reason', 'reference_forced', 'target', 'targets', 'threads', 'triton']
    """
    loaded = kernels is not None
    return {
        "loaded": loaded,
        "reason": _reason,
        "targets": kernels.targets() if loaded else [],
        "target": kernels.target() if loaded else None,
        "openmp": kernels.openmp if loaded else False,
        "threads": torch.get_num_threads(),
        "triton": importlib.util.find_spec("triton") is not None,
        "reference_forced": reference_forced,
        "problem": problem,
    }
