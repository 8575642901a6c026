"""The cost of one round of messages: the alpha-beta model of a link.

For W workers, each with a full-duplex link of its own to all others:

    exchange      every worker sends a message to every other    alpha + (W - 1) omicron + max(out, in) / beta
    all_reduce    Gloo's ring over b bytes                       2 (W - 1) alpha + 2 (W - 1)/W b / beta
    broadcast     one message from each worker, two at a time    ceil(W / 2) ceil(log2 W) (alpha + b / beta)

alpha is the latency of a message, omicron the work for one more message, beta the bytes of payload a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from gradwire.errors import require
from gradwire.transport.collective_round import Round

__all__ = ["LATENCY", "MESSAGE", "Wire"]

LATENCY, MESSAGE = 100e-6, 20e-6
"""The seconds of a message between two processes over TCP where nobody measured, and of one more of a round."""


@dataclass(frozen=True)
class Wire:
    """The parameters of a link's cost.

    Args:
        workers: number of workers that the link joins, >= 1.
        rate: bytes of payload a second in each direction, > 0; infinite: no limit.
        latency: seconds of a message, >= 0.
        message: seconds for each further message of a round, >= 0.
        cores: cores that a worker's transport keeps busy while bytes move, >= 0; only workers on one machine feel it.

    Raises:
        ConfigError: a number out of range.

    Example:
        >>> wire = Wire(workers=4, rate=1e6, latency=0.001, message=0.0)
        >>> wire.seconds(Round("exchange", 3e6, 3e6))
        3.001
    """

    workers: int
    rate: float
    latency: float = LATENCY
    message: float = MESSAGE
    cores: float = 0.0

    def __post_init__(self) -> None:
        require(self.workers >= 1, "Wire.workers", "an integer >= 1", self.workers)
        require(self.rate > 0, "Wire.rate", "bytes a second > 0", self.rate)
        require(0 <= self.latency < math.inf, "Wire.latency", "seconds >= 0", self.latency)
        require(0 <= self.message < math.inf, "Wire.message", "seconds >= 0", self.message)
        require(0 <= self.cores < math.inf, "Wire.cores", "cores >= 0", self.cores)

    def seconds(self, each: Round) -> float:
        """The seconds of one round."""
        return self.alpha(each) + self.transfer(each)

    def alpha(self, each: Round) -> float:
        """The part of the cost that does not depend on the bytes."""
        if self.workers == 1 or each.nbytes == 0:
            return 0.0
        if each.kind == "all_reduce":
            return 2 * (self.workers - 1) * self.latency
        if each.kind == "broadcast":
            return self._turns * self.latency
        return self.latency + (self.workers - 1) * self.message

    def transfer(self, each: Round) -> float:
        """The part of the cost that depends on the bytes."""
        return 0.0 if self.workers == 1 else self.load(each) / self.rate

    def fixed(self, each: Round) -> float:
        """The part of the cost that does not depend on the rate."""
        return self.alpha(each)

    def load(self, each: Round) -> float:
        """The bytes that pass the link one after the other."""
        return self._turns * each.nbytes / (self.workers - 1) if each.kind == "broadcast" else each.nbytes

    def at_rate(self, rate: float) -> Self:
        """The same model at another rate in bytes of payload a second."""
        return replace(self, rate=rate)

    @property
    def _turns(self) -> int:
        """The number of messages one after the other: Gloo has two threads, and each message goes down a tree."""
        return -(-self.workers // 2) * (self.workers - 1).bit_length()
