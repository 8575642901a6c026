"""The formulas of each strategy: against hand computations, and against what the sessions hand to their channel."""

from __future__ import annotations

import math

import pytest
import torch

from gradwire.auto.link_cost import Wire
from gradwire.auto.probe import dry_exchange
from gradwire.auto.traffic import shared, traffic
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.compressors.transforms.eden import EDEN
from gradwire.contrib.compressors.sparse.oktopk import OkTopk
from gradwire.contrib.compressors.ternary.strom import Strom
from gradwire.engine.plan import Named
from gradwire.engine.policy import Policy
from gradwire.errors import ConfigError
from gradwire.transport.collective_round import Round
from gradwire.transport.recording import RecordingChannel
from gradwire_lab.experiments.recommended import labels, recommended
from gradwire_lab.netlab import Link
from gradwire_lab.netlab.link import PAYLOAD_SHARE

PARAMS: list[Named] = [("a", (64, 96)), ("b", (10,)), ("c", (5000,)), ("d", (40, 33, 3))]
NUMEL = 64 * 96 + 10 + 5000 + 3960


def rounds_of(compressor: Compressor, workers: int, strategy: str | None = None) -> tuple[Round, ...]:
    return traffic(shared(PARAMS, compressor, workers, strategy=strategy), workers).rounds


def asked(compressor: Compressor, workers: int, rank: int, steps: int, strategy: str | None) -> list[Round]:
    """The rounds of ``steps`` steps as one of the workers asks its channel for them."""
    exchange = dry_exchange(compressor, workers, rank, strategy=strategy)
    flat = torch.empty(NUMEL)
    for _ in range(steps):
        exchange.begin_step()
        exchange.run(torch.randn(NUMEL, out=flat), PARAMS)
    assert isinstance(exchange.channel, RecordingChannel)
    return exchange.channel.rounds


def test_a_sum_crosses_a_ring() -> None:
    """2 bytes an element: the 10 elements of the bias travel in float32 beside it, in a ring of their own."""
    sent = traffic(shared(PARAMS, FP16(), 4), 4)
    assert sent.rounds == (Round("all_reduce", 1.5 * 2 * (NUMEL - 10), 1.5 * 2 * (NUMEL - 10)),)
    assert sent.dense == (Round("all_reduce", 60, 60),)
    assert sent.sent == 1.5 * (2 * (NUMEL - 10) + 40)


def test_payloads_are_gathered_by_everyone() -> None:
    """a: 6144 / 4 bytes, c and d are neighbours and one unit: 8960 / 4; 8 bytes of status before them."""
    message = 8 + 1536 + 2240
    assert rounds_of(TwoBit(), 4) == (Round("exchange", 3 * message, 3 * message),)
    assert rounds_of(TwoBit(), 4, "broadcast") == (Round("broadcast", 3 * message, 3 * message),)


def test_shards_cross_twice() -> None:
    """Cuts at 15104 / 5 elements, to the next multiple of 16: 3024, 3024 ... and 8 bytes of status in each message."""
    first, second = rounds_of(TwoBit(), 5)
    sizes = [8 + 760, 8 + 752 + 8, 8 + 24 + 728 + 8, 8 + 760, 8 + 752]
    assert first.kind == second.kind == "exchange"
    assert (first.sent, first.received) == (second.received, second.sent)
    assert first.nbytes == pytest.approx(4 * 768, abs=4 * 16)
    assert first.sent == pytest.approx(sum(sizes) - min(sizes), abs=32)


def test_a_variable_message_says_its_size_first() -> None:
    bucket = shared(PARAMS, Strom(), 4, used=1000.0)
    assert traffic(bucket, 4).rounds == (Round("exchange", 24, 24), Round("exchange", 3000, 3000))


def test_rounds_of_factors() -> None:
    """Rank 4: P then Q of the two matrices 64 x 96 and 40 x 99; c is none, and travels uncompressed."""
    sent = traffic(shared(PARAMS, PowerSGD(rank=4), 2), 2)
    both = 4 * 4 * (64 + 96 + 40 + 99)
    assert [each.kind for each in sent.rounds] == ["all_reduce", "all_reduce"]
    assert sum(each.sent for each in sent.rounds) == both
    assert sent.dense[0].sent == 4 * 5010


