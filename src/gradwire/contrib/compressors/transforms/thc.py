"""Rotated blocks on a grid that all ranks share, so that codes can be summed by an all-reduce."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.base import MultiRound
from gradwire.contrib.compressors._room import check_room
from gradwire.contrib.compressors._together import each_or_one, together
from gradwire.contrib.compressors.transforms import ops
from gradwire.errors import is_float32, is_int, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["THC"]


@dataclass(frozen=True)
class THC(MultiRound):
    """Rotate each block at random, round to a common grid, and let an all-reduce add the codes as integers.

    N = the largest |x| of a block over the ranks;  y = H D x / sqrt(B), D the random signs that all ranks share, H the
    Hadamard matrix;  c = clip N / sqrt(B);  z = rounding at random of (y / c + 1) levels / 2, cut off at 0 and levels;
    C = D H ((2 sum(z) / (levels W) - 1) c) / sqrt(B).

    After the rotation the coordinates of any gradient are nearly normal with variance N^2 / B, so that one grid fits
    all. What is rounded is right on average; what is cut off is a share of p = P(|normal| > clip) of the gradient, on
    average over the signs: 1/32 at 2.154.

    In the paper a switch or a server adds, and 4-bit indices of a table of 31 unevenly spaced values go there. In an
    all-reduce the sums themselves travel, in 8 bits whatever was added, so nothing is gained by the table: the grid is
    even. (Its defaults were not at hand; they are the reference implementation's as far as known.)

    The residual is what a rank's own codes leave of its own gradient, so it holds what was rounded and cut off, and not
    how the rank differs from the others.

    Args:
        levels: number of steps of the grid, at most 255 / W, so 17 ranks at the default: the sum of a code over the
            ranks must fit into 8 bits. A larger group is refused when it is set up. More levels: less noise, 1 /
            levels^2 of it.
        block: B, a power of two in [16, 16384]; 32 bits for its norm. The last block of a tensor is padded to a power
            of two.
        clip: bound in standard deviations. Lower: less noise, more is cut off.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = THC(levels=255, clip=4.0)
        >>> code.traffic((4096,)) - 4096
        20.0
        >>> x = torch.sin(torch.arange(1000.0))
        >>> bool((code.decompress(code.compress(x), x.shape) - x).abs().amax() < 0.1)
        True

    Source:
        M. Li, R. Ben Basat, S. Vargaftik, C. Lao, K. Xu, M. Mitzenmacher, M. Yu, "THC: Accelerating Distributed Deep
        Learning Using Tensor Homomorphic Compression", NSDI 2024.
    """

    levels: int = 15
    block: int = 1024
    clip: float = 2.154

    name = "thc"
    family = "quantisation"
    reference = "M. Li et al., THC, NSDI 2024"
    random = True
    rounds_needed = 2
    reductions = ("max", "max", "sum", "sum")
    rounds_only = ("own",)
    feedback = "required"
    alignment = 0

    def __post_init__(self) -> None:
        require(is_int(self.levels, 1, 255), "THC.levels", "an integer in [1, 255]", self.levels)
        power = is_int(self.block, 16, 16384) and self.block & (self.block - 1) == 0
        require(power, "THC.block", "a power of two in [16, 16384]", self.block)
        ok = is_float32(self.clip) and self.clip > 0
        require(ok, "THC.clip", "a finite number > 0 in float32", self.clip)

    @property
    def fine(self) -> bool:
        return self.levels >= 7

    def check_world(self, world: int) -> None:
        check_room("THC.levels", self.levels, 255, world)

    def pays_for(self, shape: Sequence[int]) -> bool:
        return self.traffic(shape) < 4 * math.prod(shape)

    def traffic(self, shape: Sequence[int]) -> float:
        _, norms, codes, _ = self.layout(shape).fields
        return float(norms.nbytes + codes.nbytes)

    def layout(self, shape: Sequence[int]) -> Layout:
        """The layout, of which only ``norms`` and ``codes`` travel; ``own`` holds this rank's codes before they are
        summed.
        """
        n = math.prod(shape)
        full, rest = divmod(n, self.block)
        coordinates = full * self.block + (max(16, 1 << (rest - 1).bit_length()) if rest else 0)
        some = min(n, 1)
        words = coordinates // 4 + some
        return Layout(
            (
                Field("seed", torch.int64, 2 * some),
                Field("norms", torch.float32, full + min(rest, 1)),
                Field("codes", torch.int32, words),
                Field("own", torch.int32, words),
            )
        )

    def rounds(
        self, xs: Sequence[Tensor], payloads: Sequence[Payload], states: Sequence[State], keys: Sequence[Key]
    ) -> Iterator[int | None]:
        batches = together(xs, payloads)
        for numbers, x, (seed, norms, _, _) in batches:
            ops.block_norms(x, norms, self.block)
            ops.thc_begin(seed, each_or_one(*(keys[i].stream(common=True) for i in numbers)), keys[0].step)
        yield 1
        for numbers, x, (seed, norms, codes, own) in batches:
            form = self.block, self.levels, self.clip
            streams = each_or_one(*(keys[i].stream() for i in numbers))
            ops.thc_encode(x, norms, seed, codes, *form, streams, keys[0].step)
            ops.thc_keep(codes, own)
        yield 2

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_decoded_each([payload], [out], scale)

    def add_own(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_own_each([payload], [out], scale)

    def add_decoded_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        self._add([(seed, norms, codes) for seed, norms, codes, *_ in payloads], outs, scale)

    def add_own_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        self._add([(seed, norms, own) for seed, norms, _, own in payloads], outs, scale)

    def _add(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float) -> None:
        for _, out, (seed, norms, codes) in together(outs, payloads):
            ops.thc_add_decoded(norms, seed, codes, out, self.block, self.levels, self.clip, scale)
