"""Base of twobit and strom: codes of +t, 0 and -t, in 2 bits or in a stream, in the smallest of several forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors import auto_threshold
from gradwire.compressors.auto_threshold import AUTO
from gradwire.compressors.decoders import FreshDecoder
from gradwire.compressors.ternary import ops
from gradwire.errors import WireError
from gradwire.kernels.codes import code_bytes
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["TernaryCode"]


class TernaryCode(FreshDecoder):
    """A method that sends +t, 0 or -t for each element by a threshold, fixed or "auto", and keeps the rest."""

    feedback = "built-in"
    alignment = 16

    threshold: float | Literal["auto"]
    target: float

    strict: ClassVar[bool] = False
    """An element must be beyond the threshold to be sent."""

    @property
    def words(self) -> bool:
        """Return whether what is not 0 takes 32 bits each in a stream that is not made of 2-bit codes."""
        return False

    def __post_init__(self) -> None:
        name = type(self).__name__
        auto_threshold.require_threshold(f"{name}.threshold", self.threshold, above=True)
        auto_threshold.require_target(f"{name}.target", self.target)

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """Return whether elements are encoded independently, as they are unless the threshold is "auto"."""
        return self.threshold != AUTO

    @property
    def advice(self) -> int:
        return auto_threshold.WISHES if self.threshold == AUTO else 0

    def layout(self, shape: Sequence[int]) -> Layout:
        n, own = math.prod(shape), auto_threshold.fields_of(self.threshold)
        if self.fixed_size:
            return Layout((*own, Field("codes", torch.uint8, code_bytes(n, 2))))
        return Layout((Field("used", torch.int32, 1), *own, Field("stream", torch.uint8, ops.capacity(n))))

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        return auto_threshold.state_of(self.threshold, device)

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        fixed = self.fixed_size
        codes = payload[-1] if fixed else _codes_for(x)
        if self.threshold == AUTO:
            level = auto_threshold.choose(x, payload[-2], state, self.target)
            ops.dithered_encode(x.view(-1), codes, level)
        else:
            ops.twobit_encode(x, codes, self.threshold, self.strict)
        if not fixed:
            self._shrink(codes, payload, x.numel())

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        fixed = self.fixed_size
        codes = payload[-1] if fixed else _codes_for(grad)
        if self.threshold == AUTO:
            threshold = payload[-2]
            level = auto_threshold.choose(grad, threshold, state, self.target, residual)
            ops.dithered_encode_feedback(grad.view(-1), residual.view(-1), codes, threshold, level, status)
        else:
            ops.twobit_encode_feedback(grad, residual, codes, self.threshold, status, self.strict)
        if not fixed:
            self._shrink(codes, payload, grad.numel())

    def _shrink(self, codes: Tensor, payload: Payload, n: int) -> None:
        """Write the codes in their smallest form."""
        ops.ternary_encode(codes, payload[0], payload[-1], n, self.words)

    def add_rows(self, payloads: Payload, out: Tensor, scale: float, *, fresh: bool) -> None:
        threshold, steps = auto_threshold.steps_of(self.threshold, payloads)
        if self.fixed_size:
            ops.twobit_add_decoded(payloads[-1], out, threshold, scale, steps, fresh)
            return
        if fresh:
            kernels.fill_where(out, 0.0)
        ops.ternary_add_decoded(payloads[-1], out.view(-1), threshold, scale, steps)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse a stream that is empty or damaged, or in another form than the encoder would choose.

        Raises:
            WireError: the stream is empty, damaged or not in the form of the encoder, or its threshold is negative or
                not finite. Every payload of 2-bit codes and a fixed threshold is accepted.
        """
        auto_threshold.check_carried(self.name, self.threshold, payload)
        if self.fixed_size:
            return
        n, (used, *_, stream) = math.prod(shape), payload
        said = torch.zeros(n, dtype=torch.float32, device=stream.device)
        ops.ternary_add_decoded(stream.unsqueeze(0), said, 1.0, 1.0)
        codes, again = _codes_for(said), (torch.empty_like(used), stream.new_empty(ops.capacity(n)))
        ops.twobit_encode(said, codes, 0.5)
        self._shrink(codes, again, n)
        size = int(again[0])
        if int(used) != size or not torch.equal(stream[:size], again[1][:size]):
            raise WireError(
                f"{self.name} stream of {int(used)} bytes is not as written: what it says takes {size}, in one form"
            )


def _codes_for(x: Tensor) -> Tensor:
    """Allocate the 2-bit codes of x, a sixteenth of its size, from which the smallest form is made."""
    return torch.empty(code_bytes(x.numel(), 2), dtype=torch.uint8, device=x.device)
