import pytest
import torch

from gradwire.compressors.sparse._draws import draws
from gradwire.compressors.sparse.ops import randomk_add_decoded, randomk_encode
from tests.cases import pairwise
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import SIZES, check

RATIOS = (0.001, 0.07, 1.0)
shapes = pytest.mark.parametrize(("n", "run"), [*((n, run) for n in SIZES[:-1] for run in (1, 3)), (20011, 16)])


@pairwise
@shapes
@pytest.mark.parametrize("scaled", [True, False])
def test_encode(on, n, run, scaled):
    for ratio in RATIOS:
        outputs = {"values": ((draws(n, ratio, run) * run,), torch.float32), "header": ((5,), torch.float32)}
        arguments = {"run": run, "scaled": scaled, "scale": 0.3}
        check(
            Case(
                randomk_encode,
                {"x": gradient(n, 1, finite=False), "seed": torch.tensor([2**32 - 7 * run])},
                outputs,
                arguments,
            ),
            on,
            n % 3,
        )


@pairwise
@shapes
def test_add_decoded(on, n, run):
    for ratio in RATIOS:
        values = torch.randn(3, draws(n, ratio, run) * run, generator=torch.Generator().manual_seed(1))
        header = torch.tensor([[1.0, 7, 0, 255, 3], [4.0, 1020, 4, 8, 12], [0.0, -1, 0, 5, 6]])
        inputs, arguments = {"values": values, "header": header}, {"run": run, "scale": 1 / 3}
        check(Case(randomk_add_decoded, inputs, {"out": gradient(n, 2)}, arguments, pitch=4), on, n % 3)
