"""The link of a training: its rate and latency as measured, and what hosts of several ranks make of it.

Bytes over seconds give the rate, from whatever travels now. A candidate whose messages miss this model has a factor of
its own (``misses.py``).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gradwire.auto.host_links import HostWire, measured
from gradwire.auto.link_cost import LATENCY, MESSAGE, Wire
from gradwire.auto.misses import Misses
from gradwire.auto.traffic import PredictedTraffic
from gradwire.engine.exchange import Exchange
from gradwire.errors import ConfigError
from gradwire.transport.collective_round import Round
from gradwire.transport.hosts import hosts_of

__all__ = ["LinkModel", "rounds_of"]


def rounds_of(sent: PredictedTraffic) -> tuple[Round, ...]:
    """All rounds of a bucket."""
    return (*sent.dense, *sent.rounds)


class LinkModel:
    """The link between the ranks of an exchange.

    Args:
        exchange: exchange whose messages pass it.

    Attributes:
        wire: the link as it was measured last; None: nothing was measured yet.
        hosts: the links of hosts that have several ranks each; None: there are none, or nobody has asked yet.
        misses: factors by which candidates miss the model.
        latency: seconds of a message.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange: Exchange = weakref.proxy(exchange)
        self.hosts: HostWire | None = None
        self._asked = False
        self.restart()

    def restart(self) -> None:
        """Forget what was measured, but for which ranks share a host."""
        self.wire: Wire | None = None
        self.latency = LATENCY
        self.misses = Misses()
        self._fresh = False

    def switched(self) -> None:
        """Note that other candidates are in use from now on: their first window tells how they miss the model."""
        self._fresh = True

    @property
    def size(self) -> int:
        """The number of ranks of a host, where hosts have a choice of their own; else 1."""
        return 1 if self.hosts is None else self.hosts.size

    def at(self, rate: float) -> Wire:
        """The link at a rate in bytes a second."""
        message = min(MESSAGE, self.latency)
        if self.hosts is not None:
            return replace(self.hosts, rate=rate, latency=self.latency, message=message)
        return Wire(self._exchange.channel.world, rate, self.latency, message)

    def measured(self, sent: Sequence[PredictedTraffic], busy: Sequence[float], labels: Sequence[str]) -> Wire | None:
        """The link as the messages of some buckets show it; None where nothing travelled.

        Args:
            sent: messages of each bucket.
            busy: seconds that they took.
            labels: candidate of each bucket.
        """
        model = self.wire or self.at(math.inf)
        moved = sum(model.load(each) for one in sent for each in rounds_of(one))
        waited = sum(model.fixed(each) for one in sent for each in rounds_of(one))
        time = sum(one / self.misses.of(label) for one, label in zip(busy, labels, strict=True))
        if not moved or time <= 0:
            return None
        # The fixed part is an estimate, and must not leave a time of nothing.
        return self.at(moved / max(time - waited, 0.2 * time))

    @contextmanager
    def taken_as(self, rate: float) -> Iterator[None]:
        """Take the link for one of another rate, for a prediction."""
        known = self.wire
        assert known is not None
        self.wire = known.at_rate(rate)
        yield
        self.wire = known

    def correct(
        self,
        found: Mapping[str, tuple[Sequence[Round], float]],
        unsure: float,
        better: Callable[[float], bool],
    ) -> None:
        """Note by what factor the messages of candidates miss the model in their first window, as ``Misses.learn``."""
        fresh, self._fresh = self._fresh, False
        if fresh and self.wire is not None:
            self.misses.learn(found, self.wire, unsure, better)

    def find_hosts(self) -> bool:
        """Ask once which ranks share a host, and measure how fast messages are there. All ranks must call it alike.

        Returns:
            True where what hosts send together is one more candidate now.
        """
        exchange = self._exchange
        if self._asked or self.wire is None:
            return False
        # Also where it fails, because all ranks must ask equally often.
        self._asked = True
        try:
            hosts = hosts_of(exchange.channel, exchange.device)
        except ConfigError:
            return False  # Hosts of different sizes, the same on all ranks.
        if hosts.size == 1 or len(hosts.members) == 1:
            return False
        self.hosts = measured(exchange.channel, exchange.device, hosts, self.wire)
        self.wire = self.at(self.hosts.rate)
        return True
