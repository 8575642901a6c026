"""Checks of what a method claims in expectation: bias, variance factor, contraction."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.testing._expect import decode, encode, expect
from gradwire.vocabulary import Key

__all__ = ["check_contraction", "check_omega", "check_unbiased"]

_DRAWS = 300
_WORK = 1_000_000
_SIGMAS = 5.0
_VANISHING = 2.0**-120
"""An element below this may be sent as zero by any method."""


def check_unbiased(compressor: Compressor, x: Tensor) -> None:
    """Check that the mean error over many keys vanishes along x, its signs, a constant and random directions."""
    if not compressor.unbiased:
        return
    flat = x.view(-1).double()
    signs = torch.randint(0, 2, (5, flat.numel()), generator=torch.Generator().manual_seed(1)) * 2.0 - 1.0
    probes = torch.cat([torch.stack([flat, flat.sign(), torch.ones_like(flat)]), signs.to(flat)])
    along = torch.stack([probes @ error for error in _errors(compressor, x)])
    rounding = probes.abs() @ (2.0**-20 * flat.abs() + _VANISHING)
    allowed = _SIGMAS * _standard_error(along) + rounding
    worst = float((along.mean(0).abs() / allowed.clamp_min(1e-300)).amax())
    expect(worst <= 1, compressor, f"is biased: a mean error of {_SIGMAS * worst:.1f} standard errors")


def check_omega(compressor: Compressor, x: Tensor) -> None:
    """Check that E|C(x) - x|^2 <= omega |x|^2."""
    omega = capabilities.omega(compressor, x.numel())
    if compressor.unbiased and math.isfinite(omega):
        _check_error(compressor, x, omega, "omega")


def check_contraction(compressor: Compressor, x: Tensor) -> None:
    """Check that E|C(x) - x|^2 <= (1 - delta) |x|^2."""
    if capabilities.contraction(compressor):
        expect(capabilities.delta(compressor, x.numel()) > 0, compressor, "a contraction needs delta > 0")
        _check_error(compressor, x, 1 - capabilities.delta(compressor, x.numel()), "1 - delta")


def _check_error(compressor: Compressor, x: Tensor, factor: float, what: str) -> None:
    size = float(x.double().square().sum())
    squares = torch.stack([error.square().sum() for error in _errors(compressor, x)])
    if not bool(squares.isfinite().all()):
        return
    rounding = 2.0**-40 * size + x.numel() * _VANISHING**2
    mean, allowed = float(squares.mean()), factor * size + _SIGMAS * float(_standard_error(squares)) + rounding
    expect(mean <= allowed, compressor, f"|C(x) - x|^2 = {mean:.4g} exceeds {what} = {factor:.4g} of {size:.4g}")


def _standard_error(draws: Tensor) -> Tensor:
    return draws.std(0, correction=0) / math.sqrt(len(draws))


def _errors(compressor: Compressor, x: Tensor) -> Iterator[Tensor]:
    """Compute C(x) - x in float64 for keys of many steps, fewer for a large x; once if the method is not random."""
    draws = min(_DRAWS, max(20, _WORK // max(x.numel(), 1))) if compressor.random else 1
    for step in range(draws):
        payload = encode(compressor, x, Key(step=step))[1]
        yield (decode(compressor, payload, x).double() - x.double()).view(-1)
