"""Sparsification that sends the largest elements, by a threshold from a fitted distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.decoders import ManyDecoder
from gradwire.contrib.compressors import _entries
from gradwire.contrib.compressors.sparse import _tails
from gradwire.contrib.compressors.sparse._chosen import Entries, add_ranks, take_beyond
from gradwire.errors import WireError, is_float32, is_int, require
from gradwire.kernels.segments import check_places, segments
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["SIDCo"]

_FORGIVEN = math.log(1.2)


@dataclass(frozen=True)
class SIDCo(ManyDecoder):
    """Fit a distribution to |x|, and send the elements above the value that a share ``ratio`` of it exceeds.

    C(x) = x where |x| >= eta, 0 elsewhere. With a = mean |x|, an exponential tail gives eta = a ln(1 / ratio). Fits of
    all of |x| miss the tail, so M stages refine it: stage 1 fits for the share 1/4, each further stage fits
    |x| - eta on what exceeds the stage before, for 1/4 again and the last for ratio 4^(M-1).

    No sort: reading x, then a quarter of it, then a sixteenth. The number sent varies: of normal, Laplace, cubed normal
    and Student-t elements a step of "exp" sends 0.5 to 1.8 of the target; of uniform ones, which have no tail, 0 to
    3.0. Every ``period`` steps M moves by one if the mean of achieved / target is off by more than 1.2: up if too few
    were sent, down if too many, and the other way when the last move made it worse (the paper's rule has no way back,
    which on tails heavier than the fit ends far too low).

    Zeros are not fitted. Where the fit exceeds the largest element, that is sent: a constant tensor is sent whole. From
    2/3 of all elements on x itself travels, in float32. That is also what becomes of a NaN or an infinity.

    Args:
        ratio: target share of elements sent, in (0, 1).
        distribution: "exp"; "gamma" (first stage gamma, then generalised Pareto); "gp", generalised Pareto throughout.
        period: steps between changes of M, >= 1.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = SIDCo(ratio=0.2)
        >>> code.decompress(code.compress(torch.tensor([0.1, -5.0, 0.3, -0.2, 0.4])), (5,)).tolist()
        [0.0, -5.0, 0.0, 0.0, 0.0]

    Source:
        A. M. Abdelmoniem, A. Elzanaty, M.-S. Alouini, M. Canini, "An Efficient Statistical-based Gradient Compression
        Technique for Distributed Training Systems", MLSys 2021.
    """

    ratio: float = 0.01
    distribution: Literal["exp", "gamma", "gp"] = "exp"
    period: int = 5

    name = "sidco"
    family = "sparsification"
    reference = "A. M. Abdelmoniem, A. Elzanaty, M.-S. Alouini, M. Canini, SIDCo, MLSys 2021"
    fixed_size = False
    used_on_host = True
    overflows = False
    feedback = "required"

    def __post_init__(self) -> None:
        require(is_float32(self.ratio) and 0 < self.ratio < 1, "SIDCo.ratio", "in (0, 1)", self.ratio)
        allowed = ("exp", "gamma", "gp")
        require(self.distribution in allowed, "SIDCo.distribution", "'exp', 'gamma' or 'gp'", self.distribution)
        require(is_int(self.period, 1), "SIDCo.period", "an integer >= 1", self.period)

    @property
    def most_stages(self) -> int:
        """The largest M for which the last stage's fraction does not exceed 1."""
        return 1 + int(math.log(self.ratio) / math.log(_tails.STAGE_RATIO))

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout(
            (
                Field("used", torch.int32, 1),
                Field("counts", torch.int32, segments(n)),
                Field("stream", torch.uint8, 4 * n),
            )
        )

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        """Make the state: ``stages`` is M; ``history`` holds the steps and the sum of achieved / target since M
        changed, ln of the mean before that, and the direction of the last change, 0 before the first.
        """
        history = torch.zeros(4, dtype=torch.float64, device=device)
        return {"stages": torch.tensor([self.most_stages], dtype=torch.int32, device=device), "history": history}

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        used, counts, stream = payload
        flat = x.view(-1)
        threshold = _tails.threshold(flat, self.ratio, self.distribution, int(state["stages"]))
        if threshold == 0:
            counts.zero_()
            _entries.fill(used, stream)
            return
        # Entries must take fewer bytes than the dense form: its length is what tells it from them.
        limit = -1 if math.isnan(threshold) else (4 * flat.numel() - 1) // 6
        entries = take_beyond(flat, counts, threshold, threshold, limit)
        if entries is None:
            counts.zero_()
        _entries.fill(used, stream, *(entries or (flat,)))
        self._learn(state, flat.numel() if entries is None else len(entries[0]), flat.numel())

    def _learn(self, state: State, sent: int, n: int) -> None:
        steps, total, before, move = state["history"].tolist()
        steps, total = steps + 1, total + sent / max(1.0, self.ratio * n)
        if steps >= self.period:
            off = math.log(total / steps)
            if abs(off) > _FORGIVEN:
                if move == 0:
                    move = math.copysign(1, -off)
                elif off * before < 0 or abs(off) > abs(before):
                    move = -move
                state["stages"].add_(int(move)).clamp_(1, self.most_stages)
                before = off
            steps, total = 0.0, 0.0
        state["history"].copy_(torch.tensor([steps, total, before, move], dtype=torch.float64, device="cpu"))

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        add_ranks(payloads, out, scale, _read, _add_dense)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse entries that do not describe different elements of the tensor.

        Raises:
            WireError: the bytes in ``used`` are neither those of whole entries nor of the dense form, or a place is
                impossible.
        """
        used, counts, stream = payload
        n, nbytes = math.prod(shape), int(used)
        if nbytes == 4 * n:
            return
        if not 0 <= nbytes < 4 * n or nbytes % 6:
            raise WireError(f"{self.name} must use {4 * n} bytes, or a multiple of 6 below that, got {nbytes}")
        low = _entries.part(stream, nbytes // 6 * 4, nbytes // 6, torch.int16)
        check_places(self.name, counts, low, n)


def _read(payload: Payload, n: int) -> list[Entries] | None:
    used, counts, stream = payload
    nbytes = _entries.in_use(used, stream)
    if nbytes == 4 * n:
        return None
    k = nbytes // 6
    values, low = _entries.part(stream, 0, k, torch.float32), _entries.part(stream, 4 * k, k, torch.int16)
    return [Entries(values, low, counts)]


def _add_dense(payload: Payload, flat: Tensor, scale: float) -> None:
    flat.add_(_entries.part(payload[-1], 0, flat.numel(), torch.float32), alpha=scale)
