"""Work of the ranks in the tests of auto where the optimizer's steps are exchanged."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.optim import CompressedStep
from tests.auto.jobs import FAST, SLOW, WIDE, WIDTH, SlowChannel, digest, examples, loss_of, network, slow

COMPUTE, CODE = 5e-3, 2e-2
"""Seconds of a step without its exchange, and of encoding and decoding."""


class CodedChannel(SlowChannel):
    """Messages of a link, where encoding what is gathered takes time, too."""

    def all_gather(self, rows: Tensor, headed: Tensor | None = None) -> None:
        self.link.compute(CODE)
        self.link.wait()
        super().all_gather(rows, headed)


class StepTraining:
    """A model whose optimizer exchanges its steps as auto decides, on a link whose rate can be set."""

    def __init__(self, rank: int, width: int = WIDTH, **options: Any) -> None:
        torch.set_num_threads(1)
        self.model = network(width)
        inner = torch.optim.AdamW(self.model.named_parameters(), lr=1e-3, weight_decay=0.1)
        self.optimizer = CompressedStep(inner, "auto", **options)
        self.link = slow(self.optimizer.exchange, FAST)
        self.optimizer.exchange.channel.__class__ = CodedChannel
        self.data = torch.Generator().manual_seed(rank + 1)
        self.sent: list[int] = []

    def run(self, steps: int, rate: float) -> None:
        channel = self.optimizer.exchange.channel
        assert isinstance(channel, SlowChannel)
        channel.rate = rate
        for _ in range(steps):
            before = channel.metrics.bytes_sent
            self.optimizer.zero_grad()
            loss_of(self.model, examples(self.data)).backward()
            self.link.compute(COMPUTE)
            self.optimizer.step()
            self.sent.append(channel.metrics.bytes_sent - before)

    @property
    def auto(self) -> dict[str, Any]:
        auto: dict[str, Any] = self.optimizer.decisions()
        return auto

    @property
    def kept(self) -> float:
        kept: float = self.optimizer.metrics()["residual_norm"]
        return kept


def decided(rank: int, options: dict[str, Any], rates: Sequence[float], width: int = WIDTH) -> dict[str, Any]:
    """Sixty rounds at each rate: what was chosen, what was sent and what waited at the end of each."""
    training, parts = StepTraining(rank, width, **options), []
    every = options.get("every", 1)
    for rate in rates:
        training.run(60 * every, rate)
        choices = [each["choice"] for each in training.auto["buckets"]]
        parts.append((choices, training.sent[-1], training.kept))
    training.optimizer.finish()
    return {
        "parts": parts,
        "dense": training.sent[every - 1],
        "digest": digest(training.model),
        "auto": training.auto,
    }


def made_again(rank: int) -> dict[str, Any]:
    """A run, the same decisions made again without measuring, and the same run resumed in its middle."""
    training = StepTraining(rank, budget="small")
    training.run(40, SLOW)
    saved = copy.deepcopy(training.optimizer.state_dict())
    weights, data = copy.deepcopy(training.model.state_dict()), training.data.get_state()
    training.run(10, SLOW)
    decisions, digests = training.auto["decisions"], [digest(training.model)]
    del training.optimizer
    again = StepTraining(rank, budget="small", decisions=decisions)
    again.run(50, FAST)
    digests.append(digest(again.model))
    phase, made = again.auto["phase"], again.auto["decisions"]
    del again.optimizer
    resumed = StepTraining(rank, budget="small", decisions=decisions)
    resumed.model.load_state_dict(weights)
    resumed.optimizer.load_state_dict(saved)
    resumed.data.set_state(data)
    resumed.run(10, FAST)
    digests.append(digest(resumed.model))
    return {"decisions": decisions, "phase": phase, "made": made, "digests": digests}


def spoilt(rank: int) -> dict[str, Any]:
    """A gradient of one rank is not finite in a step in which a part is kept back."""
    training = StepTraining(rank, WIDE, budget="small")
    training.run(50, 4 * SLOW)
    kept, before = training.kept, digest(training.model)
    training.optimizer.zero_grad()
    loss_of(training.model, examples(training.data)).backward()
    # The inner optimizer leaves such a step out, so the way itself is spoilt.
    if rank == 1:
        with torch.no_grad():
            next(iter(training.model.parameters()))[0, 0] = torch.inf
    training.optimizer.step()
    return {
        "choices": [each["choice"] for each in training.auto["buckets"]],
        "kept": (kept, training.kept),
        "digests": (before, digest(training.model)),
        "counted": training.optimizer.metrics()["nonfinite_steps"],
    }


def refused(rank: int, options: dict[str, Any]) -> str:
    try:
        StepTraining(rank, **options)
    except ValueError as error:
        return str(error)
    return "accepted"
