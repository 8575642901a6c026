"""Figures of one worker: a digest of its model, its memory, its network interface."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import resource
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradwire_lab.netlab.names import INTERFACE
from gradwire_lab.netlab.system import own_counters

__all__ = [
    "OnDevice",
    "digest",
    "digest_of_tensors",
    "forget_peak",
    "interface_bytes",
    "on_cpu",
    "peak_bytes",
    "resident_bytes",
    "tensor_bytes",
]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def tensor_bytes(saved: Any) -> int:
    """The bytes of all tensors in nested dicts and lists.

    >>> tensor_bytes({"worker": {"residual": {"weight": torch.zeros(3)}}, "owned": [[0, torch.zeros(2)]], "step": 7})
    20
    """
    if isinstance(saved, Tensor):
        return saved.nbytes
    inside = saved.values() if isinstance(saved, Mapping) else saved if isinstance(saved, list | tuple) else ()
    return sum(tensor_bytes(each) for each in inside)


def digest(model: nn.Module) -> str:
    """A SHA-256 of all parameters' bits: equal on two workers if and only if their models are."""
    return digest_of_tensors(model.parameters())


def digest_of_tensors(tensors: Iterable[Tensor]) -> str:
    """A SHA-256 of the bits of tensors, in their order."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def forget_peak() -> None:
    """Reset ``peak_bytes`` if the system allows it, because a worker makes many runs.

    What earlier ones have left is collected and given back first, or a peak would depend on who was before.
    """
    gc.collect()
    # Only glibc keeps what was freed, and has this; OSError and TypeError are systems without such a C library.
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        _CLEAR.write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """The largest number of bytes that this process has had resident at one time."""
    unit = 1 if sys.platform == "darwin" else 1024
    return _status("VmHWM") or unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def resident_bytes() -> int | None:
    """The number of bytes that this process has resident now; None if the system does not tell."""
    return _status("VmRSS")


def _status(name: str) -> int | None:
    with suppress(OSError):
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return None


def interface_bytes() -> int:
    """The bytes that this worker's interface in a lab has sent, as the kernel counts them."""
    return own_counters()[INTERFACE][1]


class OnDevice(nn.Module):
    """A model on a device, for a task whose test set is on the CPU."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.model, self.device = model, device

    def reset(self) -> None:
        """Call the model's own ``reset``, if it has one."""
        forget = getattr(self.model, "reset", None)
        if forget is not None:
            forget()

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's output, on the CPU."""
        out: Tensor = self.model(x.to(self.device))
        return out.cpu()


def on_cpu(model: nn.Module, device: torch.device) -> nn.Module:
    """Wrap a model so that its inputs and outputs are on the CPU."""
    return model if device.type == "cpu" else OnDevice(model, device)
