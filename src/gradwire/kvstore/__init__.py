"""MXNet's parameter server and its gradient compression, over torch tensors.

The names, the order of arguments and the arithmetic are those of MXNet 1.9's ``mx.kv``; ``create`` makes a store. What
servers and workers agree on is in ``protocol``; ``server``, ``worker`` and ``local`` are the stores, ``launch`` starts
their processes, and ``mxnet`` has the training loops.
"""

import sys

from gradwire._moved import Moved
from gradwire.kvstore import _packages  # noqa: F401
from gradwire.kvstore._create import create
from gradwire.kvstore.mxnet.flags import add_fit_args, fit
from gradwire.kvstore.mxnet.module import Module
from gradwire.kvstore.mxnet.trainer import Trainer
from gradwire.kvstore.protocol.optimizers import OptimizerConfig
from gradwire.kvstore.protocol.store import KVStore

__all__ = ["KVStore", "Module", "OptimizerConfig", "Trainer", "add_fit_args", "create", "fit"]

_PLACES = {
    **dict.fromkeys(("base_module", "callback", "checkpoint", "eval_metric", "flags", "lr_scheduler"), "mxnet"),
    **dict.fromkeys(("module", "trainer"), "mxnet"),
    **dict.fromkeys(("compression", "environment", "keys", "optimizers"), "protocol"),
    **dict.fromkeys(("core", "metrics", "snapshot"), "server"),
    "keygen": "launch",
}
"""Modules that were in this folder, and the one where each is."""

# The last of all: it is asked for names that are nowhere.
sys.meta_path.append(Moved(__name__, lambda name: f"{__name__}.{_PLACES[name]}.{name}" if name in _PLACES else None))
