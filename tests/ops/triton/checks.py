"""The comparison of a GPU kernel with the reference of its operation."""

from collections.abc import Callable
from typing import Any

import pytest

from gradwire.ops.base import Op
from tests.ops.harness import SIZES, Case, assert_same_bits, run

sizes = pytest.mark.parametrize("n", SIZES)


def check(case: Case, on: Callable[[Op[Any]], Callable[..., None]], offset: int = 0) -> None:
    """Bit for bit, on buffers ``offset`` elements off the alignment, of which no byte too many is written."""
    expected = run(case, case.op.reference)
    for name, tensor in run(case, on(case.op), offset).items():
        assert_same_bits(tensor, expected[name], f"{case.op.name}.{name}")
