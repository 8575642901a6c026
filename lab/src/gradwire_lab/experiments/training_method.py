"""Method of a run: how its gradients are exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradwire.compressors.base import Compressor

__all__ = ["PARALLEL", "Method"]

PARALLEL = ("ddp", "fsdp2")
"""Ways to distribute a model: whole on each worker, or in shards."""


@dataclass(frozen=True)
class Method:
    """A compressor with the settings of its training.

    Args:
        label: names it in tables and on progress bars.
        compressor: compressor with its parameters.
        options: further arguments of ``compress_ddp``.
        loss_scale: the loss is multiplied by it before backward, and the averaged gradients are divided by it; for
            codes whose steps have a size of their own. It must be 1 with ``optimizer``.
        recipe: changes of the task's own recipe that the method needs.
        optimizer: optimizer of ``gradwire.optim``, its name under "name", with parameters: it exchanges what the
            compressor makes of its steps, and there is no hook. None: gradients are exchanged.
        auto: "auto", with its parameters, in place of a compressor that is chosen beforehand; None: the compressor.
        hook: hook of torch, its name under "name", with parameters, in place of the compressor; None: ours.
        parallel: a key of ``PARALLEL``: "ddp", or "fsdp2", where the options are for ``compress_fsdp``.
        weights: method for the all-gather of the weights with "fsdp2"; None: FSDP's own.
    """

    label: str
    compressor: Compressor
    options: Mapping[str, Any] = field(default_factory=dict)
    loss_scale: float = 1.0
    recipe: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] | None = None
    hook: Mapping[str, Any] | None = None
    auto: str | None = None
    parallel: str = "ddp"
    weights: str | None = None
