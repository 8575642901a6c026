"""A wrong result is never timed."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from gradwire.bench.reference import Reference
from gradwire.bench.steps import Step
from gradwire.compressors.base import Compressor
from gradwire.errors import GradwireError

__all__ = ["WrongResultError", "check"]

ALWAYS = 1 << 22
"""Sizes up to this one are checked whatever it takes; above, where the reference is fast enough."""

PATIENCE = 3.0
"""Seconds that the reference may be expected to take at a larger size."""


class WrongResultError(GradwireError):
    """An operation and the plain-torch reference disagree."""


def check(step: Step, compressor: Compressor, n: int) -> int:
    """Compare every tensor the step writes, bit for bit, with the contract's wording run by the plain-torch reference.

    Returns:
        The largest size that was checked: ``n``, or ``ALWAYS`` where the reference would be too slow at ``n``.

    Raises:
        WrongResultError: they differ.
    """
    size = min(n, ALWAYS)
    seconds = _check(step, compressor, size)
    if n > size and seconds * (n / size) < PATIENCE:
        _check(step, compressor, n)
        size = n
    return size


def _check(step: Step, compressor: Compressor, n: int) -> float:
    """Check at exactly this size; the seconds that the reference took."""
    # A byte that is not written differs, except where the layout is a capacity that need not be filled.
    got = step.workload(compressor, n, poison=0x00)
    want = step.workload(compressor, n, poison=0xFF if compressor.fixed_size else 0x00)
    step.run(got)
    start = time.perf_counter()
    with Reference():
        step.plain(want)
    seconds = time.perf_counter() - start
    for (name, ours), (_, reference) in zip(got.tensors(), want.tensors(), strict=True):
        difference = _first_difference(ours, reference)
        if difference is not None:
            raise WrongResultError(
                f"{compressor!r} {step.name} of {n} elements: {name} differs from the plain-torch reference"
                f" {difference}; nothing was timed"
            )
    return seconds


def _first_difference(ours: Tensor, reference: Tensor) -> str | None:
    """Where two tensors of one shape and dtype first differ in a bit; None: nowhere."""
    a, b = ours.contiguous().view(-1), reference.contiguous().view(-1)
    unequal = (a.view(torch.uint8) != b.view(torch.uint8)).view(-1, a.itemsize).any(1)
    count = int(unequal.sum())
    if not count:
        return None
    at = int(unequal.to(torch.uint8).argmax())
    return f"at {count} of {a.numel()} places, first at {at}: {a[at].item()} instead of {b[at].item()}"
