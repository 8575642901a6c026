"""The worked example of a method keeps the whole contract, in twenty lines."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire.testing import contract
from gradwire.testing.inputs import SPECIAL, gaussian
from tests.docs.blocks import blocks

EXAMPLE = next(block.code for block in blocks("docs/simple.md") if block.fate == "python")


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "own_method"}
    exec(compile(EXAMPLE, "docs/simple.md", "exec"), names)
    return names


def test_it_has_twenty_lines() -> None:
    assert sum(bool(line.strip()) for line in EXAMPLE.splitlines()) <= 20


@pytest.mark.parametrize("n", [1, 2, 7, 16, 33, 1000])
def test_it_keeps_the_contract_at_every_size(example: dict[str, Any], n: int) -> None:
    contract.check_all(example["ScaledSign"]().adapted(), gaussian(n))


@pytest.mark.parametrize("kind", SPECIAL)
def test_it_keeps_the_contract_on_special_inputs(example: dict[str, Any], kind: str) -> None:
    contract.check_all(example["ScaledSign"]().adapted(), SPECIAL[kind](330).view(11, 30))


def test_the_contract_notices_a_slip_in_it(example: dict[str, Any]) -> None:
    class Slips(example["ScaledSign"]):
        def decompress(self, tensors: list[torch.Tensor], ctx: torch.Size) -> torch.Tensor:
            return super().decompress(tensors, ctx) + torch.rand(ctx)

    with pytest.raises(AssertionError):
        contract.check_all(Slips().adapted(), gaussian(100))
