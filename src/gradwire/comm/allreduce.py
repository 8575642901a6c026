"""Payloads are summed on their way: traffic per rank does not grow with the number of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gradwire import ops
from gradwire.comm._part import Part, Piece, Unit, fill_nonfinite, nonfinite
from gradwire.comm.base import Session, Site, Strategy
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.errors import ConfigError
from gradwire.types import Key, Payload, State

__all__ = ["AllReduce"]


@dataclass(frozen=True)
class AllReduce(Strategy):
    """Sum the payloads element by element (casts), or average the factors of a method of several rounds.

    Values are divided by the world size before the sum, so that 16-bit sums do not overflow.

    Example:
        >>> AllReduce().to_config()
        {'name': 'allreduce'}
    """

    name = "allreduce"

    def check(self, compressor: Compressor) -> None:
        if not compressor.summable and compressor.rounds_needed == 1:
            raise ConfigError(
                f"strategy 'allreduce' adds payloads, but payloads of {compressor.name!r} cannot be summed: "
                f"use strategy='allgather' or 'two_phase'"
            )

    def plan(self, units: Sequence[Unit], site: Site) -> Session:
        if units[0].compressor.rounds_needed > 1:
            return RoundsSession(units, site)
        return SummedSession(units, site)


class SummedSession(Session):
    """One all-reduce over the payloads of all units; they share one float dtype."""

    def __init__(self, units: Sequence[Unit], site: Site) -> None:
        self.channel, self.part = site.channel, Part([site.whole(unit) for unit in units])
        dtypes = {field.dtype for layout in self.part.packing.layouts for field in layout.fields}
        (dtype,) = dtypes
        layouts = self.part.packing.layouts
        counts = [sum(field.count for field in layout.fields) for layout in layouts]
        self.sums = torch.zeros(sum(counts), dtype=dtype, device=site.device)
        self.payloads: list[Payload] = [(view,) for view in torch.split(self.sums, counts)]
        self.status = torch.zeros(1, dtype=torch.int32, device=site.device)

    def run(self, flat: Tensor, key: Key, dense: Callable[[], Tensor]) -> Tensor:
        metrics = self.channel.metrics
        with metrics.timed("encode"):
            self._encode(flat, key)
        self.channel.all_reduce(self.sums)
        with metrics.timed("decode"):
            bad = nonfinite(self.sums) | dense()
            self.part.deliver(flat, bad, lambda: self._decode(flat))
        return bad

    def _encode(self, flat: Tensor, key: Key) -> None:
        self.status.zero_()
        self.part.remember()
        for piece, payload in zip(self.part.pieces, self.payloads, strict=True):
            piece.memory.encode(
                piece.unit.compressor, piece.of(flat), piece.kept, payload, piece.state, key.of(piece.id),
                self.status, scale=1.0 / self.channel.world,
            )  # fmt: skip
        poison(self.sums, self.status)

    def _decode(self, flat: Tensor) -> None:
        for piece, payload in zip(self.part.pieces, self.payloads, strict=True):
            piece.unit.compressor.add_decoded(payload, piece.of(flat), 1.0)


def poison(sums: Tensor, status: Tensor) -> None:
    """Let a sum carry the status: a code of NaN need not be NaN."""
    if sums.device.type != "cpu" or bool(status):
        sums.masked_fill_(status.ne(0), float("nan"))


class RoundsSession(Session):
    """A method of several rounds: field i of all units lies in one run of memory, averaged in round i.

    Every rank sees the same averages, so all agree without a status word on whether the step counts.
    """

    def __init__(self, units: Sequence[Unit], site: Site) -> None:
        self.channel, self.part = site.channel, Part([site.whole(unit) for unit in units])
        self.units = units
        layouts = self.part.packing.layouts
        self.areas: list[Tensor] = []
        columns: list[Sequence[Tensor]] = []
        for i in range(units[0].compressor.rounds_needed):
            counts = [layout.fields[i].count for layout in layouts]
            area = torch.zeros(sum(counts), dtype=torch.float32, device=site.device)
            self.areas.append(area)
            columns.append(torch.split(area, counts))
        self.payloads: list[Payload] = list(zip(*columns, strict=True))
        self.status = torch.zeros(1, dtype=torch.int32, device=site.device)

    def run(self, flat: Tensor, key: Key, dense: Callable[[], Tensor]) -> Tensor:
        metrics, pieces = self.channel.metrics, self.part.pieces
        xs = [piece.of(flat) for piece in pieces]
        self.status.zero_()
        for piece, x in zip(pieces, xs, strict=True):
            piece.memory.compensate(x, piece.kept)
            ops.nonfinite(x.view(-1), self.status)
        keys = [key.of(piece.id) for piece in pieces]
        before = [{name: tensor.clone() for name, tensor in piece.state.items()} for piece in pieces]
        compressor = cast(MultiRound, self.units[0].compressor)
        rounds = compressor.rounds(xs, self.payloads, [piece.state for piece in pieces], keys)
        bad = torch.zeros((), dtype=torch.bool, device=flat.device)
        for area in self.areas:
            with metrics.timed("encode"):
                next(rounds)
                poison(area, self.status)
            self.channel.all_reduce(area.div_(self.channel.world))
            bad |= nonfinite(area)
        bad |= dense()
        with metrics.timed("encode"):
            next(rounds, None)
        with metrics.timed("decode"):
            for piece, payload, x, state in zip(pieces, self.payloads, xs, before, strict=True):
                self._settle(piece, payload, x, state, bad)
            if flat.device.type != "cpu" or bool(bad):
                fill_nonfinite(xs, bad)
        return bad

    def _settle(self, piece: Piece, payload: Payload, x: Tensor, before: State, bad: Tensor) -> None:
        for name, tensor in piece.state.items():
            torch.where(bad, before[name], tensor, out=tensor)
        if piece.kept:
            piece.unit.compressor.add_decoded(payload, x, -1.0)
            piece.memory.update(x, piece.kept, bad)
        x.zero_()
        piece.unit.compressor.add_decoded(payload, x, 1.0)
