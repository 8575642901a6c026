import pytest
import torch

from gradwire.ops import sparse_add_decoded
from gradwire.ops._topk import SEGMENT, segments
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check


def _payload(n, k, ranks):
    """Places in increasing order, other ones for each rank."""
    generator = torch.Generator().manual_seed(n)
    places = torch.stack([torch.randperm(n, generator=generator)[:k].sort().values for _ in range(ranks)])
    counts = torch.stack([torch.bincount(row // SEGMENT, minlength=segments(n)) for row in places])
    indices = ((places & 0xFFFF) ^ 0x8000) - 0x8000
    values = gradient(ranks * k, 1, finite=False).view(ranks, k)
    return {"values": values, "indices": indices.to(torch.int16), "counts": counts.to(torch.int32)}


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (7, 7), (1000, 33), (100003, 5000), (200000, 1000)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_against_the_reference(on, n, k, ranks):
    case = Case(sparse_add_decoded, _payload(n, k, ranks), {"out": gradient(n, 2)}, {"scale": -1 / 3}, pitch=3)
    check(case, on, n % 3)


@pytest.mark.parametrize(("n", "k", "ranks"), [(0, 0, 2), (9, 0, 2), (9, 3, 0)])
def test_nothing_to_add(on, n, k, ranks):
    payload = {
        "values": torch.ones(ranks, k),
        "indices": torch.ones(ranks, k, dtype=torch.int16),
        "counts": torch.zeros(ranks, segments(n), dtype=torch.int32),
    }
    check(Case(sparse_add_decoded, payload, {"out": gradient(n, 2)}, {"scale": 1.0}), on)


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
