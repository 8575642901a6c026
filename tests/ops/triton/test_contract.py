"""What holds for every GPU kernel in the folder."""

import importlib
import inspect
import pkgutil

import pytest

import gradwire.ops
from gradwire.ops.base import Op

pytestmark = pytest.mark.usefixtures("installed")


def _kernels() -> list[str]:
    folder = f"{gradwire.ops.__path__[0]}/triton"
    return [module.name for module in pkgutil.iter_modules([folder]) if not module.name.startswith("_")]


KERNELS = _kernels()
OPS = {name: op for name in gradwire.ops.__all__ if isinstance(op := getattr(gradwire.ops, name), Op)}


def test_only_selections_and_streams_are_left_to_torch():
    streams = {"inceptionn_add_decoded", "inceptionn_encode"}
    assert set(OPS) - set(KERNELS) - streams == {"topk_encode", "topk_encode_feedback"}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_called_as_its_operation(name):
    kernel = getattr(importlib.import_module(f"gradwire.ops.triton.{name}"), name)
    assert inspect.signature(kernel) == inspect.signature(OPS[name].reference)


@pytest.mark.parametrize("name", KERNELS)
def test_a_cuda_tensor_finds_its_kernel(name):
    module = importlib.import_module(f"gradwire.ops.triton.{name}")
    assert OPS[name]._gpu is getattr(module, name)
