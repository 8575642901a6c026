"""Methods that must not be timed."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.vocabulary import Key, Payload, State


@dataclass(frozen=True)
class Forgetful(TwoBit):
    """Loses what it does not send."""

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        super().encode_feedback(grad, residual, payload, state, key, status)
        residual.zero_()


@dataclass(frozen=True)
class Parting(TwoBit):
    """Decodes something else on each rank."""

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        super().add_decoded_many(payloads, out, scale)
        out.view(-1)[0] += dist.get_rank()
