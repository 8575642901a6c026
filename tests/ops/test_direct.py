"""The way to a kernel without torch's dispatcher: taken where nobody watches, and by nobody else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.compressors.casts.ops import cast_encode
from gradwire.errors import ConfigError
from gradwire.ops import accumulate
from gradwire.ops.base import watched
from gradwire.ops.native import kernels

pytestmark = pytest.mark.skipif(kernels is None, reason="there is no other way than the dispatcher")

NAME = "gradwire::cast_encode"


class Seen(TorchDispatchMode):
    """Notes the operators that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def call() -> torch.Tensor:
    out = torch.empty(3, dtype=torch.bfloat16)
    cast_encode(torch.tensor([1.0, 2.0, 3.0]), out, 0.5)
    return out


def test_who_watches_sees_the_operator() -> None:
    with Seen() as seen:
        assert call().tolist() == [0.5, 1.0, 1.5]
    assert NAME in seen.names
    with torch.profiler.profile() as profile:
        call()
    assert NAME in [event.name for event in profile.events()]


def test_a_profiler_of_all_threads_sees_the_operator_on_another_thread() -> None:
    every = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(experimental_config=every) as profile, ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()
    assert NAME in [event.name for event in profile.events()]


def test_a_view_with_the_negative_bit_is_read_with_its_sign() -> None:
    out = torch.empty(3, dtype=torch.bfloat16)
    cast_encode(torch._neg_view(torch.tensor([1.0, 2.0, 3.0])), out, 0.5)
    assert out.tolist() == [-0.5, -1.0, -1.5]


def test_who_watches_is_noticed() -> None:
    assert not watched()
    noticed = []
    for mode in (Seen(), TorchFunctionMode(), torch.profiler.profile()):
        with mode:
            noticed.append(watched())
    torch.vmap(lambda x: noticed.append(watched()) or x)(torch.ones(2))
    assert noticed == [True] * 4


def test_nothing_is_dispatched_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatched: list[object] = []
    monkeypatch.setattr(cast_encode, "_dispatch", lambda *args: dispatched.append(args))
    assert call().tolist() == [0.5, 1.0, 1.5]
    assert not dispatched


def test_arguments_are_checked_on_this_way_too() -> None:
    with pytest.raises(ConfigError, match=r"cast_encode\.out must be a flat contiguous"):
        cast_encode(torch.ones(3), torch.empty(2, dtype=torch.float16), 1.0)
    with pytest.raises(ConfigError, match=r"accumulate\.residual must be"):
        accumulate(torch.ones(3), torch.ones(3, device="meta"))
    with pytest.raises(ConfigError, match=r"accumulate\.grad must be a tensor"):
        accumulate(None, torch.ones(3))  # type: ignore[arg-type]
