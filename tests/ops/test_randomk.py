"""The elements that a seed chooses: every target against the reference."""

import pytest
import torch

from gradwire.contrib.compressors.sparse._draws import draws
from gradwire.contrib.compressors.sparse.ops import randomk_add_decoded, randomk_encode
from tests.cases import pairwise
from tests.ops.harness import SIZES, Case, check_against_reference, gradient


@pairwise
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("run", [1, 3, 16])
def test_encode(n, run):
    for ratio in (0.001, 0.07, 0.5, 1.0):
        size = draws(n, ratio, run) * run
        outputs = {"values": ((size,), torch.float32), "header": ((5,), torch.float32)}
        for scaled in (True, False):
            arguments = {"run": run, "scaled": scaled, "scale": 0.3}
            case = Case(
                randomk_encode,
                {"x": gradient(n, 1, finite=False), "seed": torch.tensor([2**32 - 7 * run])},
                outputs,
                arguments,
            )
            check_against_reference(case, 1, 1)


@pairwise
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("run", [1, 3, 16])
def test_add_decoded(n, run):
    for ratio in (0.001, 0.07, 1.0):
        values = torch.randn(3, draws(n, ratio, run) * run, generator=torch.Generator().manual_seed(1))
        header = torch.tensor([[1.0, 7, 0, 255, 3], [4.0, 1020, 4, 8, 12], [0.0, -1, 0, 5, 6]])
        inputs, arguments = {"values": values, "header": header}, {"run": run, "scale": 1 / 3}
        case = Case(randomk_add_decoded, inputs, {"out": gradient(n, 2)}, arguments, pitch=4)
        check_against_reference(case, 1, 1)


@pairwise
@pytest.mark.parametrize("n", SIZES)
def test_a_header_that_makes_no_sense_names_some_seed(n):
    values, nan, inf = torch.ones(5, draws(n, 0.5, 1)), float("nan"), float("inf")
    header = torch.tensor(
        [
            [nan, 1, 2, 3, 4],
            [1.0, nan, inf, -inf, 300],
            [2.0, 5, 1, 3, 509],
            [inf, inf, 1, 2, 3],
            [-1e-45, 1, -1, 0, 9],
        ]
    )
    case = Case(
        randomk_add_decoded, {"values": values, "header": header}, {"out": gradient(n, 2)}, {"run": 1, "scale": 1.0}
    )
    check_against_reference(case, 1, 1)
