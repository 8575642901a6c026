"""Buckets: every target against the reference, and threads against each other."""

import pytest
import torch

from gradwire.contrib.compressors.sketches.ops import bucket_add_decoded, bucket_encode
from gradwire.errors import ConfigError
from tests.cases import together
from tests.ops.harness import Case, check_against_reference, gradient, random_bytes, sweep, torch_threads

OUTPUTS = {"sums": ((256,), torch.float64), "counts": ((256,), torch.int64)}


@sweep
@pytest.mark.parametrize("finite", [True, False])
def test_encode(n, threads, offset, finite):
    inputs = {"x": gradient(n, 3, finite=finite), "bucket_of": random_bytes((65536,), 1)}
    case = Case(bucket_encode, inputs, {"codes": ((n,), torch.uint8), **OUTPUTS})
    check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("levels", [1, 16, 255, 256])
def test_add_decoded(n, threads, offset, levels):
    inputs = {"codes": random_bytes((3, n), 2), "levels": gradient(3 * levels, 4).view(3, levels)}
    case = Case(bucket_add_decoded, inputs, {"out": gradient(n, 5)}, {"scale": -1 / 3}, pitch=5)
    check_against_reference(case, threads, offset)


def test_sums_do_not_depend_on_the_number_of_threads():
    x, bucket_of, found = gradient(200_000, 7), random_bytes((65536,), 1) & 3, []
    for threads in (1, 2):
        codes = torch.empty(x.numel(), dtype=torch.uint8)
        sums, counts = (torch.empty(*shape, dtype=dtype) for shape, dtype in OUTPUTS.values())
        with torch_threads(threads):
            bucket_encode(x, bucket_of, codes, sums, counts)
        found.append(sums)
        assert int(counts.sum()) == x.numel()
    assert torch.equal(*found)


@together
@pytest.mark.parametrize("count", [0, 257])
def test_too_many_levels_are_refused(count):
    with pytest.raises(ConfigError, match=rf"^bucket_add_decoded\.levels must be 1 to 256 for each rank, got {count}$"):
        bucket_add_decoded(torch.zeros(1, 4, dtype=torch.uint8), torch.zeros(1, count), torch.zeros(4), 1.0)
