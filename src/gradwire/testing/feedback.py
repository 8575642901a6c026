"""Checks of error feedback: nothing is lost, and a step can be undone."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.testing._expect import decode, encode, expect, payload_for, same
from gradwire.vocabulary import Key

__all__ = ["check_feedback", "check_nonfinite", "check_undo"]


def check_feedback(compressor: Compressor, x: Tensor) -> None:
    """Check that the payload is that of residual + gradient, and that the new residual is what the payload lacks."""
    grad, residual = _pair(x)
    total = residual + grad
    expected_bytes, payload = encode(compressor, total)
    expected = total.clone()
    compressor.add_decoded(payload, expected, -1.0)
    kept = grad.clone()
    buffer = _feed(compressor, grad, residual, None)
    expect(same(grad, kept), compressor, "encode_feedback changed the gradient although no status was given")
    expect(same(buffer, expected_bytes), compressor, "encode_feedback does not send encode(residual + grad)")
    # + 0.0 takes the sign from a zero: a fused kernel that subtracts nothing leaves -0.0, the decoder makes it 0.0.
    expect(same(residual + 0.0, expected + 0.0), compressor, "the residual is not residual + grad - decoded")
    if bool(residual.isfinite().all()):
        decoded = decode(compressor, payload, x)
        size = decoded.abs() + total.abs()
        if not capabilities.portable(compressor) and x.numel():
            # An element is a sum of products that may cancel: those of factors without signs do not.
            unsigned = tuple(field.abs() if field.is_floating_point() else field for field in payload)
            size = (size + decode(compressor, unsigned, x).abs()).amax()
        lost = (decoded + residual - total).abs()
        close = lost <= 2.0**-21 * size + 2.0**-120
        expect(bool(close.all()), compressor, "decoded + residual is not the compensated gradient")


def check_undo(compressor: Compressor, x: Tensor) -> None:
    """Check that a status changes no result, and that the gradient receives the old residual bit for bit."""
    grad, residual = _pair(x)
    plain_residual, old = residual.clone(), residual.clone()
    plain = _feed(compressor, grad.clone(), plain_residual, None)
    status = torch.tensor([2], dtype=torch.int32, device=x.device)
    buffer = _feed(compressor, grad, residual, status)
    expect(same(grad, old), compressor, "the gradient did not receive the old residual")
    expect(same(buffer, plain) and same(residual, plain_residual), compressor, "a status changes the result")
    broken = not bool(residual.isfinite().all())
    expect(status.item() == 2 + broken, compressor, f"status 2 became {status.item()}, residual finite: {not broken}")


def check_nonfinite(compressor: Compressor, x: Tensor) -> None:
    """Check that a gradient that is not finite is reported, and that the residual can be restored."""
    for bad in (torch.nan, torch.inf, -torch.inf) if x.numel() else ():
        grad, residual = _pair(x)
        grad.view(-1)[x.numel() // 2] = bad
        old = residual.clone()
        status = torch.zeros(1, dtype=torch.int32, device=x.device)
        _feed(compressor, grad, residual, status)
        expect(status.item() == 1, compressor, f"a gradient with {bad} left status at {status.item()}")
        expect(same(grad, old), compressor, f"a gradient with {bad}: the old residual is lost")


def _pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clone(), (x.flip(0) if x.dim() else x).mul(0.25)


def _feed(compressor: Compressor, grad: Tensor, residual: Tensor, status: Tensor | None) -> Tensor:
    buffer, payload = payload_for(compressor, grad)
    state = compressor.init_state(grad.shape, Key(), grad.device)
    compressor.encode_feedback(grad, residual, payload, state, Key(), status)
    return buffer
