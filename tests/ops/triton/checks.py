"""The comparison of a GPU kernel with the reference of its operation."""

from collections.abc import Callable
from typing import Any

import pytest

from gradwire.ops.base import Op
from tests.ops.harness import SIZES, Case, assert_same_outputs, run

sizes = pytest.mark.parametrize("n", SIZES)


def check(case: Case, on: Callable[[Op[Any]], Callable[..., None]], offset: int = 0) -> None:
    """Bit for bit, on buffers ``offset`` elements off the alignment, of which no byte too many is written."""
    expected = run(case, case.op.reference)
    assert_same_outputs(case, run(case, on(case.op), offset), expected)
