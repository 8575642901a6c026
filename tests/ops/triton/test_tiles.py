import pytest
import torch

from gradwire.compressors.sparse.ops import tile_topk
from tests.cases import pairwise
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check

TILES = 5


@pairwise
@pytest.mark.parametrize(
    ("size", "k"), [(1, 1), (7, 3), (64, 1), (256, 2), (1000, 5), (4096, 32), (4100, 40), (300, 300)]
)
@pytest.mark.parametrize("kind", ["values", "ties", "zeros"])
def test_topk(on, size, k, kind):
    x = gradient(TILES * size, 3, finite=False)
    x = x if kind == "values" else x.nan_to_num().clamp(-1, 1).round() * (kind == "ties")
    outputs = {"values": ((TILES * k,), torch.float32), "places": ((TILES * k,), torch.int16)}
    check(Case(tile_topk, {"x": x}, outputs, {"size": size}), on, size % 3)


@pairwise
@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FFFFFFE, 0x7F800000])
def test_the_largest_magnitudes_of_all(on, bits):
    x = torch.randn(33)
    x[::4] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    outputs = {"values": ((4,), torch.float32), "places": ((4,), torch.int16)}
    check(Case(tile_topk, {"x": x}, outputs, {"size": 33}), on)


def test_no_tiles_choose_nothing(on):
    outputs = {"values": torch.empty(0), "places": torch.empty(0, dtype=torch.int16)}
    check(Case(tile_topk, {"x": torch.empty(0)}, outputs, {"size": 4}), on)
