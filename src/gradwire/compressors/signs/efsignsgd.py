"""Signs with the mean magnitude of their block."""

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

__all__ = ["EFSignSGD"]


@dataclass(frozen=True)
class EFSignSGD(Compressor):
    """Send each element's sign and each block's mean magnitude, and keep the rest: 1 bit an element.

    C(x) = (|x_b|_1 / B) sign(x), sign(0) = +1, for each block b of B elements.

    What is lost is known exactly: |C(x) - x|^2 = |x|^2 - |x|_1^2 / B in a block; 0.364 |x|^2 of normal elements.

    The paper compresses m + lr g and divides nothing; the default memory compresses m + g, in the gradient's unit,
    which is the same while the learning rate is constant. Under a schedule what is left of an old gradient is applied
    with the new rate. For the paper's form pass ``memory=Residual(gamma=lr)`` and let the optimizer's rate be relative
    to that: the mean that arrives is lr times a gradient. The result is a mean, from the first step on.

    Args:
        block: B, a multiple of 32 in [32, 65536]; each block costs 32 bits. Smaller: less error, more bytes.

    Raises:
        ConfigError: the block is outside its range.

    Example:
        >>> code = EFSignSGD()
        >>> code.layout((3000,)).nbytes
        383
        >>> code.decompress(code.compress(torch.tensor([-2.0, -1.0, 1.0, 3.0])), (4,)).tolist()
        [-1.75, -1.75, 1.75, 1.75]

    Source:
        S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient
        Compression Schemes", ICML 2019; by blocks and in both directions, S. Zheng, Z. Huang, J. Kwok,
        "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback", NeurIPS 2019.
    """

    block: int = 2048

    name = "efsignsgd"
    takes_pieces = True
    reference = "S. P. Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019; S. Zheng et al., NeurIPS 2019"

    def __post_init__(self) -> None:
        whole = is_int(self.block, 32, 65536) and self.block % 32 == 0
        require(whole, "EFSignSGD.block", "a multiple of 32 in [32, 65536]", self.block)

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
        return Layout((Field("scales", torch.float32, -(-n // self.block)), Field("codes", torch.uint8, -(-n // 8))))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        scales, codes = payload
        ops.scaled_sign_encode(x.view(-1), scales, codes, self.block)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        scales, codes = payload
        ops.scaled_sign_encode_feedback(grad.view(-1), residual.view(-1), scales, codes, self.block, status)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_decoded_many(tuple(field.unsqueeze(0) for field in payload), out, scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        scales, codes = payloads
        ops.scaled_sign_add_decoded(scales, codes, out.view(-1), self.block, scale)
