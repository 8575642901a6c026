"""Contract of every GPU kernel in the folder."""

import ast
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

import gradwire
from gradwire_lab.bench.operation_examples import operations
from tests.cases import together

pytestmark = pytest.mark.usefixtures("installed")


OPS = operations()


def _kernels() -> list[str]:
    """The names of the operations; what other names a module offers belongs to it alone."""
    return [name for name, op in sorted(OPS.items()) if name in _offered(op.triton)]


def _offered(module: str) -> list[str]:
    path = Path(gradwire.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    if not path.exists():
        return []
    (names,) = (
        node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return ast.literal_eval(names)


KERNELS = _kernels()


LEFT_TO_TORCH = {
    "orders of a small sample": {"auto_threshold"},
    "products of matrices": {
        "lowrank_add_decoded",
        "lowrank_left",
        "lowrank_left_feedback",
        "lowrank_right",
        "lowrank_right_feedback",
    },
    "bytes whose place depends on those before": {
        "rice_decode",
        "rice_encode",
        "ternary_add_decoded",
        "ternary_encode",
    },
}


SECOND_TIER = {name for name, op in OPS.items() if op.reference.__module__.startswith("gradwire.contrib.")}
"""Operations of methods that have one fast engine, in C++."""


def test_only_what_is_listed_is_left_to_torch():
    assert set(OPS) - set(KERNELS) == set().union(*LEFT_TO_TORCH.values()) | SECOND_TIER


@together
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_called_as_its_operation(name):
    kernel = getattr(importlib.import_module(OPS[name].triton), name)
    assert _parameters(kernel) == _parameters(OPS[name].reference)


@together
@pytest.mark.parametrize("name", KERNELS)
def test_a_cuda_tensor_finds_its_kernel(name):
    module = importlib.import_module(OPS[name].triton)
    assert OPS[name]._gpu is getattr(module, name)


def _parameters(function: Callable[..., None]) -> list[tuple[str, object]]:
    return [(name, parameter.default) for name, parameter in inspect.signature(function).parameters.items()]
