"""The worked examples of methods keep the whole contract, that of the simple door in twenty lines."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gradwire.testing import contract
from gradwire.testing.inputs import SPECIAL, gaussian
from tests.cases import pairwise
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


CODEC = [block.code for block in blocks("docs/own_codec.md") if block.fate == "python"]


@pytest.fixture(scope="module")
def codec() -> Any:
    """The compressor of the page that builds the full contract up, as the blocks before the training leave it."""
    names: dict[str, Any] = {"__name__": __name__}  # dataclasses look the module up
    for code in CODEC[: next(number for number, code in enumerate(CODEC) if "check_all" in code)]:
        exec(compile(code, "docs/own_codec.md", "exec"), names)
    return names["Declared"]


@pairwise
@pytest.mark.parametrize("block", [1, 2, 256])
@pytest.mark.parametrize("shape", [(1,), (7,), (11, 30)])
@pytest.mark.parametrize("kind", SPECIAL)
def test_the_codec_keeps_the_contract(codec: Any, kind: str, shape: tuple[int, ...], block: int) -> None:
    contract.check_all(codec(block=block), SPECIAL[kind](math.prod(shape)).view(shape))


def test_the_contract_notices_a_codec_that_declares_too_much(codec: Any) -> None:
    class Claims(codec):
        def delta(self, n: int) -> float:
            return 1.0

    with pytest.raises(AssertionError):
        contract.check_all(Claims(), gaussian(1000))
