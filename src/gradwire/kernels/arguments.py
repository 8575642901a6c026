"""Marks in annotations that describe an argument; schema, checks and the call follow from them.


    def sign_encode(x: Floats, codes: Annotated[Tensor, Flat(torch.uint8, "sign_bytes(n)", written=True)]) -> None

A size is an expression over what is known of the call: parameters, functions of the operation's module, and symbols. A
name that nothing else explains is a symbol, and the first tensor whose size it is defines it: here ``n`` is that of x.
A field of payloads does so only where no flat tensor has that size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import torch
from torch import Tensor

from gradwire.errors import ConfigError, require

__all__ = [
    "Flat",
    "Flats",
    "Floats",
    "Names",
    "Rows",
    "Status",
    "Where",
    "Written",
    "refuse",
    "refuse_flat",
    "refuse_none",
    "refuse_rows",
]


@dataclass(frozen=True)
class Flat:
    """A contiguous tensor of one dimension.

    A kernel is given its address, 0 for None; where there are several dtypes, then the place of its own among them.

    Args:
        dtype: dtype of the tensor; a tuple: any of these.
        size: expression for the number of elements; None: any.
        written: true: the operation changes the tensor.
        shaped: true: who calls the operation from Python may give a tensor of any shape, which is taken as flat: to
            make a view costs half of what the rest of a call does.
    """

    dtype: torch.dtype | tuple[torch.dtype, ...]
    size: str | None = None
    written: bool = False
    shaped: bool = False


@dataclass(frozen=True)
class Flats:
    """Several contiguous tensors of one dimension, each of its own size: ``Sequence[Tensor]``.

    A kernel is given a list of their addresses, 0 where there are no elements.

    Args:
        dtype: dtype of the tensors; a tuple: any of these.
        sizes: true: a list of the tensors' sizes follows.
    """

    dtype: torch.dtype | tuple[torch.dtype, ...]
    sizes: bool = False
    written = False


@dataclass(frozen=True)
class Rows:
    """A payload field of all ranks: shape ``(ranks, length)``, and each row contiguous.

    A kernel is given the address of the first row and the bytes from one row to the next; ``ranks`` is a symbol.

    Args:
        dtype: dtype of the tensor; a tuple: any of these.
        length: expression for the elements of a row.
    """

    dtype: torch.dtype | tuple[torch.dtype, ...]
    length: str
    written = False


@dataclass(frozen=True)
class Names:
    """One of several words; the kernel gets its index among them."""

    known: tuple[str, ...]


@dataclass(frozen=True)
class Where:
    """A number that fulfils a condition.

    Args:
        condition: expression over parameters and symbols.
        allowed: the same for the reader of an error; what is in braces is an expression, too.
    """

    condition: str
    allowed: str


Floats = Annotated[Tensor, Flat(torch.float32, "n", shaped=True)]
"""n elements of a gradient's shape, or flat, that are read."""

Written = Annotated[Tensor, Flat(torch.float32, "n", written=True, shaped=True)]
"""n elements of a gradient's shape, or flat, that are changed."""

Status = Annotated[Tensor | None, Flat(torch.int32, "1", written=True)]
"""Bit 0 is set where something is not finite; None: nobody asks."""


def refuse(what: str, allowed: str, value: Any) -> NoReturn:
    """Raise the error for a number or a word."""
    require(False, what, allowed, value)
    raise AssertionError


def refuse_flat(what: str, tensor: Tensor, dtypes: Sequence[torch.dtype], size: int | None, like: Tensor) -> NoReturn:
    """Raise the error for a tensor that is not as ``Flat`` says."""
    elements = "" if size is None else f" of {size} elements"
    raise ConfigError(
        f"{what} must be a flat contiguous {_listed(dtypes)} tensor{elements} on {like.device}, got {_form(tensor)}"
    )


def refuse_none(tensors: Mapping[str, Tensor | None]) -> None:
    """Raise the error for a tensor that is None, if there is one."""
    for what, tensor in tensors.items():
        require(tensor is not None, what, "a tensor", tensor)


def refuse_rows(
    what: str, tensor: Tensor, dtypes: Sequence[torch.dtype], ranks: int, length: int, like: Tensor
) -> NoReturn:
    """Raise the error for a tensor that is not as ``Rows`` says."""
    raise ConfigError(
        f"{what} must be a {_listed(dtypes)} tensor of shape ({ranks}, {length}) with contiguous rows on"
        f" {like.device}, got {_form(tensor)}"
    )


def _listed(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(map(str, dtypes))


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()} on {tensor.device}"
