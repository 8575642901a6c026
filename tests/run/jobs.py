"""Work of the ranks: a model that is held, on a link that has a clock of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gradwire.auto.controller import AutoController
from gradwire.frontends.fsdp import managed
from gradwire.run import holds
from gradwire.run.session import RunSession
from tests.auto.jobs import FAST, SLOW, Training, digest, examples, loss_of, network, replicated, slow


def session_of(mode: str, every: int) -> RunSession:
    """A session whose report goes where nobody keeps it."""
    session = RunSession(mode)
    session.sentinel, session.report = every, Path(tempfile.mkdtemp(), "report")
    return session


class HeldTraining(Training):
    """A model that ``gradwire run`` holds."""

    def __init__(self, rank: int, mode: str, every: int) -> None:
        torch.set_num_threads(1)
        net = network()
        for layer in net.children():
            layer.register_full_backward_hook(lambda *_: self.link.compute(1e-3))
        self.session = session_of(mode, every)
        self.model = replicated(net)
        holds.expect(self.session, self.model, "ddp")
        holds.hold(self.session, self.model)
        self.held = self.session.holds[0]
        self.state = self.held.state
        self.link = slow(self.state.exchange, FAST)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = torch.Generator().manual_seed(rank + 1)

    def step(self) -> None:
        super().step()
        self.session.after_backward(None)


def compressed(rank: int, wrong: bool) -> dict[str, Any]:
    """A model on a slow link; one of its buckets gets a hundredth of the error that is to be expected of its method."""
    training = HeldTraining(rank, "apply", every=1)
    training.settle(SLOW, least=3)
    controller = training.held.controller
    spoilt = min(controller.model.current) if wrong else ()
    if wrong:
        expect_too_little(controller, [spoilt])
    training.run(40, SLOW)
    return {
        "digest": digest(training.model),
        "checks": training.held.checks,
        "spoilt": spoilt,
        "assigned": sorted(training.state.exchange.methods.assigned),
        "facts": training.held.facts(),
        "figures": (training.held.before.as_dict(), training.held.after.as_dict()),
    }


def expect_too_little(controller: AutoController, buckets: Sequence[tuple[str, ...]]) -> None:
    """Let the error that is expected of some buckets be a hundredth of what it is."""
    for key, probed in controller.model._probed.items():
        if key[0] in buckets and probed is not None:
            controller.model._probed[key] = replace(probed, omega=1e-4 * probed.omega)


def all_barred(rank: int) -> dict[str, Any]:
    """A model on a slow link, all of whose buckets get a hundredth of the error that is to be expected."""
    training = HeldTraining(rank, "apply", every=1)
    training.settle(SLOW, least=3)
    controller = training.held.controller
    expect_too_little(controller, list(controller.model.current))
    training.run(60, SLOW)
    left = dict(training.state.exchange.methods.assigned)
    return {"digest": digest(training.model), "phase": training.held.controller.phase, "left": left}


def proposed(rank: int) -> dict[str, Any]:
    """The same link, where it is only watched."""
    training = HeldTraining(rank, "watch", every=1)
    training.run(60, SLOW)
    return {
        "known": training.held.known,
        "window": training.held.controller.recorder.length,
        "facts": training.held.facts(),
        "sent": training.held.after.steps,
        "assigned": dict(training.state.exchange.methods.assigned),
    }


def shares_of_weights(rank: int) -> list[float]:
    """The share of weights in the bytes, with and without mixed precision, where gradients travel once."""
    found = []
    for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.float32)):
        model = fully_shard(network(), mp_policy=policy, reshard_after_forward=True)
        loss_of(model, examples(torch.Generator().manual_seed(rank))).backward()
        found.append(holds.gathered_share(managed(model), 1))
    return found


def sharded(rank: int) -> dict[str, Any]:
    """A model under FSDP2 on a slow link."""
    torch.set_num_threads(1)
    session = session_of("apply", 1)
    net = network()
    for layer in list(net)[2:4]:
        fully_shard(layer)
    model = fully_shard(net)
    holds.expect(session, model, "fsdp")
    holds.hold(session, model)
    held = session.holds[0]
    slow(held.state.exchange, SLOW / 4)
    optimizer, data = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.Generator().manual_seed(rank + 1)
    for _ in range(60):
        optimizer.zero_grad()
        loss_of(model, examples(data)).backward()
        optimizer.step()
        session.after_backward(None)
    return {"checks": held.checks, "decisions": held.facts()["decisions"]["decisions"]}
