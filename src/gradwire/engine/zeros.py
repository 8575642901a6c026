"""The share of zeros in the first gradient of each matrix, such as an embedding, of whose rows a batch uses a few."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.engine.plan import Plan

__all__ = ["FirstZeros"]


class FirstZeros:
    """Counts of the elements that are not zero in this rank's first gradient of each matrix, made on the device."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, Tensor | None]] = {}
        """The elements of each parameter and, of a matrix, how many that are not zero."""

    def count(self, flat: Tensor, plan: Plan) -> None:
        """Count each matrix of a bucket once; nobody waits for it."""
        if not plan.names or plan.names[-1] in self._counts:
            return
        params = plan.params
        parts = torch.split(flat, [torch.Size(shape).numel() for _, shape in params])
        matrices = [part for (_, shape), part in zip(params, parts, strict=True) if len(shape) > 1]
        # The zeroth norm is the number of elements that are not zero.
        counts = iter(torch._foreach_norm(matrices, 0) if matrices else ())
        for (name, shape), part in zip(params, parts, strict=True):
            self._counts.setdefault(name, (part.numel(), next(counts) if len(shape) > 1 else None))

    def shares(self) -> dict[str, float] | None:
        """Return the share of zeros, in [0, 1), in what this rank gave first for each matrix; it waits for the device.

        A matrix of nothing but zeros is left out: it tells nothing, because behind a layer that begins with zeros all
        gradients are zero at first. None: nothing was exchanged yet but what was averaged as it is.
        """
        if not self._counts:
            return None
        counted = {name: (numel, count) for name, (numel, count) in self._counts.items() if count is not None}
        counts = torch.stack([count for _, count in counted.values()]).tolist() if counted else []
        return {name: 1 - n / numel for (name, (numel, _)), n in zip(counted.items(), counts, strict=True) if n}
