"""MXNet's ``mx.lr_scheduler``: the values of an optimizer's ``lr_scheduler``."""

from gradwire.kvstore.protocol.lr_scheduler import (
    CosineScheduler,
    FactorScheduler,
    LRScheduler,
    MultiFactorScheduler,
    PolyScheduler,
)

__all__ = ["CosineScheduler", "FactorScheduler", "LRScheduler", "MultiFactorScheduler", "PolyScheduler"]
