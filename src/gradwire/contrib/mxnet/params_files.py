"""A model's parameters and buffers in a safetensors file, by MXNet's numbering."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from gradwire._files import replace_file
from gradwire.errors import ConfigError, is_int, require

__all__ = ["load_symbol", "params_file", "save_symbol", "states_file"]


def params_file(prefix: str, epoch: int) -> Path:
    """Name the file of the parameters after so many epochs.

    >>> params_file("models/digits", 3).name
    'digits-0003.safetensors'
    """
    require(is_int(epoch, 0), "epoch", "an integer >= 0", epoch)
    return Path(f"{prefix}-{epoch:04d}.safetensors")


def states_file(prefix: str, epoch: int) -> Path:
    """Name the file of the optimizer's states after so many epochs."""
    return params_file(prefix, epoch).with_suffix(".states")


def save_symbol(symbol: nn.Module, prefix: str, epoch: int) -> Path:
    """Write all parameters and buffers; an existing file is replaced when everything is on the disk."""
    path = params_file(prefix, epoch)
    require(path.parent.is_dir(), "prefix", "in a folder that exists", prefix)
    replace_file(path, lambda temporary: save_model(symbol, str(temporary)))
    return path


def load_symbol(symbol: nn.Module, prefix: str, epoch: int) -> None:
    """Load a file of ``save_symbol`` into a module of the same shape.

    Raises:
        ConfigError: no such file, or one of another model.
    """
    path = params_file(prefix, epoch)
    try:
        load_model(symbol, path)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ConfigError(f"checkpoint {path} cannot be read into {type(symbol).__name__}: {error}") from error
