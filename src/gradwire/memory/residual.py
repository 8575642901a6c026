"""Error feedback: the part of a gradient that was not sent is added to the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import is_float32, require
from gradwire.kernels.stored import FLOAT32, StoredForm, accumulate_into, keep_unless, read, swap_with, write
from gradwire.memory.base import Memory
from gradwire.vocabulary import Key, Payload, State

__all__ = ["DTYPES", "SHORT", "Residual"]

DTYPES = {
    "float32": FLOAT32,
    "bfloat16": StoredForm(torch.bfloat16),
    "int4": StoredForm(torch.int8, block=256),
}
"""The forms in which a residual is stored, by their names."""

SHORT = {"bf16": "bfloat16"}
"""Other names for these."""


@dataclass(frozen=True)
class Residual(Memory):
    """Compensate with the residual, keep the new one: 4 bytes an element.

    phi: x = beta m + gamma g;  psi: m = x - D(Q(x)).

    Args:
        beta: share of the residual that returns, in (0, 1]. Below 1 old gradients fade, and what fades is lost.
        gamma: > 0; weight of the fresh gradient.
        dtype: "float32", or "bfloat16" ("bf16" for short): 2 bytes an element in place of 4. What the rounding takes,
            up to 1/256 of an element each time, is lost, and the fused kernels, which read float32, are not used. Or
            "int4": half a byte, codes of 4 bits with a scale for 256 elements, as MicroAdam keeps its error. Then up to
            1/14 of the largest element of a block is lost of each element, so what is far smaller than that is lost as
            a whole; and a zero stays one. Where elements of all sizes wait, take "bfloat16".

    Raises:
        ConfigError: a value outside its range.

    Example:
        >>> Residual().buffers
        ('residual',)

    Source:
        H. Xu et al., "GRACE: A Compressed Communication Framework for Distributed Machine Learning", ICDCS 2021,
        equation 4, with the decompressed value in psi.
    """

    beta: float = 1.0
    gamma: float = 1.0
    dtype: Literal["float32", "bfloat16", "bf16", "int4"] = "float32"

    name = "residual"
    plain = True
    takes_dtype = True
    late = True
    buffers = ("residual",)

    def __post_init__(self) -> None:
        require(is_float32(self.beta) and 0 < self.beta <= 1, "Residual.beta", "in (0, 1]", self.beta)
        require(is_float32(self.gamma) and self.gamma > 0, "Residual.gamma", "a finite number > 0", self.gamma)
        if isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", SHORT.get(self.dtype, self.dtype))
        known = isinstance(self.dtype, str) and self.dtype in DTYPES
        require(known, "Residual.dtype", " or ".join(map(repr, DTYPES)), self.dtype)

    @property
    def form(self) -> StoredForm:
        return DTYPES[self.dtype]

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
        residual = kept["residual"]
        if self.beta == self.gamma == scale == 1.0 and self.dtype == "float32":
            compressor.encode_feedback(grad, residual, payload, state, key, status)
            return
        if compressor.summable and self.takes_pieces(scale):
            # The old residual is left in the gradient.
            kernels.accumulate(grad.view(-1), residual.view(-1), status)
            capabilities.encode_scaled(compressor, residual, scale, payload, state, key)
            compressor.add_decoded(payload, residual, -1.0 / scale)
            if capabilities.overflows(compressor):
                # The remainder is not finite where the code overflowed.
                kernels.nonfinite(residual.view(-1), status)
            return
        self.compensate(grad, kept)
        grad.mul_(scale)
        kernels.nonfinite(grad.view(-1), status)
        compressor.encode(grad, payload, state, key)
        compressor.add_decoded(payload, grad, -1.0)
        grad.mul_(1.0 / scale)
        if self.dtype != "float32" or capabilities.overflows(compressor):
            # The remainder is not finite where the code overflowed.
            kernels.nonfinite(grad.view(-1), status)
        if self.dtype == "float32":
            # Swapped, so that the old residual is in the gradient for ``rollback``.
            kernels.swap(grad.view(-1), residual.view(-1))
        else:
            swap_with(grad, residual)

    def takes_pieces(self, scale: float) -> bool:
        """Return whether pieces can be encoded: their sum with the residual must be an operation."""
        return self.beta == self.gamma == 1.0 and self.form == FLOAT32

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor], when: Tensor | None = None) -> None:
        if self.form == FLOAT32:
            kernels.copy_where(grad.view(-1), kept["residual"].view(-1), when)
        else:
            # Without a condition: this form takes no pieces, so ``Batch.restore`` selects the result itself.
            write(kept["residual"], grad)

    def begin_or_undo(self, out: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        kernels.begin_sum(out.view(-1), kept["residual"].view(-1), bad)

    def returned(self, grad: Tensor, kept: Mapping[str, Tensor], places: Tensor, values: Tensor) -> None:
        residual = kept["residual"]
        if self.form.block:
            whole = read(residual)
            write(residual, whole.index_add_(0, places, values))
        else:
            residual.view(-1).index_add_(0, places, values.to(residual.dtype))

    def compensate(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        self._compensate([grad], [kept])

    def compensate_each(self, grads: Sequence[Tensor], kept: Sequence[Mapping[str, Tensor]]) -> None:
        self._compensate(grads, kept)

    def _compensate(self, grads: Sequence[Tensor], kept: Sequence[Mapping[str, Tensor]]) -> None:
        if self.gamma != 1.0:
            torch._foreach_mul_(list(grads), self.gamma)
        if self.form.block:
            for grad, each in zip(grads, kept, strict=True):
                accumulate_into(grad, each["residual"], self.beta)
        else:
            torch._foreach_add_(list(grads), [each["residual"].to(torch.float32) for each in kept], alpha=self.beta)

    def update(self, unsent: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        residual = kept["residual"]
        if self.dtype == "float32":
            kernels.copy_where(unsent.view(-1), residual.view(-1), ~bad.view(1))
        else:
            keep_unless(bad, unsent, residual)
