"""Attachment of an exchange to a model that a framework has wrapped: in DDP, or by FSDP2.

Invariants:
    The framework decides how a model is distributed, and its adapter attaches what belongs to that.

Failure modes:
    A model that is neither wrapped nor sharded would train without compression, so it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.frontends.ddp import GradwireState, compress_ddp
from gradwire.frontends.fsdp import FSDPState, compress_fsdp
from gradwire.frontends.setup import uncompiled

__all__ = ["Attached", "attach", "exchanged"]

Attached = GradwireState | FSDPState
"""States that ``attach`` returns."""


def exchanged(model: object) -> TypeGuard[nn.Module]:
    """Return whether the gradients of this model are averaged by DDP, or reduced by FSDP2 in any of its modules."""
    from torch.distributed.fsdp import FSDPModule

    inner = uncompiled(model)
    if isinstance(inner, DistributedDataParallel):
        return True
    return isinstance(model, nn.Module) and any(isinstance(each, FSDPModule) for each in model.modules())


def attach(model: nn.Module, compressor: Any, options: Mapping[str, Any]) -> Attached:
    """Exchange the gradients of a model compressed as it is distributed. All ranks must call it.

    Args:
        model: model for which ``exchanged`` is true.
        compressor: compressor, as for ``compress_ddp`` or ``compress_fsdp``.
        options: further arguments of ``compress_ddp`` or ``compress_fsdp``.

    Raises:
        ConfigError: ``compress_ddp`` or ``compress_fsdp`` refuses the arguments.
        GroupError: the ranks differ, or one of them failed.
    """
    inner = uncompiled(model)
    wrapped = isinstance(inner, DistributedDataParallel)
    return compress_ddp(inner, compressor, **options) if wrapped else compress_fsdp(model, compressor, **options)
