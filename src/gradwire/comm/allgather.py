"""Strategy in which every rank sends its payload to every other, and decodes them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.comm._gathered import GatheredSession
from gradwire.comm._variable import VariableSession
from gradwire.comm.base import Session, Site, Strategy
from gradwire.compressors.base import Compressor
from gradwire.group.part import Unit

__all__ = ["AllGather"]


@dataclass(frozen=True)
class AllGather(Strategy):
    """One compression, one round; traffic of a rank is (W-1) payloads, so it suits few workers.

    Example:
        >>> AllGather().to_config()
        {'name': 'allgather'}
    """

    name = "allgather"
    gathers = True

    def check(self, compressor: Compressor) -> None:
        self.refuse_rounds(compressor)

    def plan(self, units: Sequence[Unit], site: Site) -> Session:
        if not all(unit.compressor.fixed_size for unit in units):
            return VariableSession(units, site)
        return GatheredSession(units, site, lambda channel, *rows: channel.all_gather(*rows))
