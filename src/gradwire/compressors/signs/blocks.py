"""Base of onebit_sgd and efsignsgd: a sign for each element, and one or two numbers for each block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.compressors.decoders import FreshDecoder
from gradwire.errors import is_int, require
from gradwire.kernels.base import Op
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["BlockSigns"]


class BlockSigns(FreshDecoder):
    """A method of one bit an element; the numbers of a block give the value of each sign, and a residual keeps the
    rest.

    Both are nearest to a block among what they can say, so a block loses at most 1 - 1 / B of its square.
    """

    feedback = "required"

    block: int
    """B, a multiple of 32 in [32, 65536]."""

    numbers: ClassVar[tuple[str, int]]
    """The name of their field, and how many each block has."""

    operations: ClassVar[tuple[Op[Any], Op[Any], Op[Any]]]
    """Operations that encode, encode with feedback, and add the decoded payloads."""

    def __post_init__(self) -> None:
        whole = is_int(self.block, 32, 65536, of=32)
        require(whole, f"{type(self).__name__}.block", "a multiple of 32 in [32, 65536]", self.block)

    def delta(self, n: int) -> float:
        return 1 / max(1, min(self.block, n))

    @property
    def alignment(self) -> int:
        return self.block

    def layout(self, shape: Sequence[int]) -> Layout:
        n, (name, each) = math.prod(shape), self.numbers
        numbers = Field(name, torch.float32, each * -(-n // self.block))
        return Layout((numbers, Field("codes", torch.uint8, -(-n // 8))))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        numbers, codes = payload
        self.operations[0](x, numbers, codes, self.block)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        numbers, codes = payload
        self.operations[1](grad, residual, numbers, codes, self.block, status)

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        numbers, codes = payloads
        self.operations[2](numbers, codes, out, self.block, scale, fresh)
