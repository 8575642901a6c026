"""MXNet's parameter server and its gradient compression, over torch tensors.

The names, the order of arguments and the arithmetic are those of MXNet 1.9's ``mx.kv``; ``create`` makes a store. What
servers and workers agree on is in ``protocol``; ``server``, ``worker`` and ``local`` are the stores, ``launch`` starts
their processes. MXNet's training loops beside Gluon's ``Trainer`` are in ``gradwire.contrib.mxnet``, and are imported
when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradwire.kvstore import _packages  # noqa: F401
from gradwire.kvstore._create import create
from gradwire.kvstore.protocol.store import KVStore
from gradwire.kvstore.protocol.updater import OptimizerConfig
from gradwire.kvstore.trainer import Trainer

if TYPE_CHECKING:
    from gradwire.contrib.mxnet.flags import add_fit_args, fit
    from gradwire.contrib.mxnet.module import Module

__all__ = ["KVStore", "Module", "OptimizerConfig", "Trainer", "add_fit_args", "create", "fit"]

_HOMES = {"Module": "module", "add_fit_args": "flags", "fit": "flags"}
"""The module of each name in ``gradwire.contrib.mxnet``."""


def __getattr__(name: str) -> Any:
    """Import what is asked for from the second tier."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"gradwire.contrib.mxnet.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
