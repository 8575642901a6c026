"""The comparison of the ranks that travels with the first payload of a step: what it finds, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.engine.exchange import Exchange
from gradwire.errors import GroupError
from gradwire.metrics import Metrics
from gradwire.testing.processes import run_ranks
from gradwire.transport.channel import Channel
from gradwire.transport.handshake import DIGEST, agree

PARAMS = [("weight", (64, 64)), ("other", (64, 32))]
FEWER = PARAMS[:1]
STEADY = 3


def numel(params: list[tuple[str, tuple[int, ...]]]) -> int:
    return sum(torch.Size(shape).numel() for _, shape in params)


def stepped(exchange: Exchange, params: list[tuple[str, tuple[int, ...]]] = PARAMS) -> None:
    exchange.begin_step()
    exchange.run(torch.randn(numel(params)), params)


def _apart(rank: int, what: str) -> str:
    """Do steps together, and then something else on rank 1; returns what was raised."""
    exchange = Exchange(TwoBit(threshold=0.1), group=dist.new_group())
    for _ in range(STEADY):
        stepped(exchange)
    try:
        if rank == 0:
            stepped(exchange)
        elif what == "other sizes":
            stepped(exchange, FEWER)
        elif what == "another order":
            stepped(exchange, PARAMS[::-1])
        elif what == "no payload":
            exchange.begin_step()
            exchange.average(torch.randn(numel(PARAMS)))
        elif what == "a step left out":
            exchange.begin_step()
            stepped(exchange)
        elif what == "another channel":
            agree(Channel(exchange.channel.group, Metrics()), "gathered", lambda: "{}", torch.device("cpu"))
        else:
            exchange.load_state_dict(exchange.state_dict())
    except GroupError as error:
        return str(error)
    return "nothing"


BYTES = 8 + numel(PARAMS) // 4


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("other sizes", f"first payload is {BYTES} on rank 0; not there on rank 1; buckets must be the same"),
        ("no payload", f"first payload is {BYTES} on rank 0; not there on rank 1; buckets must be the same"),
        ("another order", "the first bucket is 'weight and 1 more ("),
        ("a step left out", f"step is {STEADY + 1} on rank 0; {STEADY + 2} on rank 1"),
        ("another channel", "call is step on rank 0; gathered on rank 1"),
        ("another call", "call is step on rank 0; load_state_dict on rank 1"),
    ],
)
def test_a_rank_that_does_something_else_is_named_on_all_although_payloads_were_sent(what: str, told: str) -> None:
    first, second = run_ranks(2, _apart, what, timeout=60.0, end=True)
    assert first == second
    assert told in first


def _changing(rank: int) -> dict[str, Any]:
    """Exchange what changes its size, is averaged, and is loaded between steps; returns figures of each step."""
    exchange = Exchange(TwoBit(threshold=0.1), group=dist.new_group())
    told: dict[str, Any] = {"collectives": [], "compared": [], "means": []}

    def counted(params: list[tuple[str, tuple[int, ...]]], average: bool = False) -> None:
        begun, compared = exchange.channel.traffic.begun, exchange.counters.compared_bytes
        flat = torch.randn(numel(params), generator=torch.Generator().manual_seed(rank))
        exchange.begin_step()
        if average:
            exchange.average(flat)
        exchange.run(flat, params)
        told["collectives"].append(exchange.channel.traffic.begun - begun)
        told["compared"].append(exchange.counters.compared_bytes - compared)
        told["means"].append(flat)

    for params in (PARAMS, PARAMS, PARAMS, FEWER, FEWER):
        counted(params)
    counted(FEWER, average=True)
    counted(FEWER)
    counted(FEWER)
    exchange.load_state_dict(exchange.state_dict())
    counted(FEWER)
    return told


def test_what_ranks_do_alike_may_change_from_step_to_step() -> None:
    """The digests travel with a payload where the step before had one of the same size first."""
    results = run_ranks(2, _changing)
    fewer = 8 + numel(FEWER) // 4
    for told in results:
        assert told["collectives"] == [2, 1, 1, 2, 1, 3, 2, 1, 1]
        assert told["compared"] == [DIGEST] * 3 + [DIGEST + BYTES, DIGEST, DIGEST + fewer] + [DIGEST] * 3
        for mean, other in zip(told["means"], results[0]["means"], strict=True):
            assert torch.equal(mean, other)
