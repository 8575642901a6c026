"""Ranks compare what they were told, and all hear of a difference."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.compressors.levels.qsgd import QSGD
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.errors import ConfigError, GroupError
from gradwire.metrics import Metrics
from gradwire.testing.processes import run_ranks
from gradwire.transport import handshake
from gradwire.transport.channel import Channel
from gradwire.transport.handshake import agree
from tests.cases import together

CPU = torch.device("cpu")


def _agree(rank: int, texts: list[str]) -> str:
    try:
        agree(Channel(dist.group.WORLD, Metrics()), "call", lambda: texts[rank], CPU)
    except GroupError as error:
        return str(error)
    return ""


def test_equal_descriptions_pass() -> None:
    assert run_ranks(3, _agree, [json.dumps({"a": 1})] * 3) == [""] * 3


@together
@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b is 1 on ranks 0, 2; 2 on rank 1"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "a.1 is 2 on ranks 0, 2; 3 on rank 1"),
        ({"a": [1]}, {"a": [1, 3]}, "the length of a is 1 on ranks 0, 2; 2 on rank 1"),
        ({"a": 1}, {"b": 1}, "a is 1 on ranks 0, 2; not there on rank 1"),
        ({"a": 1}, {"a": None}, "a is 1 on ranks 0, 2; None on rank 1"),
        (
            {"m": {"bits": 4, "name": "qsgd"}},
            {"m": {"name": "topk", "ratio": 0.1}},
            "m.name is 'qsgd' on ranks 0, 2; 'topk' on rank 1",
        ),
    ],
)
def test_the_first_difference_is_named_on_every_rank(one: object, other: object, told: str) -> None:
    texts = [json.dumps(one), json.dumps(other), json.dumps(one)]
    answers = run_ranks(3, _agree, texts)
    assert answers == [f"ranks were configured differently: {told}"] * 3


def _fail(rank: int, failing: list[int]) -> str:
    def describe() -> str:
        if rank in failing:
            raise ConfigError("x must be 1, got 2")
        return "{}"

    try:
        agree(Channel(dist.group.WORLD, Metrics()), "call", describe, CPU)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_rank_that_fails_to_describe_itself_is_named_to_the_others() -> None:
    answers = run_ranks(2, _fail, [1])
    assert answers == ["GroupError: rank 1 was configured wrongly: ConfigError: x must be 1, got 2"] * 2


def test_a_failure_on_every_rank_keeps_its_type() -> None:
    assert run_ranks(2, _fail, [0, 1]) == ["ConfigError: x must be 1, got 2"] * 2


def _of_other_sizes(rank: int, strategy: str, numel: int) -> str:
    """Three equal steps, then one in which a rank's payloads are half as long."""
    schedule = {"bits": lambda step: 2 if (rank, step) == (1, 3) else 4}
    exchange = Exchange(QSGD(bits=4), strategy=strategy, group=dist.group.WORLD, policy=Policy(schedule=schedule))
    try:
        for _ in range(4):
            exchange.begin_step()
            exchange.run(torch.ones(numel), [("weight", (numel // 64, 64))])
    except GroupError as error:
        return str(error)
    return f"nothing was raised in {exchange.step} steps"


@pytest.mark.parametrize("numel", [2**12, 2**22])
@pytest.mark.parametrize("strategy", ["allgather", "two_phase"])
def test_messages_of_different_sizes_never_meet(strategy: str, numel: int) -> None:
    """They are posted beside the digests, and every process hears of it and ends by itself."""
    told = run_ranks(3, _of_other_sizes, strategy, numel, end=True)
    expected = "ranks came apart: compressor.bits is 4 on ranks 0, 2; 2 on rank 1"
    assert all(each.startswith(expected) for each in told), told


class Event:
    """An event of a device that has always reached it."""

    def record(self) -> None:
        """Mark nothing."""

    def query(self) -> bool:
        return True


class TorchOnNccl:
    """torch with events and pinned memory where there is no device; the messages are real."""

    cuda = SimpleNamespace(Event=Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *size: Any, pin_memory: bool, **options: Any) -> torch.Tensor:
        return torch.empty(*size, **options)


class AsOnNccl(Channel):
    """A channel that others take for NCCL's; what it carries itself goes over Gloo."""

    def begin_opening(self, rows: torch.Tensor) -> Any:
        self.is_nccl = False
        try:
            return super().begin_opening(rows)
        finally:
            self.is_nccl = True


def _on_nccl(rank: int, failing: list[int]) -> list[str]:
    """Errors of three steps, where the digests are read in a later one, with those ranks' descriptions failing."""
    handshake.torch = TorchOnNccl()  # type: ignore[attr-defined]
    channel, told = AsOnNccl(dist.group.WORLD, Metrics()), list[str]()
    channel.is_nccl = True
    opening = handshake.Opening(channel, CPU)

    def describe() -> str:
        if rank in failing and not told:
            raise ValueError("of this rank")
        return json.dumps({"a": 1})

    for step in range(3):
        try:
            opening.begin(step, describe)
        except (ValueError, GroupError) as error:
            told.append(str(error))
    return told


def test_on_nccl_a_rank_raises_what_failed_there_at_once() -> None:
    """Also where all fail alike, so that their digests are the same and no later step tells."""
    for told in run_ranks(2, _on_nccl, [0, 1]):
        assert told[0] == "of this rank"
        assert told[1:] == 2 * ["an earlier exchange failed: of this rank"]
    one, other = run_ranks(2, _on_nccl, [1])
    assert "ranks came apart in step 0" in one[0]
    assert other[0] == "of this rank"
