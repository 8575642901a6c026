"""Residual and gradient in one pass: every target against the reference."""

import pytest
import torch

from gradwire.kernels import accumulate
from tests.ops.harness import Case, check_against_reference, gradient, sweep


@sweep
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_accumulate(n, threads, offset, finite, watched):
    written = {"grad": gradient(n, 1, finite=finite), "residual": gradient(n, 2)}
    arguments = {} if watched else {"status": None}
    if watched:
        written["status"] = torch.tensor([2], dtype=torch.int32)
    check_against_reference(Case(accumulate, {}, written, arguments), threads, offset)
