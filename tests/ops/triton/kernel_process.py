"""Work of the processes that the tests start: they run a GPU kernel without a GPU, interpreted or only compiled.

Triton decides when a kernel is defined whether it will be interpreted, and keeps one driver for a process. So neither
can be done where the tests themselves run.
"""

import importlib
import os
import pickle
import re
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


def change(module: str, name: str, value: object) -> object:
    """Give a constant of a module another value, and return the one that it had."""
    there = importlib.import_module(module)
    before = getattr(there, name)
    setattr(there, name, value)
    return before


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
    launch = importlib.import_module("gradwire.kernels.triton.many")
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
    many = importlib.import_module("gradwire_lab.bench.operation_examples").operations()[name].many
    given = {key: named.get(key, many.said.defaults.get(key)) for key in many.said.parameters}
    many.on_gpu(many.table(*given.values()), *many.shared(tuple(given.values()))[1])


def compile_many(name: str, calls: list[dict[str, Any]]) -> list[Compiled]:
    """The same, which starts nothing; what had to be compiled for it."""
    found: list[Compiled] = []
    importlib.import_module("triton").knobs.compilation.listener = lambda **each: found.append(_read(**each))
    for named in calls:
        on_many(name, named)
    return found


def waits_of(name: str) -> tuple[list[str], list[str]]:
    """List what a method's encode of one tensor and the decode of one payload would wait for on a GPU."""
    gradwire = SimpleNamespace(
        registry=importlib.import_module("gradwire.registry"),
        sync=importlib.import_module("gradwire.testing.sync"),
        expect=importlib.import_module("gradwire.testing._expect"),
        memory=importlib.import_module("gradwire.memory.base"),
        vocabulary=importlib.import_module("gradwire.vocabulary"),
    )
    code = gradwire.registry.build("compressors", name)
    memory = gradwire.registry.build("memory", gradwire.memory.default_memory(code))
    x = torch.randn(60, 100, generator=torch.Generator().manual_seed(0))
    payload, state = gradwire.expect.payload_for(code, x)[1], code.init_state(x.shape, gradwire.vocabulary.Key())
    kept = {buffer: torch.zeros_like(x) for buffer in memory.buffers}
    status, out = torch.zeros(1, dtype=torch.int32), torch.zeros_like(x)

    def encode(step: int) -> None:
        memory.encode(code, x.clone(), kept, payload, state, gradwire.vocabulary.Key(step=step), status)

    with np.errstate(all="ignore"):
        # Tables are made once.
        gradwire.sync.synchronisations(lambda: (encode(1), code.add_decoded(payload, out, 0.5)), kernels=True)
        encoding = gradwire.sync.synchronisations(lambda: encode(2), kernels=True)
        decoding = gradwire.sync.synchronisations(lambda: code.add_decoded(payload, out, 0.5), kernels=True)
    return encoding, decoding


def waits_of_exchange(name: str, shapes: list[tuple[int, ...]]) -> list[str]:
    """List what a step of one bucket would wait for on a GPU, as the first of two ranks, the other one sending zeros.

    What only the CPU asks, whether a step counts, is left out.
    """
    sync = importlib.import_module("gradwire.testing.sync")
    recording = importlib.import_module("gradwire.transport.recording")
    counters = importlib.import_module("gradwire.metrics").Metrics()
    exchange = importlib.import_module("gradwire.engine.exchange").Exchange(
        importlib.import_module("gradwire.registry").build("compressors", name),
        channel=recording.RecordingChannel(2, counters, echoes=False),
    )
    flat = torch.randn(sum(torch.Size(shape).numel() for shape in shapes), generator=torch.Generator().manual_seed(0))
    params = [(str(i), shape) for i, shape in enumerate(shapes)]

    def step() -> None:
        exchange.begin_step()
        exchange.run(flat.clone(), params)

    with np.errstate(all="ignore"):
        sync.synchronisations(step, kernels=True)  # Tables are made once.
        seen = sync.synchronisations(step, kernels=True)
    branches = re.compile(r"aten::\w+ at (?:part|rollback)\.py")
    return [each for each in seen if not branches.match(each)]


def launches_of(names: list[str], shapes: list[tuple[int, ...]]) -> list[dict[str, Any]]:
    """Count what a step of each method launches."""
    registry = importlib.import_module("gradwire.registry")
    count = importlib.import_module("gradwire_lab.bench.launches")
    return list(count.launch_rows([registry.build("compressors", name) for name in names], shapes))


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
