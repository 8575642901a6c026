import math

import pytest
import torch

from gradwire.compressors.ternary.ops import (
    dithered_encode,
    dithered_encode_feedback,
    twobit_add_decoded,
    twobit_encode,
    twobit_encode_feedback,
)
from gradwire.kernels.codes import code_bytes
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.triton.checks import check, sizes


@sizes
@pytest.mark.parametrize("threshold", [0.5, 1e-45, 3e38])
@pytest.mark.parametrize("strict", [False, True])
def test_encode(on, n, threshold, strict):
    codes = {"codes": ((code_bytes(n, 2),), torch.uint8)}
    case = Case(twobit_encode, {"x": gradient(n, 1, finite=False)}, codes, {"threshold": threshold, "strict": strict})
    check(case, on, n % 3)


@sizes
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("strict", [False, True])
def test_encode_feedback(on, n, finite, watched, strict):
    outputs = {
        "grad": gradient(n, 2, finite=finite),
        "residual": gradient(n, 3),
        "codes": ((code_bytes(n, 2),), torch.uint8),
    }
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check(Case(twobit_encode_feedback, {}, outputs, {"threshold": 0.5, "strict": strict}), on, n % 3)


@sizes
@pytest.mark.parametrize("scale", [-1 / 3, 0.0])
def test_add_decoded(on, n, scale):
    for ranks in (0, 1, 3):
        codes, out = random_bytes((ranks, code_bytes(n, 2)), 4), gradient(n, 5, finite=False)
        arguments = {"threshold": 0.3, "scale": scale}
        for inputs in ({"codes": codes}, {"codes": codes, "steps": torch.tensor([[0.3], [7.0], [1e-3]])[:ranks]}):
            check(Case(twobit_add_decoded, inputs, {"out": out}, arguments, pitch=5), on, n % 3)


@sizes
@pytest.mark.parametrize("level", [1e-45, 0.3, math.inf])
def test_dithered_encode(on, n, level):
    inputs = {"x": gradient(n, 1, finite=False), "level": torch.tensor([level])}
    check(Case(dithered_encode, inputs, {"codes": ((code_bytes(n, 2),), torch.uint8)}), on, n % 3)


@sizes
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_dithered_encode_feedback(on, n, finite, watched):
    outputs = {
        "grad": gradient(n, 2, finite=finite),
        "residual": gradient(n, 3),
        "codes": ((code_bytes(n, 2),), torch.uint8),
    }
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    inputs = {"threshold": torch.tensor([0.7]), "level": torch.tensor([0.4])}
    check(Case(dithered_encode_feedback, inputs, outputs), on, n % 3)
