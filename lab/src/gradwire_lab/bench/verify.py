"""Checks against the reference before any timing: a wrong result is never timed."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.errors import GradwireError
from gradwire_lab.bench.reference import Reference
from gradwire_lab.bench.steps import Step

__all__ = ["Checks", "WrongResultError", "check", "first_difference"]

ALWAYS = 1 << 22
"""Sizes up to this one are checked whatever it takes; above, where the reference is fast enough."""

PATIENCE = 1.0
"""Seconds that the reference may be expected to take at a larger size."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WrongResultError(GradwireError):
    """An operation and the plain-torch reference disagree."""


class Checks:
    """A comparison of operations with the reference; a check at size ``ALWAYS`` counts for every larger size."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[Compressor, str], float] = {}

    def __call__(self, step: Step, compressor: Compressor, n: int) -> int:
        """Compare every tensor that the step writes, bit for bit, with the contract's definition run by the plain-torch
        reference.

        Returns:
            The largest size that was checked: ``n``, or ``ALWAYS`` where the reference would be too slow at ``n``.

        Raises:
            WrongResultError: a tensor differs from its reference.
        """
        if n < ALWAYS:
            _check(step, compressor, n)
            return n
        seconds = self._at_always(step, compressor)
        if n > ALWAYS and seconds * (n / ALWAYS) >= PATIENCE:
            return ALWAYS
        if n > ALWAYS:
            _check(step, compressor, n)
        return n

    def _at_always(self, step: Step, compressor: Compressor) -> float:
        """Check at size ``ALWAYS`` once, and return the seconds that the reference took."""
        key = compressor, step.name
        if key not in self._seconds:
            self._seconds[key] = _check(step, compressor, ALWAYS)
        return self._seconds[key]


def check(step: Step, compressor: Compressor, n: int) -> int:
    """Compare one operation at one size, as ``Checks`` does."""
    return Checks()(step, compressor, n)


def _check(step: Step, compressor: Compressor, n: int) -> float:
    """Check at exactly this size, and return the seconds that the reference took."""
    # A byte that is not written differs.
    got = step.workload(compressor, n, poison=0x00)
    want = step.workload(compressor, n, poison=0xFF, own=True)
    step.run(got)
    start = time.perf_counter()
    with Reference():
        step.plain(want)
    seconds = time.perf_counter() - start
    for (name, ours), (_, reference) in zip(got.tensors(), want.tensors(), strict=True):
        difference = first_difference(ours, reference)
        if difference is not None:
            raise WrongResultError(
                f"{compressor!r} {step.name} of {n} elements: {name} differs from the plain-torch reference"
                f" {difference}; nothing was timed"
            )
    return seconds


def first_difference(ours: Tensor, reference: Tensor) -> str | None:
    """Describe the first bit in which two tensors of one shape and dtype differ; None if they are equal.

    >>> first_difference(torch.zeros(3), torch.tensor([0.0, 2.0, 0.0]))
    'at 1 of 3 places, first at 1: 0.0 instead of 2.0'
    """
    a, b = ours.contiguous().view(-1), reference.contiguous().view(-1)
    bits = _BITS[a.itemsize]
    if torch.equal(a.view(bits), b.view(bits)):
        return None
    unequal = (a.view(torch.uint8) != b.view(torch.uint8)).view(-1, a.itemsize).any(1)
    count = int(unequal.sum())
    at = int(unequal.to(torch.uint8).argmax())
    return f"at {count} of {a.numel()} places, first at {at}: {a[at].item()} instead of {b[at].item()}"
