"""The comparison of GPU kernels with their references finds what is wrong, and nothing where all is right."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from gradwire import registry
from gradwire_lab.bench import gpu_kernels
from gradwire_lab.bench.gpu_kernels import INTERPRETED, GpuKernels, method_rows, operation_rows, with_kernels
from gradwire_lab.bench.operation_examples import operations

NAMES = ("twobit_encode", "twobit_encode_feedback", "twobit_add_decoded", "threshold_encode")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives a few operations kernels that are their references, and one of them another."""

    def replace(**wrong: Callable[..., None]) -> None:
        ops = {name: operations()[name] for name in NAMES}
        for name, op in ops.items():
            monkeypatch.setitem(op.__dict__, "gpu_kernel", wrong.get(name, op.reference))
        monkeypatch.setattr(gpu_kernels, "with_kernels", lambda: ops)

    return replace


def test_a_right_kernel_differs_nowhere(kernels: Callable[..., None]) -> None:
    kernels()
    rows = list(operation_rows(INTERPRETED))
    assert [row["operation"] for row in rows[: len(NAMES)]] == list(NAMES)
    assert {row["operation"] for row in rows if row["variant"] == "status=None"} == {"twobit_encode_feedback"}
    assert not [row for row in rows if row["difference"]]


def test_a_wrong_bit_is_found_in_the_operation_and_in_the_method(kernels: Callable[..., None]) -> None:
    reference = operations()["twobit_encode_feedback"].reference

    def wrong(grad: torch.Tensor, residual: torch.Tensor, *rest: Any, **named: Any) -> None:
        reference(grad, residual, *rest, **named)
        residual[-1] += 1e-7

    kernels(twobit_encode_feedback=wrong)
    differing = [row for row in operation_rows(INTERPRETED) if row["difference"]]
    assert {row["operation"] for row in differing} == {"twobit_encode_feedback"}
    assert "residual differs at 1 of 32 places, first at 31" in differing[0]["difference"]
    rows = list(method_rows(INTERPRETED, [100], [registry.build("compressors", "twobit")]))
    assert [row["step"] for row in rows if row["difference"]] == ["encode_feedback", "encode_feedback_undo"]
    assert rows[1]["kernels"] == ["twobit_encode_feedback"]


def test_a_kernel_that_writes_nothing_is_found(kernels: Callable[..., None]) -> None:
    kernels(twobit_encode=lambda *_args, **_named: None)
    differing = list(method_rows(INTERPRETED, [100], [registry.build("compressors", "twobit")]))
    assert "payload codes differs" in differing[0]["difference"]


def test_what_is_not_in_use_has_no_meaning(kernels: Callable[..., None]) -> None:
    reference = operations()["threshold_encode"].reference

    def careless(x: torch.Tensor, used: torch.Tensor, stream: torch.Tensor, *rest: Any, **named: Any) -> None:
        reference(x, used, stream, *rest, **named)
        stream[int(used) :] = 77

    kernels(threshold_encode=careless)
    assert not [row for row in operation_rows(INTERPRETED) if row.get("difference")]


def test_operations_outside_of_the_kernels_run_as_ever() -> None:
    with GpuKernels() as mode:
        assert torch.ones(3).sum() == 3
    assert not mode.names


def _start() -> None:
    os.environ["TRITON_INTERPRET"] = "1"


def _interpret(names: tuple[str, ...]) -> tuple[int, set[str], list[dict[str, Any]]]:
    torch.set_num_threads(1)
    compressors = [registry.build("compressors", name) for name in names]
    rows = [*method_rows(INTERPRETED, [33], compressors), *operation_rows(INTERPRETED)]
    ran = {row["operation"] for row in rows if "operation" in row}
    return len(rows), set(with_kernels()) - ran, [row for row in rows if row.get("difference") or "left_out" in row]


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.timeout(400)
def test_every_kernel_is_right_in_the_interpreter() -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, _start) as pool:
        count, missing, wrong = pool.submit(_interpret, ("twobit", "bf16", "qsgd", "topk")).result(timeout=380)
    assert count > 100
    assert not missing
    assert not wrong
