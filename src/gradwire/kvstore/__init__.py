"""MXNet's parameter server and its gradient compression, over torch tensors.

The names, the order of arguments and the arithmetic are those of MXNet 1.9's ``mx.kv``; ``create`` makes a store. What
servers and workers agree on is in ``protocol``; ``server``, ``worker`` and ``local`` are the stores, ``launch`` starts
their processes, and ``mxnet`` has the training loops.
"""

from gradwire.kvstore import _packages  # noqa: F401
from gradwire.kvstore._create import create
from gradwire.kvstore.mxnet.flags import add_fit_args, fit
from gradwire.kvstore.mxnet.module import Module
from gradwire.kvstore.mxnet.trainer import Trainer
from gradwire.kvstore.protocol.store import KVStore
from gradwire.kvstore.protocol.updater import OptimizerConfig

__all__ = ["KVStore", "Module", "OptimizerConfig", "Trainer", "add_fit_args", "create", "fit"]
