"""Objects that are made at first use, at which the threads of several models meet."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gradwire._once import once
from gradwire.compressors.simple import SimpleCompressor
from gradwire.frontends import optimizer_watch
from gradwire.kernels.base import OPERATIONS
from gradwire.kernels.pieces import Pieces, Places
from gradwire.testing.processes import run_ranks

CPU = torch.device("cpu")

FIRST: dict[str, tuple[Any, ...]] = {
    "gradwire.auto.choices.from_config_of": ("qsgd:bits=4", "allgather"),
    "gradwire.compressors.casts.ops.codebook": ("dynamic", CPU),
    "gradwire.compressors.transforms._eden.lookup": (2, 1, CPU),
    "gradwire.compressors.transforms._eden.quantiser": (3, CPU),
    "gradwire.compressors.transforms._eden.table": (4, 32),
    "gradwire.compressors.transforms._eden.words": (64, CPU),
    "gradwire.contrib.compressors.ternary.ops._weights": (CPU,),
    "gradwire.frontends._traced.watch_optimizers": (),
    "gradwire.frontends.optimizer_watch.listen": (),
    "gradwire.kernels.native.warn_without_kernels": (),
    "gradwire.kernels.trits._tables": (CPU,),
}
"""Arguments of every function of which all threads get the same object, but for those of Triton's folder."""

for _name in FIRST:
    importlib.import_module(_name.rpartition(".")[0])


def meet(calls: Sequence[Callable[[], object]]) -> list[list[object]]:
    """Let four threads come to each of the calls at one moment; what each of them got."""
    gate = threading.Barrier(4)

    def come(_thread: int) -> list[object]:
        got: list[object] = []
        for call in calls:
            gate.wait(60)
            try:
                got.append(call())
            except Exception as error:
                got.append(error)
        return got

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            return [list(of_one) for of_one in zip(*pool.map(come, range(4)), strict=True)]
    finally:
        sys.setswitchinterval(interval)


def cached() -> dict[str, Callable[..., object]]:
    """Find the functions of this package whose results are shared, by their full names."""
    code = once(meet).__code__
    loaded = [module for name, module in list(sys.modules.items()) if name.startswith("gradwire.")]
    found = [each for module in loaded for each in vars(module).values() if isinstance(each, FunctionType)]
    return {f"{each.__module__}.{each.__qualname__}": each for each in found if each.__code__ is code}


def _first_use(_rank: int) -> tuple[list[str], list[str], list[str], int]:
    """In a process in which nothing was used yet: what threads disagree on, and what has no arguments here."""
    import gradwire.compressors.casts.ops
    import gradwire.compressors.ternary.ops
    import gradwire.compressors.transforms.ops
    import gradwire.frontends._traced  # noqa: F401

    declared = list(OPERATIONS.values())
    several = [
        op.name
        for op, got in zip(declared, meet([lambda op=op: op.many for op in declared]), strict=True)  # type: ignore[misc]
        if len({id(each) for each in got}) != 1 or isinstance(got[0], Exception)
    ]
    functions = {name: each for name, each in cached().items() if name != "gradwire.kernels.base.Many"}
    known = {name: each for name, each in functions.items() if name in FIRST}
    met = meet([lambda name=name, each=each: each(*FIRST[name]) for name, each in known.items()])  # type: ignore[misc]
    differ = [name for name, got in zip(known, met, strict=True) if len({id(each) for each in got}) != 1]
    # The hook is torch's and cannot be removed: registered twice, it tells every watch of a step twice.
    steps: list[object] = []
    watch: Any = type("Watch", (SimpleNamespace,), {"__hash__": object.__hash__})(stepped=steps.append)
    optimizer_watch._WAITING.add(watch)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]).step()
    return several, differ, sorted(set(functions) ^ set(FIRST)), len(steps)


def test_four_threads_that_meet_at_first_use_get_one_object() -> None:
    several, differ, unnamed, steps = run_ranks(1, _first_use)[0]
    assert several == []
    assert differ == []
    assert unnamed == []
    assert steps == 1


def test_threads_that_ask_at_once_get_the_same_object() -> None:
    begun = threading.Event()

    @once
    def table(size: int) -> Tensor:
        begun.set()
        time.sleep(0.1)
        return torch.zeros(size)

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(table, 3) for _ in range(4)]
        assert begun.wait(60)
        assert len({id(each.result(60)) for each in asked}) == 1


def test_a_table_that_one_thread_finds_is_whole() -> None:
    """Exchanges share the tables of pieces that lie at the same places."""
    many, places = OPERATIONS["fill_where"].many, Places(6, [0, 4], [3, 2])

    def sizes(value: float) -> dict[str, int]:
        first = Pieces(torch.zeros(6), places)
        return many.sizes(many.table(first, value, None))

    class Meanwhile(float):
        """A number at which another thread asks for the same table while it is being made."""

        @property
        def places(self) -> float:
            met.append(pool.submit(sizes, 0.5).result(60))
            return self

    met: list[dict[str, int]] = []
    with ThreadPoolExecutor(1) as pool:
        assert sizes(Meanwhile(0.5)) == {"out": 5}
    assert met == [{"out": 5}]


class Crowded(SimpleCompressor):
    """A method that notices how many threads are inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = self.most = 0

    def compress(self, tensor: Tensor, name: str) -> tuple[list[Tensor], None]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.01)
        self.inside -= 1
        return [tensor], None

    def decompress(self, tensors: Sequence[Tensor], _ctx: object) -> Tensor:
        return tensors[0]


def test_a_researchers_method_of_several_models_is_called_by_one_thread_at_a_time() -> None:
    method = Crowded()
    codes = [method.adapted() for _ in range(4)]
    waiting = iter(codes)
    meet([lambda: next(waiting).compress(torch.ones(4))])
    assert method.most == 1
