"""What the processes do that the tests start: run a GPU kernel without a GPU, interpreted or only compiled.

Triton decides when a kernel is defined whether it will be interpreted, and keeps one driver for a process. So neither
can be done where the tests themselves run.
"""

import importlib
import os
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Compiled:
    """One kernel as the compiler left it."""

    ptx: str
    fused: bool


def start_interpreter() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def start_compiler(capability: int) -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    importlib.import_module("triton").runtime.driver.set_active(_Driver(capability))


def interpret(module: str, name: str, arguments: bytes) -> bytes:
    """Call the GPU version of an operation with pickled arguments, and send them back as it left them."""
    named = pickle.loads(arguments)
    with np.errstate(all="ignore"):
        _kernel(module, name)(**named)
    return pickle.dumps(named)


def compile_only(module: str, name: str, calls: list[dict[str, Any]]) -> list[Compiled]:
    """Call the GPU version of an operation, which starts nothing, and return what had to be compiled for it."""
    found: list[Compiled] = []
    knobs = importlib.import_module("triton").knobs
    knobs.compilation.listener = lambda **compilation: found.append(_read(**compilation))
    for arguments in calls:
        _kernel(module, name)(**arguments)
    return found


def interpret_many(name: str, arguments: bytes) -> tuple[bytes, int]:
    """Call an operation on many pieces, and send back what is left of all arguments, and how often it was launched."""
    named, launched = pickle.loads(arguments), []
    launch = importlib.import_module("gradwire.ops.triton.many")
    start = launch.launch
    launch.launch = lambda *given, **constants: (launched.append(given[0]), start(*given, **constants))
    try:
        with np.errstate(all="ignore"):
            on_many(name, named)
    finally:
        launch.launch = start
    return pickle.dumps(named), len(launched)


def on_many(name: str, named: dict[str, Any]) -> None:
    """Ask the GPU version of an operation, wherever the tensors are."""
    base = importlib.import_module("gradwire.ops.base")
    many = (
        base.Many(importlib.import_module("gradwire.testing.operations").operations()[name])
        if name not in _many
        else _many[name]
    )
    _many[name] = many
    given = {key: named.get(key, many.said.defaults.get(key)) for key in many.said.parameters}
    first = next(iter(given.values()))
    many.on_gpu(many.table(first, given), *(many.shared(key, value) for key, value in given.items()))


_many: dict[str, Any] = {}


def compile_many(name: str, calls: list[dict[str, Any]]) -> list[Compiled]:
    """The same, which starts nothing; what had to be compiled for it."""
    found: list[Compiled] = []
    importlib.import_module("triton").knobs.compilation.listener = lambda **each: found.append(_read(**each))
    for named in calls:
        on_many(name, named)
    return found


def _kernel(module: str, name: str) -> Callable[..., None]:
    return getattr(importlib.import_module(module), name)


def _read(metadata: dict[str, Any], metadata_group: dict[str, str], **_: object) -> Compiled:
    (ptx,) = (Path(path).read_text() for path in metadata_group.values() if path.endswith(".ptx"))
    return Compiled(ptx, metadata["enable_fp_fusion"])


class _Driver:
    """A GPU that can be compiled for and does nothing."""

    utils = SimpleNamespace(
        get_device_properties=lambda _: {"max_shared_mem": 1 << 16},
        load_binary=lambda *_: (None, None, 0, 0, 1024),
    )

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        return importlib.import_module("triton.backends.compiler").GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def launcher_cls(self, *_: object) -> Callable[..., None]:
        return lambda *_: None
