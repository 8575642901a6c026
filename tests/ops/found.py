"""Every operation: those that all families share, one in each module, and those in the folder of a family."""

import importlib
import pkgutil

import gradwire.compressors
import gradwire.ops
from gradwire.ops.base import OPERATIONS, Op

MODULES = [
    *(module.name for module in pkgutil.iter_modules(gradwire.ops.__path__, "gradwire.ops.") if not module.ispkg),
    *(
        f"{family.name}.ops"
        for family in pkgutil.iter_modules(gradwire.compressors.__path__, "gradwire.compressors.")
        if family.ispkg
    ),
]
OPS: dict[str, Op] = {}
for name in MODULES:
    importlib.import_module(name)
OPS |= OPERATIONS
