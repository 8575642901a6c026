"""Ternary codes, five in a byte, with runs of zeros in one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.decoders import ManyDecoder
from gradwire.contrib.compressors.ternary import ops
from gradwire.errors import WireError, is_float32, is_int, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["ThreeLC"]

_FIRST_RUN = 243


@dataclass(frozen=True)
class ThreeLC(ManyDecoder):
    """Send M, 0 or -M for each element, and long runs of zeros for nearly nothing.

    M = sparsity * max|x| in each block;  q = round(x / M), half to even, so 0;  C(x) = M q.

    Five q make a byte ("quartic encoding"), and within a block 2 to 14 bytes of zeros one ("zero-run encoding"): 1.6
    bits an element at worst, 0.114 at best; normal gradients take 0.73 at the default parameters. As sparsity < 2 the
    largest element of a block is always sent, and |C(x) - x|^2 <= |x|^2 - sparsity (2 - sparsity) max|x|^2 there, so
    delta = sparsity (2 - sparsity) / block.

    The five are neighbours; the paper takes them from five parts of the tensor. Its scale is that of a whole tensor,
    under which one outlier silences everything else.

    Args:
        sparsity: factor of the block's maximum, in [1, 1.99]. Larger: fewer elements travel, and the residual grows
            (1.5 times a normal gradient at 1, 15 times at 1.9).
        block: elements that share a scale, a multiple of 16 in [16, 65536]; each costs 48 bits. Larger: fewer elements
            travel.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code, x = ThreeLC(), torch.tensor([4.0, -2.0, 2.1, -4.0, 0.1])
        >>> code.decompress(code.compress(x), (5,)).tolist()
        [4.0, 0.0, 4.0, -4.0, 0.0]

    Source:
        H. Lim, D. G. Andersen, M. Kaminsky, "3LC: Lightweight and Effective Traffic Compression for Distributed Machine
        Learning", MLSys 2019.
    """

    sparsity: float = 1.0
    block: int = 4096

    name = "three_lc"
    family = "hybrid"
    reference = "H. Lim, D. G. Andersen, M. Kaminsky, 3LC, MLSys 2019"
    fixed_size = False
    feedback = "required"

    def __post_init__(self) -> None:
        ok = is_float32(self.sparsity) and 1 <= self.sparsity <= 1.99
        require(ok, "ThreeLC.sparsity", "in [1, 1.99]", self.sparsity)
        require(is_int(self.block, 16, 65536, of=16), "ThreeLC.block", "a multiple of 16 in [16, 65536]", self.block)

    def delta(self, n: int) -> float:
        return self.sparsity * (2 - self.sparsity) / max(1, min(self.block, n))

    @property
    def alignment(self) -> int:
        return self.block

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        blocks = -(-n // self.block)
        return Layout(
            (
                Field("used", torch.int32, 1),
                Field("scales", torch.float32, blocks),
                Field("lengths", torch.int16, blocks),
                Field("stream", torch.uint8, ops.three_lc_capacity(n, self.block)),
            )
        )

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        used, scales, lengths, stream = payload
        ops.three_lc_encode(x, used, scales, lengths, stream, self.block, self.sparsity)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        used, scales, lengths, stream = payload
        ops.three_lc_encode_feedback(grad, residual, used, scales, lengths, stream, self.block, self.sparsity, status)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        _, scales, lengths, stream = payloads
        ops.three_lc_add_decoded(scales, lengths, stream, out, self.block, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        used, scales, lengths, stream = payload
        sizes = lengths.long()
        if bool((sizes < 0).any()) or int(sizes.sum()) != int(used) or int(used) > stream.numel():
            raise WireError(f"three_lc: lengths add up to {int(sizes.sum())} bytes, but {int(used)} are used")
        found = _groups_in(sizes, stream[: int(used)])
        n = math.prod(shape)
        wanted = torch.full_like(found, -(-self.block // 5))
        wanted[-1:].fill_(-(-(n - self.block * (len(found) - 1)) // 5))
        wanted.masked_fill_(~(scales.isfinite() & (scales > 0)), 0)
        if not torch.equal(found, wanted):
            at = int((found != wanted).long().argmax())
            raise WireError(f"three_lc: block {at} holds {int(found[at])} groups of five, not {int(wanted[at])}")


def _groups_in(sizes: Tensor, stream: Tensor) -> Tensor:
    """The number of groups that the bytes of each block represent."""
    byte = stream.long()
    passed = torch.where(byte >= _FIRST_RUN, byte - (_FIRST_RUN - 2), 1).cumsum(0)
    passed, ends = torch.nn.functional.pad(passed, (1, 0)), sizes.cumsum(0)
    return passed[ends] - passed[ends - sizes]
