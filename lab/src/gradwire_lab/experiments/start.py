"""Parameters that a run begins with, in place of those that its seed draws."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gradwire.errors import ConfigError

__all__ = ["begin_with", "check_start", "digest_of_start"]


def check_start(params: Mapping[str, Tensor], model: nn.Module, name: str) -> None:
    """Refuse parameters of another model.

    Args:
        params: parameters by name.
        model: model that is to begin with them; one on ``meta`` will do.
        name: name of the model.

    Raises:
        ConfigError: a name or a shape differs; it says which.

    Example:
        >>> check_start({"weight": torch.zeros(2, 3)}, nn.Linear(3, 1, bias=False), "a layer")
        Traceback (most recent call last):
        gradwire.errors.ConfigError: start must have the parameters of a layer: weight must be (1, 3), got (2, 3)
    """
    wanted = {key: tuple(param.shape) for key, param in model.named_parameters()}
    found = {key: tuple(value.shape) for key, value in params.items()}
    for key in sorted({*wanted, *found}):
        if wanted.get(key) != found.get(key):
            must, got = (each.get(key, "missing") for each in (wanted, found))
            raise ConfigError(f"start must have the parameters of {name}: {key} must be {must}, got {got}")


def begin_with(params: Mapping[str, Tensor], model: nn.Module, name: str) -> None:
    """Copy parameters into a model; its buffers stay unchanged.

    Raises:
        ConfigError: the parameters belong to another model, as for ``check_start``.
    """
    check_start(params, model, name)
    with torch.no_grad():
        for key, param in model.named_parameters():
            param.copy_(params[key])


def digest_of_start(params: Mapping[str, Tensor]) -> str:
    """A SHA-256 of names, shapes, types and bits, because a run that begins with other parameters is another run."""
    sha = hashlib.sha256()
    for name, value in sorted(params.items()):
        sha.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        sha.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
