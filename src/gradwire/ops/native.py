"""The C++ kernels: loaded here or not, and why.

Two environment variables, read on import:

    GRADWIRE_KERNELS=auto|reference          reference: the torch versions everywhere, also on a GPU
    GRADWIRE_SIMD=avx512|avx2|neon|scalar    this SIMD target in place of the best that the CPU has
"""

import importlib
import importlib.util
import os
from typing import Any

import torch  # first: the extension shares the OpenMP runtime that torch brings along

from gradwire.errors import ConfigError, require

__all__ = ["kernel_info", "kernels", "reference_forced"]


def _forced() -> bool:
    choice = os.environ.get("GRADWIRE_KERNELS", "auto")
    require(choice in ("auto", "reference"), "GRADWIRE_KERNELS", "auto or reference", choice)
    return choice == "reference"


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


reference_forced = _forced()
kernels, _reason = _load()
_select_target()


def kernel_info() -> dict[str, object]:
    """Which kernels run here, and why: what ``gradwire doctor`` prints.

    Returns:
        ``loaded``: whether the C++ kernels run on the CPU; ``reason``: why not, or None; ``targets``: the SIMD targets
        of this CPU, best first; ``target``: the one in use, or None; ``openmp``: whether they were built with threads;
        ``threads``: how many the calling thread gives them; ``triton``: whether GPU kernels can be imported;
        ``reference_forced``: whether GRADWIRE_KERNELS=reference.

    >>> sorted(kernel_info())
    ['loaded', 'openmp', 'reason', 'reference_forced', 'target', 'targets', 'threads', 'triton']
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
    }
