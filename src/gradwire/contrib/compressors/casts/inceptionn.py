"""Codec of INCEPTIONN: an error bound, and as many bytes for each element as that takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.decoders import ManyDecoder
from gradwire.contrib.compressors.casts import ops
from gradwire.errors import WireError, is_int, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["Inceptionn"]


@dataclass(frozen=True)
class Inceptionn(ManyDecoder):
    """Send 0, 8, 16 or 32 bits for each element, so that |C(x) - x| < 2^-bound for every one of them.

        |x| < 2^-b                    nothing
        |x| < 2^(7 - b), |x| < 1      a sign and 7 bits, round(|x| 2^b)
        |x| < 1                       a sign and 15 bits, round(|x| 2^15)
        else, NaN, infinity           the float32

    and a tag of 2 bits. The size follows the gradient, 2 to 32 bits an element; where the codes would take more bytes
    than the tensor, the tensor is sent. Meant for gradients below 1: scale the loss accordingly.

    The classes are by magnitude as in the paper, whose choice of bits inside the 8 and 16 could not be checked; these
    keep the bound that the paper states.

    Args:
        bound: b, 1 to 15. One more halves the error and moves elements of a factor of 2 up a class. The paper uses 10.

    Raises:
        ConfigError: the bound is outside its range.

    Example:
        >>> code = Inceptionn(bound=10)
        >>> code.decompress(code.compress(torch.tensor([0.0005, 0.01, -0.5, 2.0])), (4,)).tolist()
        [0.0, 0.009765625, -0.5, 2.0]

    Source:
        Y. Li, J. Park, M. Alian, Y. Yuan, Z. Qu, P. Pan, R. Wang, A. G. Schwing, H. Esmaeilzadeh, N. S. Kim, "A
        Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep Neural Networks", MICRO
        2018.
    """

    bound: int = 10

    name = "inceptionn"
    reference = "Y. Li et al., A Network-Centric Hardware/Algorithm Co-Design (INCEPTIONN), MICRO 2018"
    fixed_size = False
    alignment = 0

    def __post_init__(self) -> None:
        require(is_int(self.bound, 1, 15), "Inceptionn.bound", "an integer in [1, 15]", self.bound)

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout((Field("used", torch.int32, 1), Field("stream", torch.uint8, ops.capacity(n))))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        used, stream = payload
        ops.inceptionn_encode(x.view(-1), used, stream, self.bound)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        used, stream = payload
        ops.inceptionn_encode_feedback(grad.view(-1), residual.view(-1), used, stream, self.bound, status)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        ops.inceptionn_add_decoded(payloads[1], out.view(-1), self.bound, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        used, stream = payload
        n, length = math.prod(shape), int(used)
        if not 0 <= length <= stream.numel():
            raise WireError(f"inceptionn.used must be in [0, {stream.numel()}], got {length}")
        if length != _needed(stream[:length], n):
            raise WireError(f"inceptionn.used must be what {n} elements take, got {length}")


def _needed(stream: Tensor, n: int) -> int:
    """The number of bytes that the stream's own form and tags require; -1 if these are missing."""
    start = 1 + -(-n // 4)
    if n == 0:
        return 0
    if stream.numel() == 0 or int(stream[0]) > 1:
        return -1
    if int(stream[0]) == 1:
        return 1 + 4 * n
    if stream.numel() < start:
        return -1
    tags = (stream[1:start, None].int() >> torch.arange(0, 8, 2, device=stream.device) & 3).view(-1)[:n]
    return start + int((1 << tags >> 1).sum())
