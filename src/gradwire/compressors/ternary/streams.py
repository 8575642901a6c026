"""Streams of codes of +t, 0 and -t, whose form depends on how many are not 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.compressors.auto_threshold import choose
from gradwire.compressors.ternary import ops
from gradwire.compressors.ternary.ops import capacity
from gradwire.errors import WireError
from gradwire.kernels.codes import code_bytes
from gradwire.vocabulary import Field, Layout, Payload, State

__all__ = ["add_streams", "check_stream", "codes_for", "dithered", "dithered_feedback", "shrink", "stream_layout"]


def stream_layout(n: int, *fields: Field) -> Layout:
    """The layout with room for ``n`` codes in any form, behind other fields; a payload of variable size."""
    return Layout((Field("used", torch.int32, 1), *fields, Field("stream", torch.uint8, capacity(n))))


def codes_for(x: Tensor) -> Tensor:
    """Allocate the 2-bit codes of x, a sixteenth of its size, from which the smallest form is made."""
    return torch.empty(code_bytes(x.numel(), 2), dtype=torch.uint8, device=x.device)


def dithered(x: Tensor, codes: Tensor, threshold: Tensor, state: State, target: float) -> None:
    """Choose a threshold, and write the 2-bit codes of the elements that fire with it."""
    ops.dithered_encode(x.view(-1), codes, choose(x, threshold, state, target))


def dithered_feedback(
    grad: Tensor,
    residual: Tensor,
    codes: Tensor,
    threshold: Tensor,
    state: State,
    target: float,
    status: Tensor | None,
) -> None:
    """Choose a threshold, and write the 2-bit codes of residual + grad; the residual keeps the rest."""
    level = choose(grad, threshold, state, target, residual)
    ops.dithered_encode_feedback(grad.view(-1), residual.view(-1), codes, threshold, level, status)


def shrink(codes: Tensor, payload: Payload, n: int, words: bool = False) -> None:
    """Write the codes in their smallest form."""
    used, *_, stream = payload
    ops.ternary_encode(codes, used, stream, n, words)


def add_streams(payloads: Payload, out: Tensor, threshold: float, scale: float, steps: Tensor | None = None) -> None:
    """Compute ``out += scale * sum of the payloads``, one row of each field for each rank; ``steps`` are factors of
    each.
    """
    ops.ternary_add_decoded(payloads[-1], out.view(-1), threshold, scale, steps)


def check_stream(name: str, payload: Payload, shape: Sequence[int], words: bool = False) -> None:
    """Refuse a stream that differs from the encoding of the codes it holds.

    Raises:
        WireError: the stream is not what the encoder writes.
    """
    n = math.prod(shape)
    used, *_, stream = payload
    said = torch.zeros(n, dtype=torch.float32, device=stream.device)
    ops.ternary_add_decoded(stream.unsqueeze(0), said, 1.0, 1.0)
    codes, again = codes_for(said), (torch.empty_like(used), stream.new_empty(capacity(n)))
    ops.twobit_encode(said, codes, 0.5)
    shrink(codes, again, n, words)
    size = int(again[0])
    if int(used) != size or not torch.equal(stream[:size], again[1][:size]):
        raise WireError(f"{name} stream of {int(used)} bytes is not as written: what it says takes {size}, in one form")
