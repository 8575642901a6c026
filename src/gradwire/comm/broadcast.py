"""Strategy in which each rank broadcasts its payload in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.comm._gathered import GatheredSession
from gradwire.comm._variable import VariableSession
from gradwire.comm.base import Session, Site, Strategy
from gradwire.compressors.base import Compressor
from gradwire.group.part import Unit

__all__ = ["Broadcast"]


@dataclass(frozen=True)
class Broadcast(Strategy):
    """The result of ``allgather`` by W broadcasts: slower on Gloo, kept for networks with a real multicast.

    Example:
        >>> Broadcast().to_config()
        {'name': 'broadcast'}
    """

    name = "broadcast"
    gathers = True

    def check(self, compressor: Compressor) -> None:
        self.refuse_rounds(compressor)

    def plan(self, units: Sequence[Unit], site: Site) -> Session:
        if not all(unit.compressor.fixed_size for unit in units):
            return VariableSession(units, site)
        return GatheredSession(units, site, lambda channel, rows, _: channel.broadcast(rows))
