"""Loading of the C++ kernels, and the reason if they are not loaded.

Two environment variables, read on import:

    GRADWIRE_KERNELS=auto|reference          reference: the torch versions everywhere, also on a GPU
    GRADWIRE_SIMD=avx512|avx2|neon|scalar    this SIMD target in place of the best that the CPU has

Failure modes:
    A value that cannot work refuses every operation, with the reason, and not the import, because ``gradwire doctor``
    must run to report it.
"""

import contextlib
import importlib
import importlib.util
import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import torch  # first: the extension shares the OpenMP runtime that torch brings along

from gradwire._extras import source
from gradwire._once import once
from gradwire.errors import ConfigError, require

__all__ = [
    "SLOWER",
    "check_environment",
    "kernel_info",
    "kernels",
    "problem",
    "reference_forced",
    "remedy",
    "warn_without_kernels",
]

_CHOICES = ("auto", "reference")


def _load() -> tuple[Any, str | None]:
    """Load the extension module; return it, or None and the reason."""
    if reference_forced:
        return None, "GRADWIRE_KERNELS=reference"
    try:
        return importlib.import_module("gradwire._kernels"), None
    except ModuleNotFoundError:
        return None, (
            "the C++ extension is not built: no working C++ compiler was found, or compiling failed, when gradwire was "
            "installed"
        )
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
"""The error in one of the two variables; None: there is none."""


def check_environment() -> None:
    """Refuse to continue if one of the two environment variables has an invalid value.

    Raises:
        ConfigError: a value is invalid; the message names the variable.
    """
    if problem is not None:
        raise ConfigError(problem)


SLOWER = (
    "Plain torch gives the same bits, and takes 4 to 100 times as long to encode and decode on the CPU "
    "(2 bits of 2^20 elements: 5.6 ms in place of 0.13 ms)."
)
"""Measured on one core of an AMD EPYC with AVX-512; docs/install.md has the table."""

COMPILERS = {"darwin": "xcode-select --install"}
OTHERWISE = "Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; conda: conda install cxx-compiler"


def remedy() -> str:
    """Say what to do about missing kernels: the commands, for the place from which this package was installed.

    >>> remedy().startswith("install a C++ compiler (")
    True
    """
    place, editable = source()
    what = f"-e {shlex.quote(place)}" if editable else shlex.quote(place)
    again = f"{shlex.quote(sys.executable)} -m pip install --force-reinstall --no-deps --no-cache-dir {what}"
    return f"install a C++ compiler ({COMPILERS.get(sys.platform, OTHERWISE)}), and then gradwire once more: {again}"


@once
def warn_without_kernels() -> None:
    """Warn once a process that plain torch does the work of missing kernels, unless the user asked for it."""
    if kernels is not None or reference_forced:
        return
    # The line that is shown is the user's own, however deep in this package the call is made.
    # Contexts of this package that decorate its functions run in contextlib.
    inside, frame, depth = (str(Path(__file__).parents[1]), contextlib.__file__), sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(
        f"gradwire works without its C++ kernels ({_reason}). {SLOWER} For the kernels, {remedy()}\n"
        "To do without them, and without this warning, set GRADWIRE_KERNELS=reference.",
        RuntimeWarning,
        stacklevel=depth,
    )


def kernel_info() -> dict[str, object]:
    """Say which kernels run here, and why: what ``gradwire doctor`` prints.

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
