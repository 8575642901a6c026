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
from gradwire.kernels import accumulate
from gradwire.kernels.native import kernels

DIRECT = kernels is not None and hasattr(torch.Tensor, "__dlpack_c_exchange_api__")

pytestmark = pytest.mark.skipif(not DIRECT, reason="there is no other way than the dispatcher")

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


def form(letter: str, *dtypes: torch.dtype) -> bytes:
    codes = b"".join(kernels.dtype_code(torch.empty(0, dtype=dtype)) for dtype in dtypes)
    return letter.encode() + bytes([len(dtypes)]) + codes


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
def test_who_watches_is_noticed() -> None:
    asked, x = form("f", torch.float32), torch.ones(2)
    noticed = []

    def look(y: torch.Tensor) -> torch.Tensor:
        noticed.append(kernels.read(asked, x) is None)
        return y

    look(x)
    for mode in (Seen(), TorchFunctionMode(), torch.profiler.profile()):
        with mode:
            look(x)
    torch.vmap(look)(torch.ones(2))
    torch.jit.trace(look, torch.ones(2), check_trace=False)
    assert noticed == [False] + [True] * 5


def test_the_numbers_of_all_tensors_are_read_at_once() -> None:
    x, rows = torch.zeros(2, 3), torch.zeros(4, 6, dtype=torch.int16)[:, :5]
    half, none = torch.zeros(7, dtype=torch.float16), torch.zeros(0)
    asked = form("s", torch.float32) + form("r", torch.int16) + form("f", torch.float32, torch.float16)
    asked += form("F", torch.int32) + form("R", torch.uint8) + form("f", torch.float32)
    expected = (x.data_ptr(), 6, rows.data_ptr(), 4, 5, 12, half.data_ptr(), 7, 1, 0, 0, 0, 0, 0, 0, 0, 0)
    assert kernels.read(asked, x, rows, half, None, None, none) == expected


@pytest.mark.parametrize(
    ("letter", "x"),
    [
        ("f", torch.ones(2, 3)),
        ("s", torch.ones(2, 3).t()),
        ("s", torch.ones(6)[::2]),
        ("r", torch.ones(6)),
        ("r", torch.ones(2, 6)[:, ::2]),
        ("f", torch.ones(3, dtype=torch.float64)),
        ("f", torch.ones(3, device="meta")),
        ("f", torch.ones(3).to_sparse()),
        ("f", torch.ones(3, requires_grad=True)),
        ("f", torch.nn.Parameter(torch.ones(3), requires_grad=False)),
        ("f", torch._neg_view(torch.ones(3))),
        ("f", torch.tensor([1 + 2j]).conj().imag),
        ("f", None),
        ("f", "x"),
    ],
)
def test_what_is_not_a_plain_tensor_of_the_form_is_not_read(letter: str, x: object) -> None:
    asked = form("f", torch.int32) + form(letter, torch.float32)
    assert kernels.read(asked, torch.zeros(1, dtype=torch.int32), x) is None
    with torch.no_grad():
        may = isinstance(x, torch.Tensor) and x.requires_grad
        assert (kernels.read(form(letter, torch.float32), x) is None) != may


def test_a_compiler_sees_the_operators() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total, out = y + 1, torch.empty(x.numel(), dtype=torch.bfloat16)
        accumulate(x, total)
        cast_encode(total, out, 0.5)
        return out

    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return both(x, y)

    x, y = torch.ones(2, 3), torch.full((2, 3), 2.0)
    assert torch.equal(torch.compile(both, fullgraph=True, backend="aot_eager")(x, y), both(x, y))
    for strict in (True, False):
        exported = torch.export.export(Both(), (x, y), strict=strict)
        assert NAME in {
            str(getattr(node.target, "name", lambda: "")()) for node in exported.graph.nodes if callable(node.target)
        }


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
