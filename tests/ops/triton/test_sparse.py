import pytest
import torch

from gradwire.compressors.sparse.ops import parts_add_decoded, sparse_add_decoded
from gradwire.kernels.segments import SEGMENT, segments
from tests.cases import pairwise
from tests.ops.harness import Case, gradient
from tests.ops.test_topk import parts
from tests.ops.triton.checks import check


def _payload(n, k, ranks):
    """Places in increasing order, other ones for each rank."""
    generator = torch.Generator().manual_seed(n)
    places = torch.stack([torch.randperm(n, generator=generator)[:k].sort().values for _ in range(ranks)])
    counts = torch.stack([torch.bincount(row // SEGMENT, minlength=segments(n)) for row in places])
    indices = ((places & 0xFFFF) ^ 0x8000) - 0x8000
    values = gradient(ranks * k, 1, finite=False).view(ranks, k)
    return {"values": values, "indices": indices.to(torch.int16), "counts": counts.to(torch.int32)}


@pairwise
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (7, 7), (1000, 33), (100003, 5000), (200000, 1000)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_against_the_reference(on, n, k, ranks):
    case = Case(sparse_add_decoded, _payload(n, k, ranks), {"out": gradient(n, 2)}, {"scale": -1 / 3}, pitch=3)
    check(case, on, n % 3)


@pairwise
@pytest.mark.parametrize(("n", "k", "ranks"), [(0, 0, 2), (9, 0, 2), (9, 3, 0)])
def test_nothing_to_add(on, n, k, ranks):
    payload = {
        "values": torch.ones(ranks, k),
        "indices": torch.ones(ranks, k, dtype=torch.int16),
        "counts": torch.zeros(ranks, segments(n), dtype=torch.int32),
    }
    check(Case(sparse_add_decoded, payload, {"out": gradient(n, 2)}, {"scale": 1.0}), on)


@pairwise
@pytest.mark.parametrize(
    "counts",
    [[10, 10], [-5, 20], [2**31 - 1, 2**31 - 1], [-(2**31), 7], [0, 0], [3, 2**31 - 1]],
)
def test_bytes_from_a_peer_cannot_reach_beyond(on, counts):
    n = SEGMENT + 30
    places = torch.cat([torch.tensor([0, 7, 29, 31]), torch.linspace(32, SEGMENT - 1, 16).long()])
    payload = {
        "values": gradient(20, 3)[None],
        "indices": (((places & 0xFFFF) ^ 0x8000) - 0x8000).to(torch.int16)[None],
        "counts": torch.tensor([counts], dtype=torch.int32),
    }
    check(Case(sparse_add_decoded, payload, {"out": gradient(n, 4)}, {"scale": 1.0}), on)


@pairwise
@pytest.mark.parametrize("n", [1, 1000, 100_003, 200_000])
def test_parts_of_several_lengths_and_kinds(on, n):
    values, indices, counts, levels = (list(each) for each in zip(*parts(n, hostile=False), strict=True))
    arguments = {"values": values, "indices": indices, "counts": counts, "levels": levels, "scale": 1 / 3}
    check(Case(parts_add_decoded, {}, {"out": gradient(n, 9)}, arguments), on)


def test_counts_of_a_part_that_claim_too_much(on):
    """Places that differ, whatever the counts: in each segment another one."""
    n = 3 * SEGMENT
    for counts in ([9, 9, 9], [-7, 2, 2**31 - 1], [0, 0, 0]):
        arguments = {
            "values": [torch.tensor([0b10110], dtype=torch.uint8)],
            "indices": [torch.tensor([3, 9, -1, 0, 77], dtype=torch.int16)],
            "counts": [torch.tensor(counts, dtype=torch.int32)],
            "levels": [torch.tensor([3.0, -0.3])],
            "scale": -1.0,
        }
        check(Case(parts_add_decoded, {}, {"out": gradient(n, 9)}, arguments), on)
