"""Signs with the means of their block on both sides of zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.base import Compressor, Feedback
from gradwire.compressors.signs import ops
from gradwire.errors import is_int, require
from gradwire.types import Field, Key, Layout, Payload, State

__all__ = ["OneBitSGD"]


@dataclass(frozen=True)
class OneBitSGD(Compressor):
    """Send each element's sign and, for each block, the means below and above zero, and keep the rest.

    C(x) = mean of the elements of the block with x >= 0 where x >= 0, mean of the others where x < 0; 0 of none.

    The sum of a block arrives exactly; what is lost is |x|^2 - n0 mu0^2 - n1 mu1^2, never more than in ``efsignsgd``.
    The paper groups by columns of a weight matrix and switches at zero, as here; groups are blocks of any tensor.

    Args:
        block: elements of a group, a multiple of 32 in [32, 65536]; each costs 64 bits. Smaller: less error.

    Raises:
        ConfigError: the block is outside its range.

    Example:
        >>> code = OneBitSGD()
        >>> code.layout((3000,)).nbytes
        399
        >>> code.decompress(code.compress(torch.tensor([-2.0, -1.0, 1.0, 3.0])), (4,)).tolist()
        [-1.5, -1.5, 2.0, 2.0]

    Source:
        F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-Bit Stochastic Gradient Descent and its Application to
        Data-Parallel Distributed Training of Speech DNNs", INTERSPEECH 2014.
    """

    block: int = 1024

    name = "onebit_sgd"
    reference = "F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, 1-Bit SGD, INTERSPEECH 2014"

    def __post_init__(self) -> None:
        whole = is_int(self.block, 32, 65536) and self.block % 32 == 0
        require(whole, "OneBitSGD.block", "a multiple of 32 in [32, 65536]", self.block)

    @property
    def feedback(self) -> Feedback:
        return "required"

    @property
    def contraction(self) -> bool:
        return True

    def delta(self, n: int) -> float:
        return 1 / max(1, min(self.block, n))

    @property
    def alignment(self) -> int:
        return self.block

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout((Field("means", torch.float32, 2 * -(-n // self.block)), Field("codes", torch.uint8, -(-n // 8))))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        means, codes = payload
        ops.two_means_encode(x.view(-1), means, codes, self.block)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        means, codes = payload
        ops.two_means_encode_feedback(grad.view(-1), residual.view(-1), means, codes, self.block, status)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_decoded_many(tuple(field.unsqueeze(0) for field in payload), out, scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        means, codes = payloads
        ops.two_means_add_decoded(means, codes, out.view(-1), self.block, scale)
