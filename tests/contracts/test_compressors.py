"""Every registered compressor, with its default parameters and every frozen configuration, keeps the contract."""

from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings

from gradwire import registry
from gradwire.testing import contract
from gradwire.testing.bounds import check_contraction, check_omega
from gradwire.testing.feedback import check_feedback, check_undo
from gradwire.testing.inputs import SPECIAL, gaussian
from gradwire.testing.ranks import check_rounds
from gradwire.testing.strategies import gradients, matrices
from tests.cases import together
from tests.golden import freeze as golden

FOLDER = Path(__file__).parents[1] / "golden"
NAMES = registry.names("compressors")
DEFAULTS = [pytest.param(registry.build("compressors", name), id=name) for name in NAMES]
VARIANTS = [pytest.param(c, id=f"{name}: {c}") for name in NAMES for c in golden.variants(FOLDER, name)]
OTHERS = [pytest.param(c, id=f"{name}: {c}") for name in NAMES for c in golden.variants(FOLDER, name)[1:]]
SIZES = (0, 1, 2, 7, 16, 17, 33, 1000)
FEW = (1, 17, 1000)
"""Sizes for further configurations of a method, whose golden bytes have more."""
SHAPES = ((), (3, 0), (1, 50), (50, 1), (40, 25), (8, 3, 3, 3))
TELLING = ("constant", "spike", "mixed scales")
"""Inputs on which a claim about an expectation fails first: ties, the worst case of rounding, many scales at once."""


def check_exact(compressor, x):
    for check in contract.CHECKS:
        check(compressor, x)


def check_bounds(compressor, x):
    for check in contract.BOUNDS:
        check(compressor, x)


@pytest.mark.parametrize("compressor", DEFAULTS)
@together
@pytest.mark.parametrize("n", SIZES)
def test_sizes(compressor, n):
    check_exact(compressor, gaussian(n))


@pytest.mark.parametrize("compressor", OTHERS)
@together
@pytest.mark.parametrize("n", FEW)
def test_sizes_in_other_configurations(compressor, n):
    check_exact(compressor, gaussian(n))


@pytest.mark.parametrize("compressor", DEFAULTS)
def test_a_size_that_divides_by_nothing(compressor):
    contract.check_all(compressor, gaussian(100003))


@pytest.mark.parametrize("compressor", DEFAULTS)
@together
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(compressor, shape):
    check_exact(compressor, gaussian(torch.Size(shape).numel()).view(shape))


@pytest.mark.parametrize("compressor", OTHERS)
def test_many_scales_in_other_configurations(compressor):
    check_exact(compressor, SPECIAL["mixed scales"](1000))


@pytest.mark.parametrize("compressor", DEFAULTS)
@together
@pytest.mark.parametrize("kind", SPECIAL)
def test_special_inputs(compressor, kind):
    """The inputs are vectors, and matrices too where a method treats those in another way."""
    check_exact(compressor, SPECIAL[kind](333))
    if compressor.layout((330,)) != compressor.layout((11, 30)):
        check_exact(compressor, SPECIAL[kind](330).view(11, 30))


@pytest.mark.parametrize("compressor", DEFAULTS)
@together
@pytest.mark.parametrize("kind", TELLING)
def test_expectations_of_special_inputs(compressor, kind):
    check_bounds(compressor, SPECIAL[kind](333))


@pytest.mark.parametrize("compressor", VARIANTS)
def test_expectations(compressor):
    check_bounds(compressor, gaussian(333))


@pytest.mark.parametrize("compressor", DEFAULTS)
@given(x=gradients())
def test_feedback_loses_nothing(compressor, x):
    check_feedback(compressor, x)
    check_undo(compressor, x)


@pytest.mark.parametrize("compressor", DEFAULTS)
@given(x=gradients(max_size=64))
@settings(derandomize=True)
def test_claimed_bounds_hold(compressor, x):
    check_omega(compressor, x)
    check_contraction(compressor, x)


@pytest.mark.parametrize("compressor", DEFAULTS)
@given(x=matrices())
@example(x=torch.outer(gaussian(8, 34155897), gaussian(3, 161)))  # Held rows that are nearly alike: products cancel.
def test_matrices(compressor, x):
    check_feedback(compressor, x)
    check_rounds(compressor, x)
