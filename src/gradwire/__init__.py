"""gradwire: compressed gradient exchange for data-parallel training.

    model = DistributedDataParallel(model)
    gradwire.compress_ddp(model, "qsgd", bits=4)

Importing it loads torch and the kernels, and neither triton, zmq, the command line nor the benchmarks.
"""

from gradwire import _moved, _started, helpers, optim, schedules  # noqa: F401  (_started comes before what is slow)
from gradwire.compat import from_params
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.compressors.simple import SimpleCompressor
from gradwire.compressors.wrappers.compose import compose
from gradwire.errors import ConfigError, GradwireError, GroupError, WireError
from gradwire.exchange.checkpoint import merge_states
from gradwire.exchange.exchange import Exchange
from gradwire.exchange.settings import compressor
from gradwire.integrations.checkpoint import read_checkpoint
from gradwire.integrations.ddp import GradwireState, compress_ddp, gradwire_hook
from gradwire.integrations.fsdp import compress_fsdp
from gradwire.integrations.fsdp1 import compress_fsdp1
from gradwire.integrations.optimizer import compress_optimizer
from gradwire.integrations.process_group import wrap_group
from gradwire.meeting import Meeting
from gradwire.optim import CompressedStep, MicroAdam
from gradwire.rounds import diloco, local_sgd
from gradwire.version import __version__

__all__ = [
    "CompressedStep",
    "Compressor",
    "ConfigError",
    "Exchange",
    "GradwireError",
    "GradwireState",
    "GroupError",
    "Meeting",
    "MicroAdam",
    "MultiRound",
    "SimpleCompressor",
    "WireError",
    "__version__",
    "compose",
    "compress_ddp",
    "compress_fsdp",
    "compress_fsdp1",
    "compress_optimizer",
    "compressor",
    "diloco",
    "from_params",
    "gradwire_hook",
    "helpers",
    "local_sgd",
    "merge_states",
    "optim",
    "read_checkpoint",
    "schedules",
    "wrap_group",
]

_moved.lead(
    __name__,
    {
        **{name: f"exchange.{name}" for name in ("plan", "policy", "second_moment", "settings", "undo")},
        "keeper": "exchange.residual_store",
        "saved": "exchange.checkpoint",
    },
)
