"""Momentum and velocity, and multiples of tensors: every target against the reference."""

import pytest
import torch

from gradwire.kernels import accumulate_momentum, add_scaled, mask_momentum
from tests.ops.harness import Case, check_against_reference, gradient, sweep

STATUS = {"status": torch.tensor([2], dtype=torch.int32)}


@sweep
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("factor", [-1.0, 0.3])
def test_add_scaled(n, threads, offset, finite, watched, factor):
    written = {"x": gradient(n, 1, finite=finite)} | (STATUS if watched else {})
    arguments = {"factor": factor} | ({} if watched else {"status": None})
    check_against_reference(Case(add_scaled, {"y": gradient(n, 2)}, written, arguments), threads, offset)


@sweep
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("undone", [True, False])
def test_accumulate_momentum(n, threads, offset, finite, nesterov, watched, undone):
    written = {"grad": gradient(n, 1, finite=finite), "momentum": gradient(n, 2)}
    written |= {"undo": ((n,), torch.float32)} if undone else {}
    written |= STATUS if watched else {}
    arguments = {"beta": 0.9, "nesterov": nesterov}
    arguments |= ({} if undone else {"undo": None}) | ({} if watched else {"status": None})
    check_against_reference(Case(accumulate_momentum, {}, written, arguments), threads, offset)


@sweep
@pytest.mark.parametrize("finite", [True, False])
def test_mask_momentum(n, threads, offset, finite):
    sent = gradient(n, 3, finite=finite)
    sent[::2] = 0.0
    written = {"velocity": gradient(n, 1), "momentum": gradient(n, 2, finite=finite)}
    check_against_reference(Case(mask_momentum, {"sent": sent}, written), threads, offset)
