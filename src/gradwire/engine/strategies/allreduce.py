"""Strategy that sums payloads on their way: the traffic of a rank does not grow with the number of workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.engine.dense import DenseSession
from gradwire.engine.part import Batch, Part, Unit, nonfinite, pieces_of
from gradwire.engine.strategies.base import Session, Site, Strategy
from gradwire.errors import ConfigError
from gradwire.memory import facts
from gradwire.transport.collective_round import Round, ring
from gradwire.vocabulary import Key, Payload

__all__ = ["AllReduce"]


_CHECKED = (torch.float32, torch.bfloat16, torch.float16)
"""The types of numbers of which an operation tells whether one is not finite."""


@dataclass(frozen=True)
class AllReduce(Strategy):
    """Sum the payloads element by element (casts), or average the factors of a method of several rounds.

    Values are divided by the world size before the sum, so that 16-bit sums do not overflow; not where the method wants
    a sum (``average``).

    Example:
        >>> AllReduce().to_config()
        {'name': 'allreduce'}
    """

    name = "allreduce"
    sums = True

    def check(self, compressor: Compressor) -> None:
        if not compressor.summable and not capabilities.in_rounds(compressor):
            raise ConfigError(
                f"strategy 'allreduce' adds payloads, but payloads of {compressor.name!r} cannot be summed: "
                f"use strategy='allgather' or 'two_phase'"
            )

    def plan(self, units: Sequence[Unit], site: Site) -> Session:
        if capabilities.in_rounds(units[0].compressor):
            return RoundsSession(units, site)
        return SummedSession(units, site)

    def rounds(self, units: Sequence[Unit], workers: int, used: float | None = None) -> tuple[Round, ...]:
        if capabilities.in_rounds(units[0].compressor):
            count = capabilities.rounds_needed(units[0].compressor)
            # What is declared is the mean over steps, which may differ.
            nbytes = sum(capabilities.traffic(unit.compressor, unit.shape) for unit in units) / count
            return (ring(nbytes, workers),) * count
        fields = (field for unit in units for field in unit.compressor.layout(unit.shape).fields)
        return (ring(sum(field.nbytes for field in fields), workers),)

    def coded(self, compressor: Compressor, workers: int) -> tuple[float, float]:
        return 1.0, 1.0


class SummedSession(Session):
    """A session with one all-reduce over the payloads of all units, which share one float dtype."""

    def __init__(self, units: Sequence[Unit], site: Site) -> None:
        super().__init__(site.channel)
        compressor = units[0].compressor
        self.scale = 1.0 / self.channel.world if capabilities.average(compressor) else 1.0
        self.part = Part(site.pieces(units), self.scale)
        dtypes = {field.dtype for layout in self.part.packing.layouts for field in layout.fields}
        (dtype,) = dtypes
        layouts = self.part.packing.layouts
        counts = [sum(field.count for field in layout.fields) for layout in layouts]
        self.sums = torch.zeros(sum(counts), dtype=dtype, device=site.device)
        runs = zip(torch.split(self.sums, counts), layouts, strict=True)
        payloads = [torch.split(run, [field.count for field in layout.fields]) for run, layout in runs]
        self.payloads = [together(batch, payloads) for batch in self.part.batches]
        rows = [tuple(run.unsqueeze(0) for run in each) for each in payloads]
        self.rows = [together(batch, rows) for batch in self.part.batches]
        self.status = torch.zeros(1, dtype=torch.int32, device=site.device)
        # The sums tell of what is not finite, where nothing was kept that needs another sign to be undone.
        batches = self.part.batches
        plain = [capabilities.tells_nonfinite(each.compressor) and facts.keeps_nothing(each.memory) for each in batches]
        self.tells = all(plain)

    def run(self, flat: Tensor, key: Key, dense: DenseSession) -> Tensor:
        with self.encoding:
            self._encode(flat, key)
        self.channel.all_reduce(self.sums)
        with self.decoding:
            bad = self._is_bad(dense)
            # Sums that tell of a value that is not finite decode to such a value themselves.
            self.part.deliver(flat, bad, lambda: self._decode(flat), spoils=not self.tells, own=True)
        return bad

    def _is_bad(self, dense: DenseSession) -> Tensor:
        """Return whether the sums or the dense ranges are not finite; the status is this rank's own."""
        if self.sums.dtype not in _CHECKED:
            return nonfinite(self.sums) | dense.bad()
        self.status.zero_()
        kernels.nonfinite(self.sums, self.status)
        # Waited for last, so that the uncompressed sum and that of the payloads travel at the same time.
        dense.flag(self.status)
        return self.status.any()

    def _encode(self, flat: Tensor, key: Key) -> None:
        if not self.tells:
            self.status.zero_()
        for batch, payload in zip(self.part.batches, self.payloads, strict=True):
            batch.remember()
            x, state, own = batch.of(flat), batch.state, batch.key(key)
            if self.tells:
                batch.memory.encoded(batch.compressor, x, payload, state, own, self.scale)
            else:
                batch.memory.encode(batch.compressor, x, batch.kept, payload, state, own, self.status, self.scale)
        if not self.tells:
            # A sum has no status word, so NaN in the sum itself tells all ranks.
            poison(self.sums, self.status)

    def _decode(self, flat: Tensor) -> None:
        for batch, rows in zip(self.part.batches, self.rows, strict=True):
            batch.deliver(rows, flat, 1.0)
        self.part.settle(flat)


