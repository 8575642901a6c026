"""Limits of a measurement: sizes that would take minutes, such as the factorisation of a large matrix, or more memory
than there is, such as eight payloads of a generous capacity, are skipped with the reason.

What a size will take is foretold from the size before it, in proportion to the elements. A method whose time grows
faster overruns its budget once, at the first size that is too large.
"""

from __future__ import annotations

import math
from pathlib import Path

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.memory.base import Memory
from gradwire_lab.bench.steps import Step

__all__ = ["Budget", "available_bytes"]

_LEAST_ROUNDS = 6
"""A row has at least 5 rounds that count and one that does not."""


class Budget:
    """A record of the time that rows took, which refuses sizes that would take too long.

    Args:
        seconds: seconds that a row may take, > 0.

    Example:
        >>> from gradwire_lab.bench.steps import STEPS
        >>> from gradwire.compressors.ternary.twobit import TwoBit
        >>> budget = Budget(seconds=10.0)
        >>> budget.learn(STEPS[0], TwoBit(), 1000, checked=2.0, once=0.1)
        >>> budget.refusal(STEPS[0], TwoBit(), 2000)
        >>> budget.refusal(STEPS[0], TwoBit(), 4000)
        'would take about 10 s, more than the 10 s of a row'
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._rates: dict[tuple[Compressor, str], float] = {}

    def learn(self, step: Step, compressor: Compressor, n: int, *, checked: float, once: float) -> None:
        """Note a measured row: the seconds until it could be timed, and those of one call."""
        self._rates[compressor, step.name] = (checked + _LEAST_ROUNDS * once) / n

    def refusal(self, step: Step, compressor: Compressor, n: int) -> str | None:
        """The reason why a size must not be tried; None if it may be."""
        foretold = n * self._rates.get((compressor, step.name), 0.0)
        if foretold > self.seconds:
            return f"would take about {foretold:.0f} s, more than the {self.seconds:g} s of a row"
        needed, free = _needed_bytes(step, compressor, n), available_bytes()
        return f"needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free" if needed > free else None


def available_bytes() -> float:
    """Memory that is available without swapping; infinite if the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.inf
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * float(found[0]) if found else math.inf


def _needed_bytes(step: Step, compressor: Compressor, n: int) -> int:
    """The bytes of two workloads that exist at once, and of the noise that both are made of."""
    own = capabilities.memory(compressor)
    memory: Memory | None = None if own is None else registry.build("memory", own)
    kept = 0 if memory is None else len(memory.buffers) * memory.form.nbytes(n)
    return 2 * (12 * n + kept + step.ranks * compressor.layout((n,)).nbytes) + 4 * n
