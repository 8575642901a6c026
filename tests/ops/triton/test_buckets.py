import pytest
import torch

from gradwire.compressors.sketches.ops import bucket_add_decoded, bucket_encode
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.test_buckets import OUTPUTS
from tests.ops.triton.checks import check, sizes


@sizes
def test_encode(on, n):
    """The elements have sums that are exact in float64, whatever their order."""
    x = (gradient(n, 3).clamp_(-4, 4) * 2**20).round() * 2**-20
    outputs = {"codes": ((n,), torch.uint8), **OUTPUTS}
    check(Case(bucket_encode, {"x": x, "bucket_of": random_bytes((65536,), 1)}, outputs), on, n % 3)


def test_what_is_not_finite_is_counted_and_shows_in_the_sum_of_its_bucket(on):
    x = torch.tensor([1.0, float("inf"), float("nan"), -float("inf"), 2.0, -0.0])
    upper = (x.view(torch.int32) >> 16) & 0xFFFF
    bucket_of = torch.zeros(65536, dtype=torch.uint8)
    bucket_of[upper.long()] = torch.arange(6, dtype=torch.uint8) + 250
    outputs = {"codes": ((6,), torch.uint8), **OUTPUTS}
    check(Case(bucket_encode, {"x": x, "bucket_of": bucket_of}, outputs), on)


@sizes
@pytest.mark.parametrize("levels", [1, 16, 255, 256])
def test_add_decoded(on, n, levels):
    inputs = {"codes": random_bytes((3, n), 2), "levels": gradient(3 * levels, 4).view(3, levels)}
    for ranks in (0, 1, 3):
        rows = {name: rank[:ranks] for name, rank in inputs.items()}
        check(Case(bucket_add_decoded, rows, {"out": gradient(n, 5)}, {"scale": -1 / 3}, pitch=5), on, n % 3)
