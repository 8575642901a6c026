"""What holds for every GPU kernel in the folder."""

import importlib
import inspect
import pkgutil

import pytest

import gradwire.ops
from gradwire.ops.base import Op
from tests.cases import together

pytestmark = pytest.mark.usefixtures("installed")


def _kernels() -> list[str]:
    folder = f"{gradwire.ops.__path__[0]}/triton"
    return [module.name for module in pkgutil.iter_modules([folder]) if not module.name.startswith("_")]


KERNELS = _kernels()
OPS = {name: op for name in gradwire.ops.__all__ if isinstance(op := getattr(gradwire.ops, name), Op)}


LEFT_TO_TORCH = {
    "orders of a small sample": {"auto_threshold"},
    "sums in a fixed order": {
        "block_norms", "moments", "moments_feedback", "sketch_add", "sketch_estimate",
    },
    "products of matrices": {
        "lowrank_add_decoded", "lowrank_left", "lowrank_left_feedback", "lowrank_right", "lowrank_right_feedback",
    },
    "what a plain operation or two of torch do as well": {"byte_counts", "sums_add_decoded"},
    "bytes whose place depends on those before": {
        "inceptionn_add_decoded", "inceptionn_encode", "prefix_decode", "prefix_encode",
        "rans_decode", "rans_encode", "rice_decode", "rice_encode", "ternary_add_decoded", "ternary_encode",
        "three_lc_add_decoded", "three_lc_encode", "three_lc_encode_feedback",
    },
    "rotations": {"eden_add_decoded", "eden_encode", "thc_add_decoded", "thc_encode"},
    "a few operations of torch": {"precondition", "precondition_update"},
}  # fmt: skip


def test_only_what_is_listed_is_left_to_torch():
    assert set(OPS) - set(KERNELS) == set().union(*LEFT_TO_TORCH.values())


@together
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_called_as_its_operation(name):
    kernel = getattr(importlib.import_module(f"gradwire.ops.triton.{name}"), name)
    assert inspect.signature(kernel) == inspect.signature(OPS[name].reference)


@together
@pytest.mark.parametrize("name", KERNELS)
def test_a_cuda_tensor_finds_its_kernel(name):
    module = importlib.import_module(f"gradwire.ops.triton.{name}")
    assert OPS[name]._gpu is getattr(module, name)
