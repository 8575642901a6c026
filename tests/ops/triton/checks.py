"""The comparison of a GPU kernel with the reference of its operation."""

from collections.abc import Callable
from typing import Any

import pytest

from gradwire.kernels.base import Op
from tests.cases import pairwise
from tests.ops.harness import Case, assert_same_outputs, run

SIZES = (0, 1, 7, 16, 33, 1000, 5003)
"""Nothing, parts of a byte and of a word, whole ones, a part of a program, several programs and a part."""


def sizes(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test as one with every size ``n`` and its own parameters, of which every two values meet."""
    return pairwise(pytest.mark.parametrize("n", SIZES)(test))


def check(case: Case, on: Callable[[Op[Any]], Callable[..., None]], offset: int = 0) -> None:
    """Bit for bit, on buffers ``offset`` elements off the alignment, of which no byte too many is written."""
    expected = run(case, case.op.reference)
    assert_same_outputs(case, run(case, on(case.op), offset), expected)
