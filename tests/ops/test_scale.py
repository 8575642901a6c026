import pytest
import torch

from gradwire.kernels import scale
from tests.ops.harness import Case, check_against_reference, gradient, sweep


@sweep
@pytest.mark.parametrize("finite", [True, False])
def test_against_the_reference(n, threads, offset, finite):
    written = {"x": gradient(n, 1, finite=finite), "status": torch.tensor([6], dtype=torch.int32)}
    case = Case(scale, {}, written, {"factor": 1 / 3})
    check_against_reference(case, threads, offset)


@pytest.mark.parametrize("world", [2, 3, 7, 1000])
def test_a_part_of_a_mean_has_the_bits_of_torchs_product(world):
    x = gradient(1000, 1)
    wanted = x * (1 / world)
    scale(x, 1 / world)
    assert torch.equal(x, wanted)
