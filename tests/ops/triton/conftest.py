import importlib.util
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire._extras import install
from gradwire.kernels.base import Op
from tests.ops.triton import kernel_process

On = Callable[[Op[Any]], Callable[..., None]]


@pytest.fixture(scope="session")
def installed() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip(f"triton is not installed: {install('triton')}")


@pytest.fixture(scope="session")
def interpreter(installed: None) -> Iterator[Executor]:
    with _process(kernel_process.start_interpreter) as process:
        yield process


@pytest.fixture(scope="session")
def compilers(installed: None) -> Iterator[Callable[[int], Executor]]:
    """Gives the process that compiles for GPUs of a compute capability; one for each serves all tests."""
    with ExitStack() as stack:
        yield cache(lambda capability: stack.enter_context(_process(kernel_process.start_compiler, capability)))


@pytest.fixture(params=["interpreter", "cuda"])
def on(installed: None, request: pytest.FixtureRequest) -> On:
    """Gives the GPU version of an operation, to be called with CPU tensors: interpreted, or on a GPU."""
    if request.param == "interpreter":
        return partial(_interpreted, request.getfixturevalue("interpreter"))
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return _on_cuda


@pytest.fixture
def interpreted(interpreter: Executor) -> On:
    """Gives the interpreted version of an operation."""
    return partial(_interpreted, interpreter)


@pytest.fixture
def two_programs(interpreter: Executor) -> Iterator[None]:
    """Two programs count the digits of all blocks, as many do on a GPU for millions of elements."""
    place = "gradwire.kernels.triton.largest", "_PROGRAMS"
    before = interpreter.submit(kernel_process.change, *place, 2).result()
    yield
    interpreter.submit(kernel_process.change, *place, before).result()


def _process(start: Callable[..., None], *arguments: object) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), start, arguments)


def _interpreted(process: Executor, op: Op[Any]) -> Callable[..., None]:
    def run(**arguments: object) -> None:
        answer = process.submit(kernel_process.interpret, op.triton, op.name, pickle.dumps(arguments)).result()
        _copy_back(arguments, pickle.loads(answer))

    return run


def _on_cuda(op: Op[Any]) -> Callable[..., None]:
    def run(**arguments: object) -> None:
        # The first call compiles the kernel and makes its tables, for which it may wait.
        op(**{name: _on_gpu(x) for name, x in arguments.items()})
        moved = {name: _on_gpu(x) for name, x in arguments.items()}
        torch.cuda.set_sync_debug_mode("error")
        try:
            op(**moved)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        _copy_back(arguments, moved)

    return run


def _on_gpu(argument: object) -> object:
    if isinstance(argument, list):
        return [_on_gpu(each) for each in argument]
    return _moved(argument, "cuda") if isinstance(argument, Tensor) else argument


def _moved(x: Tensor, device: str) -> Tensor:
    """A copy of a view on another device, with all the memory around it."""
    memory = _memory(x).to(device, copy=True).untyped_storage()
    return torch.empty(0, dtype=x.dtype, device=device).set_(memory, x.storage_offset(), x.size(), x.stride())


def _copy_back(arguments: dict[str, Any], results: dict[str, Any]) -> None:
    for name, x in arguments.items():
        if isinstance(x, Tensor):
            _memory(x).copy_(_memory(results[name]))


def _memory(x: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())
