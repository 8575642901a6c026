import pytest
import torch

from gradwire.compressors.ternary import ops
from gradwire.errors import ConfigError
from gradwire.kernels import nonfinite
from gradwire.kernels.native import kernels
from gradwire_lab.bench.reference import Reference


@pytest.mark.skipif(kernels is None, reason="the C++ kernels are not loaded: the reference runs anyway")
def test_the_kernel_stays_out_within_and_comes_back_after():
    x, codes = torch.randn(100), torch.zeros(28, dtype=torch.uint8)
    target = kernels.target()
    before = kernels.calls(target)
    with Reference() as reference:
        ops.twobit_encode(x, codes, 0.5)
    assert kernels.calls(target) == before
    assert reference.calls == 1
    assert codes.any()
    ops.twobit_encode(x, codes, 0.5)
    assert kernels.calls(target) == before + 1


def test_optional_arguments_and_plain_torch_pass_through():
    grad, residual, codes = torch.ones(4), torch.zeros(4), torch.zeros(4, dtype=torch.uint8)
    status = torch.zeros(1, dtype=torch.int32)
    with Reference() as reference:
        ops.twobit_encode_feedback(grad, residual, codes, 0.5)
        ops.twobit_encode_feedback(grad, residual, codes, 0.5, status)
        total = (residual + 1).sum()
    assert reference.calls == 2
    assert residual.tolist() == [1.0] * 4
    assert total == 8.0


def test_the_mode_ends_with_an_error():
    with pytest.raises(ConfigError), Reference():
        raise ConfigError("x")
    with Reference() as after:
        nonfinite(torch.ones(1), torch.zeros(1, dtype=torch.int32))
    assert after.calls == 1
