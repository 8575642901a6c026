import pytest
import torch

from gradwire.compressors.casts.ops import cast_add_decoded, cast_encode, cast_encode_feedback
from tests.cases import pairwise
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check, sizes

halves = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
casts = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])


@sizes
@casts
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_encode(on, n, dtype, scale):
    x = gradient(n, 1, finite=False)
    check(Case(cast_encode, {"x": x}, {"out": ((n,), dtype)}, {"scale": scale}), on, n % 3)


@sizes
@casts
def test_add_decoded(on, n, dtype):
    for ranks in (0, 1, 3):
        payloads = gradient(n * ranks, 2, finite=False).to(dtype).view(ranks, n)
        case = Case(cast_add_decoded, {"payloads": payloads}, {"out": gradient(n, 3)}, {"scale": -1 / 3}, pitch=3)
        check(case, on, n % 3)


@sizes
@casts
def test_encode_feedback(on, n, dtype):
    for finite in (True, False):
        written = {
            "grad": gradient(n, 2, finite=finite),
            "residual": gradient(n, 3),
            "out": ((n,), dtype),
            "status": torch.tensor([2], dtype=torch.int32),
        }
        check(Case(cast_encode_feedback, {}, written), on, n % 3)


@pairwise
@halves
def test_every_value_decodes_exactly(on, dtype):
    values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    check(Case(cast_add_decoded, {"payloads": values[None]}, {"out": torch.zeros(65536)}, {"scale": 1.0}), on)


@pairwise
@halves
def test_ties_round_to_even(on, dtype):
    lower = torch.arange(0, 0x7800, 7, dtype=torch.int16)
    between = (lower.view(dtype).double() + (lower + 1).view(dtype).double()).div(2).float()
    check(Case(cast_encode, {"x": between}, {"out": (tuple(lower.shape), dtype)}, {"scale": 1.0}), on)
