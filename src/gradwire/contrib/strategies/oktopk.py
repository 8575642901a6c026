"""Strategy with a sparse reduce-scatter by index range, then an all-gather of the largest elements of the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.contrib.strategies._sparse import PlacedValues, exchange, pack, unpack
from gradwire.engine.dense import DenseSession
from gradwire.engine.part import Message, Part, Piece, Unit, nonfinite
from gradwire.engine.strategies.base import Session, Site, Strategy
from gradwire.errors import ConfigError, is_int, require
from gradwire.kernels.segments import read_places
from gradwire.memory import facts
from gradwire.memory.base import Memory
from gradwire.transport.collective_round import Round, to_all
from gradwire.vocabulary import Key

__all__ = ["OkTopkStrategy"]

_NUDGE = 1.012
_SPARE = 4


@dataclass(frozen=True)
class OkTopkStrategy(Strategy):
    """Owners sum the top-k entries of their index range, and send what is among the k largest of the sum to all.

    The k-th largest is found every ``period`` steps, from the 2 k / W largest sums of every owner, and after a step in
    which of some tensor more than 2 k or less than k / 2 won; in between the threshold is kept, and moved by 1.2 % when
    more than 5/4 k or less than 2/3 k won. It is exact unless more than twice its share lie in one range; then more
    than k win. What a rank sent and did not win goes back into its memory.

    Traffic of a rank: 8 bytes for each of k entries to the owners and of about k winners, whatever W is, against
    6 k (W - 1) for ``allgather``: it pays from 5 workers on. The residuals' first steps, in which thresholds move most,
    cost up to twice as much.

    Each tensor is cut into W ranges of equal length, where the paper balances them: entries that gather in one range
    make its owner the slowest.

    Args:
        period: steps between new thresholds, >= 1, the paper's 32. A new one costs about 8 k bytes.

    Raises:
        ConfigError: ``period`` is no integer >= 1.

    Example:
        >>> OkTopkStrategy().to_config()
        {'name': 'oktopk', 'period': 32}

    Source:
        S. Li, T. Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022.
    """

    period: int = 32

    name = "oktopk"
    # Each message has indices of its sender's range.
    peers_alike = False

    def __post_init__(self) -> None:
        require(is_int(self.period, 1), "OkTopkStrategy.period", "an integer >= 1", self.period)

    def check(self, compressor: Compressor) -> None:
        if not capabilities.exact_entries(compressor):
            raise ConfigError(
                f"strategy 'oktopk' sums entries of top-k in float32, which {compressor.name!r} does not send: "
                f"use compressor='oktopk'"
            )

    def check_memory(self, memory: Memory) -> None:
        if memory.balanced and not facts.returned.declared(memory):
            raise ConfigError(
                f"strategy 'oktopk' gives entries back that were sent in vain, but memory {memory.name!r} has no "
                "method 'returned' to keep them: add one, or use strategy='allgather'"
            )

    def plan(self, units: Sequence[Unit], site: Site) -> Session:
        return OkTopkSession(units, site, self.period)

    def rounds(self, units: Sequence[Unit], workers: int, used: float | None = None) -> tuple[Round, ...]:
        entries = sum(unit.compressor.layout(unit.shape).fields[0].count for unit in units)
        told, moved = to_all(8 * workers, workers), to_all(4 * (1 + len(units)) + 8 * entries / workers, workers)
        return told, moved, told, moved

    def coded(self, compressor: Compressor, workers: int) -> tuple[float, float]:
        return 1.0, 2.0


class OkTopkSession(Session):
    """A session with messages of top-k, the thresholds of the sums, and their age in steps, which checkpoints keep."""

    def __init__(self, units: Sequence[Unit], site: Site, period: int) -> None:
        super().__init__(site.channel)
        self.period = period
        self.part = Part(site.pieces(units))
        self.own = Message(self.part.packing, site.device)
        self.wanted = [payload[0].numel() for payload in self.own.payloads]
        fresh = {
            "threshold": torch.zeros((), dtype=torch.float32, device=site.device),
            "age": torch.zeros((), dtype=torch.int64, device="cpu"),
        }
        self.kept = [site.kept.recall(unit, {name: tensor.clone() for name, tensor in fresh.items()}) for unit in units]

    def _recall(self) -> None:
        """Continue with the kept thresholds, because the step before may have been undone."""
        self.thresholds = torch.stack([kept["threshold"] for kept in self.kept])
        ages = {int(kept["age"]) for kept in self.kept}
        self.age = ages.pop() if len(ages) == 1 else 0

    def run(self, flat: Tensor, key: Key, dense: DenseSession) -> Tensor:
        self._recall()
        with self.encoding:
            self.part.encode(flat, self.own, key)
            local = [_entries(payload) for payload in self.own.payloads]
        status, sums = self._sum(local)
        thresholds = self._thresholds(sums)
        winners = [_largest(each, float(least)) for each, least in zip(sums, thresholds, strict=True)]
        # Entries of several ranks may overflow in their sum.
        status |= torch.stack([nonfinite(each.values) for each in sums]).any()
        statuses, won = self._gather(pack(status, winners))
        bad = statuses.any() | dense.bad()
        with self.decoding:
            if bool(bad):
                self.part.rollback(flat)
                self.part.spoil(flat, bad)
                return bad
            for piece, sent, arrived in zip(self.part.pieces, local, won, strict=True):
                self._deliver(piece, flat, sent, arrived)
            self.part.settle(flat)
        self._nudge(thresholds, won)
        return bad

    def _ranges(self, rank: int) -> list[tuple[int, int]]:
        """The indices of each tensor that a rank owns."""
        world = self.channel.world
        return [(p.numel * rank // world, p.numel * (rank + 1) // world) for p in self.part.pieces]

    def _sum(self, local: Sequence[PlacedValues]) -> tuple[Tensor, list[PlacedValues]]:
        """Send entries to the owners; return the sums of this rank's ranges, and whether a sender was bad."""
        sends = [
            pack(self.own.status, [each.within(*of) for each, of in zip(local, self._ranges(rank), strict=True)])
            for rank in range(self.channel.world)
        ]
        ranges = self._ranges(self.channel.rank)
        received = [unpack(message, ranges) for message in exchange(self.channel, sends)]
        status = torch.stack([told for told, _ in received]).ne(0).any(0).to(torch.int32)
        return status, [_added([lists[i] for _, lists in received], lo, hi) for i, (lo, hi) in enumerate(ranges)]

    def _thresholds(self, sums: Sequence[PlacedValues]) -> Tensor:
        """The kept thresholds, or new ones: the k-th largest magnitude of owners' sums, the same on every rank."""
        if self.age % self.period:
            return self.thresholds
        reported = [min(k, 2 * -(-k // self.channel.world) + _SPARE) for k in self.wanted]
        rows = torch.zeros(self.channel.world, sum(reported), dtype=torch.float32, device=self.thresholds.device)
        for room, each in zip(torch.split(rows[self.channel.rank], reported), sums, strict=True):
            k = min(room.numel(), each.values.numel())
            room[:k] = each.values.abs().topk(k).values
        self.channel.all_gather(rows.view(torch.uint8))
        columns = torch.split(rows, reported, 1)
        return torch.stack([of.flatten().topk(k).values[-1] for of, k in zip(columns, self.wanted, strict=True)])

    def _gather(self, message: Tensor) -> tuple[Tensor, list[PlacedValues]]:
        """Gather the winners of all owners, in the order of their indices."""
        received = exchange(self.channel, [message] * self.channel.world)
        read = [unpack(each, self._ranges(rank)) for rank, each in enumerate(received)]
        lists = zip(*(lists for _, lists in read), strict=True)
        won = [PlacedValues(*(torch.cat(parts) for parts in zip(*of_piece, strict=True))) for of_piece in lists]
        return torch.cat([told for told, _ in read]).ne(0), won

    def _deliver(self, piece: Piece, flat: Tensor, sent: PlacedValues, won: PlacedValues) -> None:
        """Write the mean of the winners, and return to the residual what was sent in vain."""
        out = piece.of(flat)
        lost = ~torch.isin(sent.places, won.places)
        facts.returned(piece.memory, out, piece.kept, sent.places[lost], sent.values[lost])
        facts.begin(piece.memory, out, piece.kept)
        out.view(-1).index_add_(0, won.places, won.values, alpha=1.0 / self.channel.world)
        facts.finish(piece.memory, out, piece.kept, torch.zeros((), dtype=torch.bool, device=flat.device))

    def _nudge(self, thresholds: Tensor, won: Sequence[PlacedValues]) -> None:
        counts = torch.tensor([each.places.numel() for each in won], device=thresholds.device)
        wanted = torch.tensor(self.wanted, device=thresholds.device)
        astray = bool(((counts > 2 * wanted) | (2 * counts < wanted)).any())
        factor = torch.where(4 * counts > 5 * wanted, _NUDGE, torch.where(3 * counts < 2 * wanted, 1 / _NUDGE, 1.0))
        self.thresholds, self.age = thresholds * factor, 0 if astray else self.age + 1
        for kept, threshold in zip(self.kept, self.thresholds, strict=True):
            kept["threshold"].copy_(threshold)
            kept["age"].fill_(self.age)


def _entries(payload: tuple[Tensor, ...]) -> PlacedValues:
    values, counts, low = payload
    return PlacedValues(read_places(low, counts), values)


def _added(lists: Sequence[PlacedValues], lo: int, hi: int) -> PlacedValues:
    """Add lists with indices in [lo, hi), in the order of the lists; zeros are left out."""
    total = torch.zeros(hi - lo, dtype=torch.float32, device=lists[0].values.device)
    for entries in lists:
        total.index_add_(0, entries.places - lo, entries.values)
    index = total.nonzero().view(-1)
    return PlacedValues(index + lo, total[index])


def _largest(sums: PlacedValues, least: float) -> PlacedValues:
    """Select the entries that are not below ``least``; NaN is not selected."""
    chosen = ~(sums.values.abs() < least)
    return PlacedValues(sums.places[chosen], sums.values[chosen])
