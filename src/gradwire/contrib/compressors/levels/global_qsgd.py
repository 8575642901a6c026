"""Random rounding to levels of the largest norm among the workers, so that codes can be summed by an all-reduce."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.base import Feedback, MultiRound
from gradwire.compressors.levels.ops import round_encode
from gradwire.compressors.levels.rounding import Grid, linf_omega
from gradwire.contrib.compressors._room import check_room
from gradwire.contrib.compressors._together import each_or_one, together
from gradwire.contrib.compressors.levels import ops
from gradwire.errors import is_float32, is_int, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["GlobalQSGD"]


@dataclass(frozen=True)
class GlobalQSGD(MultiRound):
    """Agree on the largest norm N of any worker, round to 2s + 1 levels of it, and let an all-reduce add the levels.

    N = max over the ranks of max|x|;  a = s |x| / N;  q = sign(x) floor(a + u), u uniform on (0, 1);
    C(x) = sum(q) N / (s W).

    Each worker's code is right on average, and their sum is exact: nothing is rounded twice, the traffic does not grow
    with the number of workers, and nobody decodes more than one payload. The levels travel as bytes, so that a sum
    fits: on few workers ``qsgd``, which gathers 2 to 4 bits, sends less.

    With ``levels=1`` and ``clip=2.5`` this is TernGrad as in its authors' code, where all workers share the scale of
    the largest one: N = max over the ranks of min(max|x|, clip * deviation(x)). ``terngrad`` keeps each worker's own.

    Error feedback keeps what a rank's own codes leave of its own gradient. At one level it is unsafe, as in
    ``terngrad``: the noise is larger than the signal. From two on no element is off by more than N / s.

    Args:
        levels: s, at most 127 / W, so 18 ranks at the default: the sum over the ranks must fit into 8 bits. A larger
            group is refused when it is set up. More levels: less noise.
        clip: bound in standard deviations, 0 for none. Lower: less noise, more bias on the largest elements.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = GlobalQSGD(levels=7)
        >>> code.traffic((4096,)) - 4096
        8.0
        >>> code.decompress(code.compress(torch.tensor([7.0, -3.0, 0.0])), (3,)).tolist()
        [7.0, -3.0, 0.0]

    Source:
        J. Xin, M. Canini, P. Richtarik, S. Horvath, "Global-QSGD: Practical Floatless Quantization for Distributed
        Learning with Theoretical Guarantees", 2023; W. Wen et al., "TernGrad", NeurIPS 2017.
    """

    levels: int = 7
    clip: float = 0.0

    name = "global_qsgd"
    family = "quantisation"
    reference = "J. Xin, M. Canini, P. Richtarik, S. Horvath, Global-QSGD, 2023; W. Wen et al., TernGrad, NeurIPS 2017"
    random = True
    portable = True
    rounds_needed = 2
    reductions = ("max", "sum", "sum")
    rounds_only = ("own",)
    alignment = 0

    def __post_init__(self) -> None:
        require(is_int(self.levels, 1, 127), "GlobalQSGD.levels", "an integer in [1, 127]", self.levels)
        require(is_float32(self.clip) and self.clip >= 0, "GlobalQSGD.clip", "a finite number >= 0", self.clip)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.clip == 0

    @property
    def feedback(self) -> Feedback:
        return "optional" if self.levels > 1 else "unsafe"

    @property
    def bounded(self) -> str:
        return "GlobalQSGD(levels=3)"

    def omega(self, n: int) -> float:
        """The variance factor for a group of one, whose norm is its own.

        Where W workers round to the largest norm among them, it holds for all of them together, with the elements of
        all: sum_i E|C(x_i) - x_i|^2 <= omega(W n) sum_i |x_i|^2, and the error of the mean is a W^2-th of that sum. No
        multiple of one worker's own |x_i|^2 bounds its noise: a small gradient beside a large one may be all noise.
        """
        return linf_omega(max(1, n), self.levels) if self.unbiased else math.inf

    def check_world(self, world: int) -> None:
        check_room("GlobalQSGD.levels", self.levels, 127, world)

    def pays_for(self, shape: Sequence[int]) -> bool:
        return self.traffic(shape) < 4 * math.prod(shape)

    def traffic(self, shape: Sequence[int]) -> float:
        norm, codes, _ = self.layout(shape).fields
        return float(norm.nbytes + codes.nbytes)

    def layout(self, shape: Sequence[int]) -> Layout:
        """The layout, of which only ``norm`` and ``codes`` travel; ``own`` holds this rank's levels before they are
        summed.
        """
        n = math.prod(shape)
        return Layout(
            (
                Field("norm", torch.float32, min(n, 1)),
                Field("codes", torch.int32, ops.sum_words(n)),
                Field("own", torch.uint8, n),
            )
        )

    def rounds(
        self, xs: Sequence[Tensor], payloads: Sequence[Payload], states: Sequence[State], keys: Sequence[Key]
    ) -> Iterator[int | None]:
        batches, grid = together(xs, payloads), self._grid()
        for _, x, (norm, _, _) in batches:
            grid.measure(x, norm)
        yield 0
        for numbers, x, (norm, codes, own) in batches:
            streams = each_or_one(*(keys[i].stream() for i in numbers))
            round_encode(x, norm, own, 8, self.levels, streams, keys[0].step)
            ops.sums_encode(own, codes, self.levels)
        yield 1

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_decoded_each([payload], [out], scale)

    def add_own(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_own_each([payload], [out], scale)

    def add_decoded_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        for _, out, (norm, codes, *_) in together(outs, payloads):
            ops.sums_add_decoded(norm, codes, out, self.levels, scale)

    def add_own_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        for _, out, (norm, _, own) in together(outs, payloads):
            self._grid().add_decoded((norm.unsqueeze(0), own.unsqueeze(0)), out, scale)

    def _grid(self) -> Grid:
        return Grid(8, self.levels, "clipped", self.clip)
