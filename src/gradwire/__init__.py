"""gradwire: compressed gradient exchange for data-parallel training.

    model = DistributedDataParallel(model)
    gradwire.compress_ddp(model, "qsgd", bits=4)

Importing it loads nothing: each name brings its module, and so torch and the kernels, when it is first used. None of
them brings triton, zmq, the command line or the benchmarks.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gradwire.version import __version__

if TYPE_CHECKING:
    from gradwire import helpers, optim, schedules
    from gradwire.compat import from_params
    from gradwire.compressors.base import Compressor, MultiRound
    from gradwire.compressors.simple import SimpleCompressor
    from gradwire.compressors.wrappers.compose import compose
    from gradwire.contrib.fsdp1 import compress_fsdp1
    from gradwire.engine.checkpoint import merge_states
    from gradwire.engine.exchange import Exchange
    from gradwire.engine.settings import compressor
    from gradwire.errors import ConfigError, GradwireError, GroupError, WireError
    from gradwire.frontends.ddp import GradwireState, compress_ddp, gradwire_hook
    from gradwire.frontends.fsdp import compress_fsdp
    from gradwire.frontends.optimizer import compress_optimizer
    from gradwire.frontends.process_group import wrap_group
    from gradwire.frontends.torch_checkpoint import read_checkpoint
    from gradwire.optim import CompressedStep, MicroAdam
    from gradwire.optim.local.meeting import Meeting
    from gradwire.rounds import diloco, local_sgd

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

_HOMES = {
    **dict.fromkeys(("ConfigError", "GradwireError", "GroupError", "WireError"), "errors"),
    **dict.fromkeys(("Compressor", "MultiRound"), "compressors.base"),
    **dict.fromkeys(("GradwireState", "compress_ddp", "gradwire_hook"), "frontends.ddp"),
    **dict.fromkeys(("CompressedStep", "MicroAdam"), "optim"),
    **dict.fromkeys(("diloco", "local_sgd"), "rounds"),
    "Exchange": "engine.exchange",
    "Meeting": "optim.local.meeting",
    "SimpleCompressor": "compressors.simple",
    "compose": "compressors.wrappers.compose",
    "compress_fsdp": "frontends.fsdp",
    "compress_fsdp1": "contrib.fsdp1",
    "compress_optimizer": "frontends.optimizer",
    "compressor": "engine.settings",
    "from_params": "compat",
    "merge_states": "engine.checkpoint",
    "read_checkpoint": "frontends.torch_checkpoint",
    "wrap_group": "frontends.process_group",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    """Import what is asked for: a name of ``__all__``, or a public module of the package."""
    if name in _HOMES:
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
