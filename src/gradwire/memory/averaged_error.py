"""Memory of a running mean of errors, in 8 bits: one byte an element in place of four."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, is_float32, is_int, require
from gradwire.kernels.stored import StoredForm
from gradwire.memory.base import OneRoundMemory
from gradwire.vocabulary import Key, Payload, State

__all__ = ["AveragedError"]


@dataclass(frozen=True)
class AveragedError(OneRoundMemory):
    """Compensate with a running mean of what was not sent, in codes of 8 bits: 1 byte an element and a scale a block.

    phi: x = g + e;  psi: e = (1 - beta) e + beta (x - D(Q(x))), and e = 0 before every ``reset``-th step.

    The mean is kept as m = e / beta under the name "residual": x = g + beta m and m = (1 - beta) m + x - D(Q(x)), so
    what was decoded and m make up the sum of all gradients, as with a residual; it only comes back more slowly.

    In each step an element of m is rounded to 1 / 254 of the largest of its block. What this takes, and what a reset
    forgets, is lost. So use it with codes of whose errors none is much smaller than its neighbours: those that round to
    levels, and not those that send a few elements.

    Args:
        beta: weight of the fresh error, in (0, 1]. Lower: less noise in what is compensated, which waits longer.
        reset: steps after which the errors are forgotten, >= 1; 0: they never are.
        block: elements that share a scale, a multiple of 16 in [16, 1024]; each costs 4 bytes. A method has a fused
            kernel for blocks as long as its own.

    Raises:
        ConfigError: a value is outside its range.

    Example:
        >>> AveragedError().form.nbytes(4096) / 4096
        1.015625

    Source:
        X. Xie, Z. Lin, K.-C. Toh, P. Zhou, "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training", 2024.
    """

    beta: float = 0.2
    reset: int = 1024
    block: int = 256

    name = "averaged_error"
    late = True
    buffers = ("residual",)

    def __post_init__(self) -> None:
        require(is_float32(self.beta) and 0 < self.beta <= 1, "AveragedError.beta", "in (0, 1]", self.beta)
        require(is_int(self.reset, 0), "AveragedError.reset", "an integer >= 0", self.reset)
        whole = is_int(self.block, 16, 1024, of=16)
        require(whole, "AveragedError.block", "a multiple of 16 in [16, 1024]", self.block)

    @property
    def form(self) -> StoredForm:
        return StoredForm(torch.uint8, self.block)

    def check_compressor(self, compressor: Compressor) -> None:
        if sends_few(compressor):
            raise ConfigError(
                "memory 'averaged_error' rounds errors to 1/254 of the largest of their block, so that small ones of "
                f"elements that {compressor!r} does not send would never grow: use memory='residual', or "
                "force=True"
            )

    def encode(
        self,
        compressor: Compressor,
        grad: Tensor,
        kept: Mapping[str, Tensor],
        payload: Payload,
        state: State,
        key: Key,
        status: Tensor,
        scale: float = 1.0,
    ) -> None:
        # By the number of the step, so that all ranks, and a resumed run, forget in the same one.
        forgets = self.reset > 0 and key.step % self.reset == 0
        weights = (0.0, 0.0) if forgets else (self.beta, 1.0 - self.beta)
        capabilities.encode_averaged(compressor, grad, kept["residual"], *weights, payload, state, key, status, scale)

    def takes_pieces(self, scale: float) -> bool:
        return scale == 1.0

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor], when: Tensor | None = None) -> None:
        # Codes of the numbers that ``encode`` left in the gradient have the same bytes as before.
        kernels.write_codes(grad.view(-1), kept["residual"].view(-1), self.block, when)


def sends_few(code: Compressor) -> bool:
    """Return whether a method, or one inside it, sends a few elements."""
    inner = getattr(code, "inner", None)
    return code.family in ("sparsification", "hybrid") or (isinstance(inner, Compressor) and sends_few(inner))
