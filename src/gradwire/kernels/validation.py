"""Checks that must hold before a kernel is given an address."""

import ctypes

import torch
from torch import Tensor

from gradwire.errors import ConfigError

__all__ = ["check_vector", "float32"]


def float32(value: float) -> float:
    """Round ``value`` to float32, as the kernels see it."""
    return ctypes.c_float(value).value


def check_vector(what: str, tensor: Tensor, dtype: torch.dtype, like: Tensor, count: int | None = None) -> None:
    """Raise unless ``tensor`` is flat, contiguous, of this dtype and size, and on the device of ``like``."""
    if (
        tensor.dtype is not dtype
        or tensor.dim() != 1
        or not tensor.is_contiguous()
        or tensor.device != like.device
        or (count is not None and tensor.numel() != count)
    ):
        size = "" if count is None else f" of {count} elements"
        raise ConfigError(
            f"{what} must be a flat contiguous {dtype} tensor{size} on {like.device}, got {_form(tensor)}"
        )


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()} on {tensor.device}"