def test_entries_go_to_their_owners_and_winners_to_all() -> None:
    """k = 62 + 50 + 40 entries of 8 bytes, dealt out to 4 owners; a head of a status and a count for each tensor."""
    tensors = shared(PARAMS, OkTopk(ratio=0.01), 4, strategy="oktopk").units
    k = sum(unit.compressor.layout(unit.shape).fields[0].count for unit in tensors)
    entries = 3 * (4 * (1 + len(tensors)) + 8 * k / 4)
    sizes = Round("exchange", 96, 96)
    owners = Round("exchange", entries, entries)
    assert rounds_of(OkTopk(ratio=0.01), 4, "oktopk") == (sizes, owners, sizes, owners)


def test_no_compression_is_one_ring_and_one_worker_sends_nothing() -> None:
    assert traffic(shared(PARAMS, Identity(), 3), 3).sent == pytest.approx(4 / 3 * 4 * NUMEL)
    assert traffic(shared(PARAMS, TwoBit(), 1), 1).sent == 0


def test_policy_and_strategy_are_the_exchanges_own() -> None:
    bucket = shared(PARAMS, TwoBit(), 2, Policy(min_numel=4500))
    assert (len(bucket.units), bucket.dense) == (2, 10 + 3960)
    with pytest.raises(ConfigError, match="strategy 'two_phase'"):
        shared(PARAMS, Strom(), 2, strategy="two_phase")


@pytest.mark.parametrize("workers", [2, 4, 5])
@pytest.mark.parametrize("label", labels())
def test_every_method_sends_what_is_foretold(label: str, workers: int) -> None:
    compressor = recommended(label).compressor
    if isinstance(compressor, MultiRound):
        check_rounds(compressor, workers)
        return
    busiest = range(workers) if compressor.fixed_size else range(1)
    columns = list(zip(*(asked(compressor, workers, rank, 1, None) for rank in busiest), strict=True))
    exchanges = [column for column in columns if column[0].kind == "exchange"]
    used = None if compressor.fixed_size or not exchanges else exchanges[-1][0].sent / (workers - 1)
    sent = traffic(shared(PARAMS, compressor, workers, used=used), workers)
    foretold = [*sent.dense, *sent.rounds]
    assert [
        (column[0].kind, max(each.sent for each in column), max(each.received for each in column)) for column in columns
    ] == [(each.kind, each.sent, each.received) for each in foretold]


def test_the_way_back_is_that_of_the_code_of_means() -> None:
    compressor = EDEN(bits=0.125, block=64)
    there, back = rounds_of(compressor, 5, "two_phase")
    assert back.sent > 1.5 * there.sent
    asked_of = [[each for each in asked(compressor, 5, rank, 1, None) if each.kind == "exchange"] for rank in range(5)]
    assert [max(each.sent for each in column) for column in zip(*asked_of, strict=True)] == [there.sent, back.sent]


def check_rounds(compressor: MultiRound, workers: int) -> None:
    """Steps of a method of rounds may differ: over a period they send what it declares."""
    steps = 4 * getattr(compressor, "period", 2)
    sent = traffic(shared(PARAMS, compressor, workers), workers)
    rounds = asked(compressor, workers, 0, steps, None)
    assert {each.kind for each in rounds} == {"all_reduce"}
    assert sum(each.sent for each in rounds) / steps == pytest.approx(sent.sent, rel=0.1)
    assert len(rounds) / steps == pytest.approx(len(sent.dense) + len(sent.rounds), rel=0.1)


def test_broadcast_is_noted_too() -> None:
    (found,) = [each for each in asked(TwoBit(), 3, 1, 1, "broadcast") if each.kind == "broadcast"]
    assert (found,) == rounds_of(TwoBit(), 3, "broadcast")


@pytest.mark.parametrize("strategy", ["allgather", "broadcast"])
def test_between_two_workers_the_bias_is_in_the_message(strategy: str) -> None:
    foretold = traffic(shared(PARAMS, TwoBit(), 2, strategy=strategy), 2)
    assert (foretold.dense, foretold.sent) == ((), 8 + 1536 + 2240 + 40)
    assert asked(TwoBit(), 2, 1, 1, strategy) == list(foretold.rounds)


