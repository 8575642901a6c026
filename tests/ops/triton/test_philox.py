import pytest
import torch

from gradwire.kernels import philox
from tests.cases import pairwise
from tests.ops.harness import Case
from tests.ops.triton.checks import check, sizes

EDGES = [0, 1, -1, 2**31, 2**32 - 1, 2**40 + 3, 2**63 - 1, -(2**63)]


@sizes
def test_against_the_reference(on, n):
    check(Case(philox, {}, {"out": ((n,), torch.int32)}, {"key": 12345, "step": 678}), on, n % 3)


@pairwise
@pytest.mark.parametrize("key", EDGES)
@pytest.mark.parametrize("offset", EDGES)
@pytest.mark.parametrize("step", EDGES)
def test_keys_steps_and_offsets_of_64_bits(on, key, step, offset):
    check(Case(philox, {}, {"out": ((9,), torch.int32)}, {"key": key, "step": step, "offset": offset}), on)
