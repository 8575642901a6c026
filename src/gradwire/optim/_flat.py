"""Parameters as one flat float32 tensor, the form in which an exchange takes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.engine.part import nonfinite
from gradwire.errors import ConfigError

__all__ = ["FlatParameters", "any_nonfinite", "spans_of"]


class FlatParameters:
    """A flat tensor with a slot for each parameter, in order.

    Args:
        params: dense floating-point tensors on one device; their values are not copied.
        offload: true: the slots are in the host's memory, wherever the parameters are.
    """

    def __init__(self, params: Sequence[Tensor], offload: bool = False) -> None:
        numel, device = sum(param.numel() for param in params), params[0].device
        place = torch.device("cpu") if offload else device
        # Pinned where they travel to a GPU, in whose memory they would not fit.
        pinned = place.type == "cpu" and device.type == "cuda"
        self.data = torch.zeros(numel, dtype=torch.float32, device=place, pin_memory=pinned)
        parts = torch.split(self.data, [param.numel() for param in params])
        self.views = [part.view(param.shape) for part, param in zip(parts, params, strict=True)]

    @torch.no_grad()
    def gather(self, tensors: Iterable[Tensor | None]) -> None:
        """Copy a tensor into each slot; None counts as zero.

        Raises:
            ConfigError: a tensor is sparse.
        """
        for view, tensor in zip(self.views, tensors, strict=True):
            if tensor is None:
                view.zero_()
            elif tensor.layout == torch.strided:
                view.copy_(tensor)
            else:
                raise ConfigError(f"a gradient must be dense, got {tensor.layout} of shape {tuple(tensor.shape)}")

    @torch.no_grad()
    def scatter(self, tensors: Iterable[Tensor]) -> None:
        """Copy each slot into its tensor."""
        for view, tensor in zip(self.views, tensors, strict=True):
            tensor.copy_(view)


def spans_of(groups: Iterable[dict[str, Any]], params: Iterable[Tensor]) -> list[tuple[slice, range]]:
    """The elements of each parameter group in a flat tensor, and the numbers of its parameters.

    Args:
        groups: parameter groups of an optimizer.
        params: those of their parameters that are in the tensor, in the order of the groups.
    """
    known, found = {id(param) for param in params}, list[tuple[slice, range]]()
    lo = first = 0
    for group in groups:
        sizes = [param.numel() for param in group["params"] if id(param) in known]
        hi, last = lo + sum(sizes), first + len(sizes)
        found.append((slice(lo, hi), range(first, last)))
        lo, first = hi, last
    return found


def any_nonfinite(tensors: Iterable[Tensor | None]) -> bool:
    """Return whether an element of any tensor is NaN or infinite; it waits for the device."""
    found = [nonfinite(tensor) for tensor in tensors if tensor is not None]
    return bool(found) and bool(torch.stack(found).any())
