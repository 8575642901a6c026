import pytest
import torch

from gradwire.kernels import accumulate_momentum, add_scaled, mask_momentum
from tests.ops.harness import Case, gradient
from tests.ops.triton.checks import check, sizes

STATUS = {"status": torch.tensor([2], dtype=torch.int32)}


@sizes
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("factor", [-1.0, 0.3])
def test_add_scaled(on, n, finite, watched, factor):
    written = {"x": gradient(n, 1, finite=finite)} | (STATUS if watched else {})
    check(Case(add_scaled, {"y": gradient(n, 2)}, written, {"factor": factor}), on, n % 3)


@sizes
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("undone", [True, False])
def test_accumulate_momentum(on, n, finite, nesterov, watched, undone):
    written = {"grad": gradient(n, 1, finite=finite), "momentum": gradient(n, 2)}
    written |= ({"undo": ((n,), torch.float32)} if undone else {}) | (STATUS if watched else {})
    arguments = {"beta": 0.9, "nesterov": nesterov} | ({} if undone else {"undo": None})
    check(Case(accumulate_momentum, {}, written, arguments), on, n % 3)


@sizes
@pytest.mark.parametrize("finite", [True, False])
def test_mask_momentum(on, n, finite):
    sent = gradient(n, 3, finite=finite)
    sent[::2] = 0.0
    written = {"velocity": gradient(n, 1), "momentum": gradient(n, 2, finite=finite)}
    check(Case(mask_momentum, {"sent": sent}, written), on, n % 3)
