"""Checks that must hold before a kernel is given an address."""

import ctypes

import torch
from torch import Tensor

from gradwire.errors import ConfigError

__all__ = ["check_rows", "check_status", "check_vector", "float32"]


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


def check_rows(what: str, tensor: Tensor, dtype: torch.dtype, like: Tensor, count: int) -> None:
    """Raise unless ``tensor`` is (W, count) with contiguous rows, of this dtype, and on the device of ``like``."""
    if (
        tensor.dtype is not dtype
        or tensor.dim() != 2
        or tensor.size(1) != count
        or (count > 1 and tensor.stride(1) != 1)
        or tensor.device != like.device
    ):
        raise ConfigError(
            f"{what} must be a {dtype} tensor of shape (W, {count}) with contiguous rows on {like.device},"
            f" got {_form(tensor)}"
        )


def check_status(what: str, status: Tensor | None, like: Tensor) -> None:
    """Raise unless ``status`` is None or one int32."""
    if status is not None:
        check_vector(what, status, torch.int32, like, 1)


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()} on {tensor.device}"
