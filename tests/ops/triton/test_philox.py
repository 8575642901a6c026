import pytest
import torch

from gradwire.ops import philox
from tests.ops.harness import Case
from tests.ops.triton.checks import check, sizes

EDGES = [0, 1, -1, 2**31, 2**32 - 1, 2**40 + 3, 2**63 - 1, -(2**63)]


@sizes
def test_against_the_reference(on, n):
    check(Case(philox, {}, {"out": ((n,), torch.int32)}, {"key": 12345, "step": 678}), on, n % 3)


@pytest.mark.parametrize("key", EDGES)
@pytest.mark.parametrize("offset", EDGES)
def test_keys_steps_and_offsets_of_64_bits(on, key, offset):
    for step in EDGES:
        check(Case(philox, {}, {"out": ((9,), torch.int32)}, {"key": key, "step": step, "offset": offset}), on)
