"""MXNet's ``mx.lr_scheduler``: what ``lr_scheduler=`` of an optimizer takes."""

from gradwire.kvstore.protocol.lr_scheduler import (
    CosineScheduler,
    FactorScheduler,
    LRScheduler,
    MultiFactorScheduler,
    PolyScheduler,
)

__all__ = ["CosineScheduler", "FactorScheduler", "LRScheduler", "MultiFactorScheduler", "PolyScheduler"]
