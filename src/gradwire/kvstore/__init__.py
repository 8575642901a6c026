"""MXNet's parameter server and its gradient compression, over torch tensors.

The names, the order of arguments and the arithmetic are those of MXNet 1.9's ``mx.kv``; ``create`` makes a store. What
servers and workers agree on is in ``protocol``; ``server``, ``worker`` and ``local`` are the stores, ``launch`` starts
their processes, and ``mxnet`` has the training loops.
"""

import sys

from gradwire._moved import Moved, as_attributes
from gradwire.kvstore import _packages  # noqa: F401
from gradwire.kvstore._create import create
from gradwire.kvstore.mxnet.flags import add_fit_args, fit
from gradwire.kvstore.mxnet.module import Module
from gradwire.kvstore.mxnet.trainer import Trainer
from gradwire.kvstore.protocol.store import KVStore
from gradwire.kvstore.protocol.updater import OptimizerConfig

__all__ = ["KVStore", "Module", "OptimizerConfig", "Trainer", "add_fit_args", "create", "fit"]

_PLACES = {
    **{name: f"mxnet.{name}" for name in ("base_module", "callback", "checkpoint", "eval_metric", "flags")},
    **{name: f"mxnet.{name}" for name in ("lr_scheduler", "module", "trainer")},
    **{name: f"protocol.{name}" for name in ("compression", "environment", "keys")},
    **{name: f"server.{name}" for name in ("core", "metrics", "snapshot")},
    "base": "protocol.store",
    "optimizers": "protocol.updater",
    "keygen": "launch.keygen",
}
"""Modules that were in this folder, and the one where each is."""


def _find(name: str) -> str | None:
    return f"{__name__}.{_PLACES[name]}" if name in _PLACES else None


# The last of all: it is asked for names that are nowhere.
sys.meta_path.append(Moved(__name__, _find))
__getattr__ = as_attributes(__name__, _find)
