"""MXNet's parameter server and its gradient compression, over torch tensors.

The names, the order of arguments and the arithmetic are those of MXNet 1.9's ``mx.kv``; ``create`` makes a store.
"""

from gradwire.kvstore import _packages  # noqa: F401
from gradwire.kvstore._create import create
from gradwire.kvstore.base import KVStore
from gradwire.kvstore.flags import add_fit_args, fit
from gradwire.kvstore.module import Module
from gradwire.kvstore.optimizers import OptimizerConfig
from gradwire.kvstore.trainer import Trainer

__all__ = ["KVStore", "Module", "OptimizerConfig", "Trainer", "add_fit_args", "create", "fit"]
