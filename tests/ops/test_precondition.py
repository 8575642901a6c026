"""Gradients in units of a scale: every target and any number of threads give the reference's bits."""

from __future__ import annotations

import pytest
import torch

from gradwire.errors import ConfigError
from gradwire.kernels import precondition, precondition_update
from tests.ops.harness import Case, check_against_reference, gradient, sweep


def scales(n: int, seed: int) -> torch.Tensor:
    """Some of them 0."""
    found = gradient(n, seed, finite=True).abs()
    return found.where(found > 0.1, 0.0).clamp(max=100.0)


@sweep
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_precondition(n, threads, offset, finite, watched):
    outputs = {"grad": gradient(n, 2, finite=finite)}
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check_against_reference(Case(precondition, {"scale": scales(n, 3)}, outputs), threads, offset)


@sweep
@pytest.mark.parametrize("bad", [True, False])
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("unit", [0.0, 1.0, 2.0**-90, 2.0**90])
def test_precondition_update(n, threads, offset, bad, finite, unit):
    """Also where squares would vanish or overflow, and where nothing has arrived before."""
    outputs = {"out": gradient(n, 4, finite=finite).clamp(-100, 100), "scale": scales(n, 5) * unit}
    if not finite and n > 2:
        outputs["out"][n // 2], outputs["out"][n // 3] = float("nan"), float("inf")
    case = Case(precondition_update, {"bad": torch.tensor([bad])}, outputs, {"beta": 0.9, "floor": 0.05})
    check_against_reference(case, threads, offset)


def test_a_mean_that_is_not_finite_reaches_everybody_and_no_scale():
    out, scale = torch.tensor([float("nan"), float("inf"), 1.0]), torch.tensor([1.0, 2.0, 3.0])
    precondition_update(out, scale, torch.tensor([True]), 0.5, 0.0)
    assert out[0].isnan()
    assert out[1:].tolist() == [float("inf"), 3.0]
    assert scale.tolist() == [1.0, 2.0, 3.0]


def test_what_is_not_finite_says_nothing_of_the_scale():
    """A code may overflow where what was encoded did not: the step counts then, and later ones are fine."""
    for value in (float("nan"), float("inf")):
        out, scale = torch.tensor([value, 1.0]), torch.zeros(2)
        precondition_update(out, scale, torch.tensor([False]), 0.5, 0.0)
        assert scale.tolist() == [0.0, 0.0]
        out, scale = torch.tensor([value, 1.0]), torch.tensor([1.0, 1.0])
        precondition_update(out, scale, torch.tensor([False]), 0.5, 0.0)
        assert scale.tolist() == [1.0, 1.0]


def test_zeros_leave_the_first_scale_open_and_later_ones_positive():
    out, scale = torch.zeros(2), torch.zeros(2)
    precondition_update(out, scale, torch.tensor([False]), 0.5, 0.0)
    assert scale.tolist() == [0.0, 0.0]
    scale.fill_(1.0)
    for _ in range(1000):
        precondition_update(out, scale, torch.tensor([False]), 0.5, 0.0)
    assert scale.tolist() == [2.0**-100, 2.0**-100]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda x, bad: precondition_update(x, x.clone(), bad, 1.0, 0.5),
            r"beta must be in \[0, 1\) in float32, got 1.0",
        ),
        (lambda x, bad: precondition_update(x, x.clone(), bad, 0.5, 1.5), r"update.floor must be in \[0, 1\], got 1.5"),
        (lambda x, bad: precondition_update(x, x[1:], bad, 0.5, 0.5), "update.scale must be"),
        (lambda x, bad: precondition_update(x, x.clone(), bad.int(), 0.5, 0.5), "update.bad must be"),
        (lambda x, _: precondition(x, x[1:]), "precondition.scale must be"),
        (lambda x, _: precondition(x.double(), x), "precondition.grad must be"),
    ],
)
def test_what_is_wrong_is_named(call, said):
    with pytest.raises(ConfigError, match=said):
        call(torch.ones(2), torch.tensor([False]))
