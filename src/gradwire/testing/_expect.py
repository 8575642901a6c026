"""Tools that the checks share: a way to fail, bit-for-bit equality, payloads in poisoned memory."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.vocabulary import Key, Payload

__all__ = ["POISON", "decode", "encode", "expect", "payload_for", "same"]

POISON = 0xA5


def expect(ok: bool, compressor: Compressor, what: str) -> None:
    """Raise ``AssertionError`` unless ``ok``; the message names the compressor with its parameters."""
    if not ok:
        raise AssertionError(f"{compressor!r}: {what}")


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors are equal bit for bit (-0.0 is not 0.0), any NaN being equal to any other."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    equal = a.contiguous().view(-1).view(torch.uint8) == b.contiguous().view(-1).view(torch.uint8)
    both_nan = (a.isnan() & b.isnan()).view(-1).repeat_interleave(a.element_size())
    return bool((equal | both_nan).all())


def payload_for(compressor: Compressor, x: Tensor) -> tuple[Tensor, Payload]:
    """A send buffer full of ``POISON`` and its typed views."""
    layout = compressor.layout(x.shape)
    buffer = torch.full((layout.nbytes,), POISON, dtype=torch.uint8, device=x.device)
    return buffer, layout.views(buffer)


def encode(compressor: Compressor, x: Tensor, key: Key | None = None) -> tuple[Tensor, Payload]:
    """Encode with a new state."""
    key = key or Key()
    buffer, payload = payload_for(compressor, x)
    compressor.encode(x, payload, compressor.init_state(x.shape, key, x.device), key)
    return buffer, payload


def decode(compressor: Compressor, payload: Payload, like: Tensor) -> Tensor:
    """Compute D(payload) in a new tensor."""
    out = torch.zeros_like(like)
    compressor.add_decoded(payload, out)
    return out
