"""Tiles: what is chosen of each, and the waves that are added to them, on every target as in the reference."""

import pytest
import torch

from gradwire.compressors.sparse.ops import tile_topk
from gradwire.contrib.compressors.transforms.ops import waves_add_decoded
from tests.cases import pairwise
from tests.ops.harness import Case, check_against_reference, gradient, random_bytes


@pairwise
@pytest.mark.parametrize(("size", "k"), [(1, 1), (7, 3), (64, 1), (256, 2), (1000, 5), (4096, 32), (4096, 4096)])
def test_topk(size, k):
    for kind in ("values", "ties", "zeros"):
        x = gradient(17 * size, 3, finite=False)
        x = x if kind == "values" else x.nan_to_num().clamp(-1, 1).round() * (kind == "ties")
        outputs = {"values": ((17 * k,), torch.float32), "places": ((17 * k,), torch.int16)}
        check_against_reference(Case(tile_topk, {"x": x}, outputs, {"size": size}), 2, 4)


def test_no_tiles_choose_nothing():
    empty = torch.empty(0)
    tile_topk(empty, empty, empty.to(torch.int16), 4)


@pairwise
@pytest.mark.parametrize(("a", "b", "k"), [(1, 1, 1), (3, 5, 2), (64, 64, 32), (17, 100, 4), (5, 16, 80)])
def test_waves(a, b, k):
    down, across, pitch = 2, 3, 3 * b + 1
    n = (down * a - 1) * pitch + across * b
    places = random_bytes((2, down * across * k * 2), 4).view(torch.int16)
    places[0] = (places[0].int() & 0xFFFF).remainder(a * b).to(torch.int16)
    inputs = {
        "values": gradient(2 * down * across * k, 2).view(2, -1),
        "places": places,
        "tall": torch.randn(a * a),
        "wide": torch.randn(b * b),
    }
    sizes = {"a": a, "b": b, "down": down, "across": across, "pitch": pitch, "scale": 0.3}
    case = Case(waves_add_decoded, inputs, {"out": gradient(n, 1)}, sizes, pitch=8)
    check_against_reference(case, 2, 4)
