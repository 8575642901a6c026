import pytest
import torch

from gradwire.compressors.sparse.ops import topk_encode, topk_encode_feedback
from gradwire.kernels.segments import SEGMENT, segments
from tests.cases import pairwise
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check

BLOCK = 2048
"""Elements of a block of ``ops.triton.largest``, which cannot be imported where Triton is missing."""

SIZES = (0, 1, 2, 7, 33, 1000, 5001)
KINDS = ("normal", "zeros", "ties", "one-hot", "awkward", "denormal")


def made(kind, n):
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=generator)
    if kind == "zeros":
        return torch.zeros(n)
    if kind == "ties":
        return torch.randint(-3, 4, (n,), generator=generator).float()
    if kind == "one-hot":
        return torch.zeros(n).index_fill_(0, torch.tensor([n // 2] if n else [], dtype=torch.int64), 1.0)
    if kind == "awkward":
        return gradient(n, 3, finite=False)
    return x * 1e-42 if kind == "denormal" else x


def outputs(n, k):
    return {"values": ((k,), torch.float32), "indices": ((k,), torch.int16), "counts": ((segments(n),), torch.int32)}


def sizes_of(n):
    return sorted({0, min(n, 1), n // 100, n // 3, n})


@pairwise
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_encode(on, n, kind):
    for k in sizes_of(n):
        check(Case(topk_encode, {"x": made(kind, n)}, outputs(n, k)), on, n % 3)


@pairwise
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ["normal", "ties"])
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(on, n, kind, watched):
    for k in sizes_of(n):
        written = {"grad": gradient(n, 2), "residual": made(kind, n), **outputs(n, k)}
        if watched:
            written["status"] = torch.tensor([2], dtype=torch.int32)
        check(Case(topk_encode_feedback, {}, written), on, n % 3)


@pairwise
@pytest.mark.parametrize("n", [SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT + 5])
def test_segments(on, n):
    for k in (1, n // 50):
        check(Case(topk_encode, {"x": made("ties", n)}, outputs(n, k)), on, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_counts_several_blocks_and_skips_those_without_a_digit(interpreted, two_programs, kind):
    """In the last passes few blocks have a magnitude that begins like the k-th largest."""
    n = 5 * BLOCK + 3
    for k in (1, n // 100, n // 3):
        check(Case(topk_encode, {"x": made(kind, n)}, outputs(n, k)), interpreted, n % 3)
