import pytest
import torch

from gradwire.compressors.sparse.ops import tile_topk
from gradwire.compressors.transforms.ops import waves_add_decoded
from tests.cases import pairwise
from tests.ops.harness import Case, gradient, random_bytes
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


@pairwise
@pytest.mark.parametrize(("a", "b", "k"), [(1, 1, 1), (3, 5, 2), (64, 64, 4), (17, 100, 4), (5, 16, 80)])
def test_waves(on, a, b, k):
    down, across, pitch = 2, 3, 3 * b + 1
    n = (down * a - 1) * pitch + across * b
    places = random_bytes((2, down * across * k * 2), 4).view(torch.int16)
    places[0] = (places[0].int() & 0xFFFF).remainder(a * b).to(torch.int16)
    values = gradient(2 * down * across * k, 2).view(2, -1)
    inputs = {"values": values, "places": places, "tall": gradient(a * a, 5), "wide": gradient(b * b, 6)}
    sizes = {"a": a, "b": b, "down": down, "across": across, "pitch": pitch, "scale": 0.3}
    for ranks in (0, 1, 2):
        rows = inputs | {"values": values[:ranks], "places": places[:ranks]}
        check(Case(waves_add_decoded, rows, {"out": gradient(n, 1)}, sizes, pitch=8), on, n % 3)