def test_what_has_no_fixed_size_is_not_broadcast() -> None:
    """Its sizes go first and its bytes after them, as they are gathered; the capacity would be many times as much."""
    asked_for = asked(Strom(), 3, 1, 1, "broadcast")
    used = asked_for[-1].sent / 2
    foretold = traffic(shared(PARAMS, Strom(), 3, strategy="broadcast", used=used), 3)
    assert [each for each in asked_for if each.kind == "exchange"] == list(foretold.rounds)
    assert [each.kind for each in foretold.rounds] == ["exchange", "exchange"]


@pytest.mark.parametrize("workers", [2, 5])
def test_hosts_of_one_rank_send_what_the_strategy_between_them_does(workers: int) -> None:
    """The only difference: uncompressed parameters have a message of their own, also between two."""
    between = "allgather" if workers == 2 else "two_phase"
    (alone, *more), (with_dense, *others) = (rounds_of(TwoBit(), workers, way) for way in ("hierarchical", between))
    carried = 4 * 10 if workers == 2 else 0
    assert (alone.kind, alone.sent + carried) == (with_dense.kind, with_dense.sent)
    assert more == others


def test_the_round_between_hosts_is_a_hosts_own() -> None:
    """Four ranks on two hosts: each lane of the busiest pair is half of what is foretold, but for alignment."""
    way = "hierarchical:ranks_per_host=2,between=allgather"
    *into, foretold, flags, out = rounds_of(TwoBit(), 4, way)
    assert (into, foretold.kind) == ([out, flags], "hosts")
    assert foretold.sent == rounds_of(TwoBit(), 2)[0].sent - 4 * 10
    moved, sums, bad, lane, *_ = (each for each in asked(TwoBit(), 4, 0, 1, way) if each.kind == "exchange")
    assert lane.sent == pytest.approx(foretold.sent / 2, abs=32)
    assert moved.sent == bad.sent == 1
    assert sums.sent == pytest.approx(out.sent, abs=4 * 32)
    assert (out.sent, flags.sent, out.kind, flags.kind) == (4 * (NUMEL - 10) / 2, 1, "local", "local")


def test_a_single_host_sends_nothing_to_others() -> None:
    assert {each.kind for each in rounds_of(TwoBit(), 4, "hierarchical:ranks_per_host=4")} == {"local"}


def test_seconds_of_a_round() -> None:
    wire = Wire(workers=4, rate=1e6, latency=1e-3, message=1e-4)
    assert wire.seconds(Round("exchange", 2e6, 3e6)) == pytest.approx(1e-3 + 3e-4 + 3.0)
    assert wire.seconds(Round("all_reduce", 1.5e6, 1.5e6)) == pytest.approx(6e-3 + 1.5)
    assert wire.seconds(Round("broadcast", 3e6, 3e6)) == pytest.approx(2 * 2 * (1e-3 + 1.0))
    assert wire.seconds(Round("exchange", 0, 0)) == 0
    assert Wire(workers=1, rate=1.0).seconds(Round("exchange", 5, 5)) == 0


def test_a_links_rate_is_that_of_its_frames() -> None:
    """1448 bytes of payload in 1514 on the link, and half an acknowledgement of 66."""
    assert pytest.approx(1448 / 1547) == PAYLOAD_SHARE
    wire = Link.parse("1gbit", "1ms").wire(4, latency=1e-4)
    assert (wire.rate, wire.latency) == (pytest.approx(125e6 * PAYLOAD_SHARE), pytest.approx(2.1e-3))
    assert wire.at_rate(1e8 / 8 * PAYLOAD_SHARE).rate == pytest.approx(wire.rate / 10)
    assert Link().wire(4).rate == math.inf


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workers": 0}, "Wire.workers must be an integer >= 1, got 0"),
        ({"rate": 0.0}, "Wire.rate must be bytes a second > 0, got 0.0"),
        ({"latency": -1.0}, "Wire.latency must be seconds >= 0, got -1.0"),
        ({"message": math.inf}, "Wire.message must be seconds >= 0, got inf"),
    ],
)
def test_a_wire_that_cannot_be_is_refused(change: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Wire(**{"workers": 2, "rate": 1.0, **change})
