"""Optimizers that send something better than gradients: momentum, or the way of several steps. One in each file."""

from gradwire.optim.compressed_step import CompressedStep
from gradwire.optim.diloco import DiLoCo
from gradwire.optim.micro_adam import MicroAdam
from gradwire.optim.onebit_adam import OneBitAdam
from gradwire.optim.qsparse_local import QsparseLocal
from gradwire.optim.zeroone_adam import ZeroOneAdam

__all__ = ["CompressedStep", "DiLoCo", "MicroAdam", "OneBitAdam", "QsparseLocal", "ZeroOneAdam"]