def together(batch: Batch, payloads: Sequence[Payload]) -> Payload:
    """The payloads of a batch; for several pieces each field is ``Pieces``."""
    if not batch.several:
        return payloads[batch.numbers[0]]
    found = pieces_of([payloads[i] for i in batch.numbers])
    assert found is not None, "they lie in one tensor"
    return found


def poison(sums: Tensor, status: Tensor, value: float = math.nan) -> None:
    """Make a sum carry the status, because a code of NaN need not be NaN."""
    # Reading the flag costs nothing on a CPU; on any other device it would wait, and the fill looks at it there.
    if sums.device.type == "cpu":
        if bool(status):
            sums.fill_(value)
    elif sums.dtype is torch.float32:
        # A GPU's lowest byte is the first.
        kernels.fill_where(sums, value, status.view(torch.bool)[:1])
    else:
        sums.masked_fill_(status.ne(0), value)


class RoundsSession(Session):
    """A session for a method of several rounds: each field of all units lies in one run of memory, reduced in one call.

    Every rank sees the same results, so all agree without a status word on whether the step counts.
    """

    def __init__(self, units: Sequence[Unit], site: Site) -> None:
        super().__init__(site.channel)
        self.part = Part(site.pieces(units))
        self.units = units
        layouts = self.part.packing.layouts
        self.areas: list[Tensor] = []
        columns: list[Sequence[Tensor]] = []
        for i, first in enumerate(layouts[0].fields):
            counts = [layout.fields[i].count for layout in layouts]
            area = torch.zeros(sum(counts), dtype=first.dtype, device=site.device)
            self.areas.append(area)
            columns.append(torch.split(area, counts))
        self.payloads: list[Payload] = list(zip(*columns, strict=True))
        self.status, self.arrived = (torch.zeros(1, dtype=torch.int32, device=site.device) for _ in range(2))

    def run(self, flat: Tensor, key: Key, dense: DenseSession) -> Tensor:
        pieces, batches = self.part.pieces, self.part.batches
        xs = [piece.of(flat) for piece in pieces]
        self.status.zero_()
        for batch in batches:
            batch.remember()
            facts.compensate_each(batch.memory, [xs[i] for i in batch.numbers], [pieces[i].kept for i in batch.numbers])
            kernels.nonfinite(batch.of(flat).view(-1), self.status, capabilities.headroom(batch.compressor))
        keys = [key.of(piece.id) for piece in pieces]
        compressor = cast(MultiRound, self.units[0].compressor)
        pauses = compressor.pauses(xs, self.payloads, [piece.state for piece in pieces], keys)
        # A rank whose gradient is not finite takes part in all rounds, because the others would wait for it.
        self.arrived.zero_()
        for field, how in self._timed(pauses):
            self._reduce(field, how)
        dense.flag(self.arrived)
        bad = self.arrived.any()
        with self.decoding:
            self._settle(flat, xs, bad)
            # The flag is read on a CPU alone, because reading it elsewhere would wait.
            if flat.device.type != "cpu" or bool(bad):
                self.part.spoil(flat, bad)
        return bad

    def _timed(self, pauses: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Run the method from pause to pause; the work between counts as encoding."""
        while True:
            with self.encoding:
                pause = next(pauses, None)
            if pause is None:
                return
            yield pause

    def _reduce(self, field: int, how: str) -> None:
        """Reduce a field over the ranks, and note in ``arrived`` whether it has a value that is not finite."""
        area = self.areas[field]
        if not area.is_floating_point():
            self.channel.all_reduce(area, how)
            return
        # A maximum may lose a NaN on its way, but not an infinity.
        poison(area, self.status, math.inf if how == "max" else math.nan)
        if how == "mean" and self.channel.world > 1:
            area.div_(self.channel.world)
        self.channel.all_reduce(area, "max" if how == "max" else "sum")
        if area.dtype in _CHECKED:
            kernels.nonfinite(area, self.arrived)
        else:
            self.arrived |= nonfinite(area)

    def _settle(self, flat: Tensor, xs: Sequence[Tensor], bad: Tensor) -> None:
        batches, compressor = self.part.batches, cast(MultiRound, self.units[0].compressor)
        for batch in batches:
            batch.restore_states(bad)
        kept = [i for i, piece in enumerate(self.part.pieces) if piece.kept]
        capabilities.add_own_each(compressor, [self.payloads[i] for i in kept], [xs[i] for i in kept], -1.0)
        for batch in batches:
            if batch.kept:
                batch.keep(flat, bad)
            batch.begin(flat)
        capabilities.add_decoded_each(compressor, self.payloads, xs, 1.0)
        self.part.settle(flat)
        self.part.finish(flat, bad)
