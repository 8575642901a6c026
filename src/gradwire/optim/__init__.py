"""Optimizers, one in each file, that send other quantities than gradients: momentum, or the change over several steps;
and ``MuonAdamW``, which sends nothing, for ``DiLoCo`` around it.
"""

from gradwire.optim.local.compressed_step import CompressedStep
from gradwire.optim.local.diloco import DiLoCo
from gradwire.optim.local.muon_adamw import MuonAdamW
from gradwire.optim.local.qsparse_local import QsparseLocal
from gradwire.optim.micro_adam import MicroAdam
from gradwire.optim.onebit_adam import OneBitAdam
from gradwire.optim.zeroone_adam import ZeroOneAdam

__all__ = ["CompressedStep", "DiLoCo", "MicroAdam", "MuonAdamW", "OneBitAdam", "QsparseLocal", "ZeroOneAdam"]
