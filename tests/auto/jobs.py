"""Work of the ranks in the tests of auto."""

from __future__ import annotations

import hashlib
import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.auto import step_record
from gradwire.auto.controller import AutoController
from gradwire.auto.probe import probe
from gradwire.auto.recorder import LONGEST
from gradwire.auto.step_record import BucketRun, StepRecord
from gradwire.compressors import capabilities
from gradwire.compressors.casts.none import Identity
from gradwire.engine.exchange import Exchange
from gradwire.transport import hosts
from gradwire.transport.channel import Channel
from tests.heard import heard

FAST, SLOW = 1e12, 5e6
"""Bytes a second."""


class Noise:
    """The factors by which times differ from what they would be: log-normal ones, and ten in one step of ten.

    Args:
        rank: rank whose times are meant; ranks differ but for the steps that are disturbed.
        sigma: standard deviation of the logarithm.
        seed: seed of the random numbers. Each thread has its own, so that nothing depends on which comes first.
    """

    def __init__(self, rank: int, sigma: float, seed: int) -> None:
        self.sigma, self._steps = sigma, random.Random(seed)
        self._threads = {main: random.Random(f"{seed} {rank} {main}") for main in (True, False)}
        self._disturbed = 1.0

    def begin_step(self) -> None:
        self._disturbed = 10.0 if self._steps.random() < 0.1 else 1.0

    def __call__(self) -> float:
        main = threading.current_thread() is threading.main_thread()
        return self._disturbed * math.exp(self._threads[main].gauss(0.0, self.sigma))


class LinkClock:
    """Time as it would go by on a link of a rate: computing and messages take as long as they are said to.

    The thread that computes has a time, and so has the one that exchanges; whoever waits takes over the later one. So
    what is measured does not depend on what else the machine does.
    """

    def __init__(self) -> None:
        self.main = self.line = 0.0
        self.noise: Callable[[], float] = lambda: 1.0
        self._completed: float | None = None

    def perf_counter(self) -> float:
        """Now, for the thread that asks."""
        if threading.current_thread() is not threading.main_thread():
            return self.line
        completed, self._completed = self._completed, None
        return self.main if completed is None else completed

    def compute(self, seconds: float) -> None:
        self.main += self.noise() * seconds

    def carry(self, seconds: float) -> None:
        """A message of the thread that asks."""
        if threading.current_thread() is threading.main_thread():
            self.wait()
        self.line += self.noise() * seconds
        if threading.current_thread() is threading.main_thread():
            self.wait()

    def carry_beside(self, seconds: float) -> None:
        """A message that nobody waits for yet; the next who asks is told when it is there."""
        self.line = max(self.main, self.line) + self.noise() * seconds
        self._completed = self.line

    def wait(self) -> None:
        """The thread that computes waits for all messages."""
        self.main = self.line = max(self.main, self.line)


class SlowChannel(Channel):
    """Messages of a real group that take as long as on a link of a rate, by a clock of their own."""

    rate = FAST
    link = LinkClock()
    direct = False
    apart = 1.0
    """The factor by which messages to single ranks take longer than their bytes say."""
    factor = 1.0

    def _count(self, sent: int, received: int) -> None:
        super()._count(sent, received)
        if not self.direct:
            with self.metrics.timed("communicate"):
                self.link.carry(self.factor * self.seconds(max(sent, received)))

    def seconds(self, nbytes: int) -> float:
        """The time that messages of a rank take, all ranks having as many."""
        return nbytes / self.rate

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
        self.factor = self.apart
        super().exchange(sends, receives)
        self.factor = 1.0

    def begin_sum(
        self, tensor: Tensor, group: dist.ProcessGroup | None, arrived: Callable[[Tensor], object]
    ) -> Future[Tensor]:
        if group is self.group:
            return super().begin_sum(tensor, group, arrived)
        self.direct = True
        done = super().begin_sum(tensor, group, lambda _: None).wait()
        self.direct = False
        self.link.carry_beside(2 * (self.world - 1) * tensor.nbytes / self.world / self.rate)
        arrived(done)
        future: Future[Tensor] = Future()
        future.set_result(done)
        return future


class HostChannel(SlowChannel):
    """Messages of hosts of two ranks: their ring crosses the link of a host once, and what both of them send to others
    passes it one after the other, unless each has a link of its own.
    """

    inside = FAST
    sharing = 2
    going: tuple[int, int] | None = None
    """Bytes to other hosts and to the neighbour; None: a ring."""

    def seconds(self, nbytes: int) -> float:
        if self.going is None:
            return super().seconds(nbytes)
        return max(self.sharing * self.going[0] / self.rate, self.going[1] / self.inside)

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
        host = self.rank // 2
        sizes = [each.nbytes for each in sends]
        leaving = sum(size for rank, size in enumerate(sizes) if rank // 2 != host)
        self.going = leaving, sizes[self.rank ^ 1]
        super().exchange(sends, receives)
        self.going = None


def slow(exchange: Exchange, rate: float) -> LinkClock:
    """Put an exchange on a link of a rate, with the clock of that link."""
    link, controller = LinkClock(), exchange.controller
    assert controller is not None
    step_record.time = link  # type: ignore[assignment]
    exchange.counters.clock = link.perf_counter
    exchange.channel.__class__ = SlowChannel
    exchange.channel.rate, exchange.channel.link = rate, link  # type: ignore[attr-defined]
    before, started = controller.before, controller.started

    def prepare(flat: Tensor, params: Any, ready: Any, *options: Any, **named: Any) -> Any:
        if ready is not None and threading.current_thread() is not threading.main_thread():
            link.line = max(link.line, ready)
        return before(flat, params, ready, *options, **named)

    def take(run: Any) -> None:
        if run is not None and threading.current_thread() is not threading.main_thread():
            link.line = max(link.line, run.ready)
        started(run)

    controller.before, controller.started = prepare, take  # type: ignore[method-assign]
    return link


WIDTH, WIDE = 192, 384
"""Widths of the layers: buckets of wide ones take four times as long."""


def network(width: int = WIDTH) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(width, width) for _ in range(6)]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), *layers, nn.Linear(width, 16))


def replicated(net: nn.Module, width: int = WIDTH) -> DistributedDataParallel:
    """DDP with two layers of this width in most buckets."""
    return DistributedDataParallel(net, bucket_cap_mb=(width / WIDE) ** 2)  # type: ignore[arg-type]


def examples(data: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch whose targets are mostly noise, as gradients are."""
    x = torch.randn(16, 64, generator=data)
    return x, x[:, :16] + 4 * torch.randn(16, 16, generator=data)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def digest(model: nn.Module) -> str:
    whole = torch.cat([param.detach().reshape(-1) for param in model.parameters()])
    return hashlib.sha256(whole.view(torch.uint8).numpy().tobytes()).hexdigest()


class Training:
    """A model under DDP with auto on a link whose rate can be set."""

    def __init__(
        self, rank: int, optimizer: str = "AdamW", pause: float = 1e-3, width: int = WIDTH, **options: Any
    ) -> None:
        torch.set_num_threads(1)
        net = network(width)
        for layer in net.children():
            layer.register_full_backward_hook(lambda *_: self.link.compute(pause))
        self.model = replicated(net, width)
        self.state = gradwire.compress_ddp(self.model, "auto", **options)
        self.link = slow(self.state.exchange, FAST)
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=1e-3)
        self.data = torch.Generator().manual_seed(rank + 1)

    @property
    def channel(self) -> SlowChannel:
        channel = self.state.exchange.channel
        assert isinstance(channel, SlowChannel)
        return channel

    def step(self) -> None:
        loss = loss_of(self.model, examples(self.data))
        self.optimizer.zero_grad()
        loss.backward()
        self.link.wait()
        self.optimizer.step()

    def run(self, steps: int, rate: float) -> None:
        self.channel.rate = rate
        for _ in range(steps):
            self.step()

    def settle(self, rate: float, least: int = 15, most: int = 150) -> None:
        """Train until some buckets have had a method for so many steps; all ranks see the same."""
        self.channel.rate, held = rate, 0
        for _ in range(most):
            self.step()
            held = held + 1 if self.auto["phase"] == "holding" else 0
            if held >= least:
                return

    @property
    def auto(self) -> dict[str, Any]:
        auto: dict[str, Any] = self.state.decisions()
        return auto

    @property
    def choices(self) -> list[str]:
        return [each["choice"] for each in self.auto["buckets"]]


def slow_link(rank: int, budget: str, optimizer: str) -> dict[str, Any]:
    training = Training(rank, optimizer, budget=budget)
    training.settle(SLOW)
    before = training.state.metrics()
    training.run(5, SLOW)
    after = training.state.metrics()
    return {
        "digest": digest(training.model),
        "assigned": sorted((name, repr(each[0])) for name, each in training.state.exchange.methods.assigned.items()),
        "auto": training.auto,
        "ratio": (after["dense_bytes"] - before["dense_bytes"]) / (after["bytes_sent"] - before["bytes_sent"]),
    }


def overridden(rank: int, method: str) -> float | None:
    """The bits a second of a slow link, most of whose bytes an option compresses in any case."""
    names = [f"{number}.weight" for number in (2, 4, 6)]
    training = Training(rank, overrides=dict.fromkeys(names, method), budget="exact")
    training.run(16, SLOW)
    rate: float | None = training.state.metrics()["link_bits_per_second"]
    return rate


def nothing_to_gain(rank: int) -> dict[str, Any]:
    """A fast link, and a backward pass that takes long."""
    training = Training(rank, pause=0.03)
    training.run(25, FAST)
    plain = replicated(network())
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank + 1)
    for _ in range(25):
        loss = loss_of(plain, examples(data))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"auto": training.auto, "same": digest(training.model) == digest(plain)}


def warming_up(rank: int) -> dict[str, Any]:
    """A slow link, and steps that are uncompressed whatever is decided; then as many that are not."""
    said = heard(logging.DEBUG)
    training, phases = Training(rank, start_after=40), []
    training.channel.rate = SLOW
    for _ in range(80):
        training.step()
        phases.append(training.auto["phase"])
    return {"phases": phases, "decisions": training.auto["decisions"], "said": said}


def resting(rank: int) -> dict[str, Any]:
    """A fast link for a hundred steps, where next to nothing happens at last; then a slow one for fifty."""
    said = heard()
    training = Training(rank, pause=0.03, width=WIDE)
    counters, controller = training.state.exchange.counters, training.state.exchange.controller
    assert isinstance(controller, AutoController)
    plain = replicated(network(WIDE), WIDE)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank + 1)
    timed, sent, compared = [], [], []
    for _ in range(100):
        before = counters.bytes_sent, counters.compared_bytes
        training.run(1, FAST)
        sent.append(counters.bytes_sent - before[0])
        compared.append(counters.compared_bytes - before[1])
        timed.append(controller.timed)
        loss = loss_of(plain, examples(data))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    same, decided = digest(training.model) == digest(plain), training.auto["decisions"]
    said = said[:]
    training.run(50, SLOW / 10)
    return {
        "said": said,
        "same": same,
        "decided": decided,
        "timed": timed,
        "sent": sent,
        "compared": compared,
        "choices": training.choices,
        "digest": digest(training.model),
    }


def looking_for_unused(rank: int, steps: int) -> list[bool]:
    """Steps left to a DDP that looks for unused parameters; one rank's thread is quick, the others' is not.

    After the hook of the last bucket such a DDP starts one more collective on its group.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model = DistributedDataParallel(net, bucket_cap_mb=1e-4, find_unused_parameters=True)
    state = gradwire.compress_ddp(model, "auto")
    submit = state._submit

    def submit_and_wait(*job: Any) -> Future[Tensor]:
        future = submit(*job)
        if rank == 0:
            time.sleep(0.05)
        return future

    state._submit = submit_and_wait  # type: ignore[method-assign]
    equal = []
    for step in range(steps):
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(steps * rank + step))
        model.zero_grad()
        with model.no_sync():
            model(inputs).square().mean().backward()
        wanted = [param.grad.clone() for param in model.parameters()]
        for grad in wanted:
            dist.all_reduce(grad, op=dist.ReduceOp.SUM)
            grad.div_(dist.get_world_size())
        model.zero_grad()
        model(inputs).square().mean().backward()
        got = [param.grad for param in model.parameters()]
        equal.append(all(torch.allclose(*pair) for pair in zip(got, wanted, strict=True)))
    return equal


def told(rank: int) -> list[str]:
    """The messages until a slow link is compressed for."""
    said = heard(logging.DEBUG)
    Training(rank).settle(SLOW, least=2)
    return said


def unsettled(rank: int, steps: int) -> list[str]:
    """Gradients that move to other buckets all the time, on a slow link: the phase after each step."""
    training, found = Training(rank), []
    training.channel.rate = SLOW
    layers = [layer for layer in training.model.module if isinstance(layer, nn.Linear)]
    for step in range(steps):
        loss = loss_of(training.model, examples(training.data))
        training.optimizer.zero_grad()
        # Of the layers, which lie in several buckets, another one has large gradients in every window.
        favoured = layers[(step // 4) % len(layers)].weight
        handle = favoured.register_hook(lambda grad: 1e4 * grad)
        loss.backward()
        handle.remove()
        training.link.wait()
        found.append(training.auto["phase"])
    return found


def straggling(rank: int, slower: float) -> dict[str, Any]:
    """One rank computes for longer for fifty steps, and then no longer."""
    training, parts = Training(rank), []
    training.settle(SLOW)
    compute = training.link.compute
    for factor in (1.0, slower, 1.0):
        if rank == 1:
            training.link.compute = lambda seconds, by=factor: compute(by * seconds)  # type: ignore[method-assign]
        training.run(50, SLOW)
        parts.append((training.auto["step"]["seconds"], training.auto["link"]["bits_per_second"], training.choices))
    return {"parts": parts, "decisions": training.auto["decisions"]}


class Reader(nn.Module):
    """Words, whose embeddings are neither the first matrix nor the last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 256)
        self.words = nn.Embedding(512, 256)
        self.inner = nn.Linear(256, 256)
        self.last = nn.Linear(256, 16)

    def forward(self, x: Tensor) -> Tensor:
        chosen = (x[:, 0].abs() * 100).long() % 512
        return self.last(torch.relu(self.inner(torch.relu(self.first(x)) + self.words(chosen))))


def with_embeddings(rank: int) -> dict[str, float]:
    """The bits an element of each matrix on a very slow link."""
    torch.set_num_threads(1)
    model = DistributedDataParallel(Reader(), bucket_cap_mb=0.5)
    state = gradwire.compress_ddp(model, "auto", budget="small")
    link = slow(state.exchange, SLOW / 20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(rank + 1)
    for _ in range(40):
        optimizer.zero_grad()
        loss_of(model, examples(data)).backward()
        link.wait()
        optimizer.step()
    shape = (256, 256)
    return {
        name: 8 * capabilities.traffic(code, shape) / (256 * 256)
        for name, (code, _) in state.exchange.methods.assigned.items()
        if name.endswith("weight")
    }


def not_finite(rank: int) -> dict[str, Any]:
    """Steps where nothing is to be gained, in which a gradient of one rank is not finite: of each whether its times are
    noted, and how many were counted before and in it; and what was counted when ranks have told each other."""
    training = Training(rank, pause=0.03, width=WIDE)
    controller = training.state.exchange.controller
    assert isinstance(controller, AutoController)
    training.run(60, FAST)
    timed, counted = [], []
    for _ in range(2 * LONGEST):
        loss = loss_of(training.model, examples(training.data))
        (loss * float("inf") if rank == 1 else loss).backward()
        training.optimizer.zero_grad()
        training.link.wait()
        timed.append(controller.timed)
        counted.append(training.state.metrics()["nonfinite_steps"])
    training.run(LONGEST + 1, FAST)
    later = training.state.metrics()["nonfinite_steps"]
    for _ in range(5):
        loss = loss_of(training.model, examples(training.data))
        (loss * float("inf") if rank == 1 else loss).backward()
        training.optimizer.zero_grad()
        training.link.wait()
    training.state.change("qsgd", bits=4)
    changed = training.state.metrics()["nonfinite_steps"]
    return {"timed": timed, "counted": counted, "later": later, "changed": changed}


def on_hosts(rank: int, inside: float, sharing: int) -> dict[str, Any]:
    """Two hosts of two ranks on a slow link."""
    hosts.own_host = lambda: f"host {rank // 2}".encode().ljust(16)
    training = Training(rank)
    channel = training.channel
    channel.__class__ = HostChannel
    channel.inside, channel.sharing = inside, sharing  # type: ignore[attr-defined]
    training.settle(SLOW, least=3)
    training.run(20, SLOW)
    return {"auto": training.auto, "digest": digest(training.model)}


def sixteen_bits(rank: int) -> dict[str, Any]:
    """A model in bfloat16 on a slow link, where rounding to bfloat16 gains nothing; and the same under DDP alone."""
    torch.set_num_threads(1)
    digests, phases, said = [], set(), heard()
    for steered in (True, False):
        model, link, state = replicated(network().bfloat16()), LinkClock(), None
        if steered:
            state = gradwire.compress_ddp(model, "auto", budget="exact")
            link = slow(state.exchange, SLOW)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        data = torch.Generator().manual_seed(rank + 1)
        for _ in range(40):
            x, y = examples(data)
            optimizer.zero_grad()
            loss_of(model, (x.bfloat16(), y.bfloat16())).backward()
            link.compute(1e-3)
            link.wait()
            optimizer.step()
            if state is not None:
                told = state.decisions()
                phases.add(told["phase"])
        digests.append(digest(model))
    return {"digests": digests, "phases": phases, "auto": told, "said": said}


def changing_link(rank: int) -> dict[str, Any]:
    """Slow, fast, and slow again: choices and the link's rate as they are known after fifty steps of each."""
    training = Training(rank)
    found = []
    for rate in (SLOW, FAST, SLOW):
        training.run(50, rate)
        found.append((training.choices, training.auto["link"]["bits_per_second"]))
    return {"parts": found, "decisions": training.auto["decisions"]}


def noisy(rank: int, sigma: float, seed: int, rates: Sequence[float], apart: float = 1.0) -> dict[str, Any]:
    """A link whose messages never take as long as the ones before, each rate for fifty steps."""
    training, noise, parts = Training(rank), Noise(rank, sigma, seed), []
    training.link.noise, training.channel.apart = noise, apart
    for rate in rates:
        training.channel.rate = rate
        for _ in range(50):
            noise.begin_step()
            training.step()
        parts.append((training.choices, training.auto["link"]["bits_per_second"]))
    return {"parts": parts, "decisions": training.auto["decisions"]}


def changed_at_once(rank: int, rate: float) -> dict[str, Any]:
    """The link changes right after the first decision: nobody can tell whether it is the link or the choice."""
    training = Training(rank)
    training.settle(SLOW, least=1)
    training.run(50, rate)
    return {"choices": training.choices, "link": training.auto["link"], "decisions": training.auto["decisions"]}


def faster_by_itself(rank: int, gain: float) -> dict[str, Any]:
    """Steps that take long until something is chosen, whatever it is, and then become faster by themselves.

    Args:
        gain: seconds that the beginning takes more; 0.3 more are taken as long as buckets have methods.
    """
    said = heard(logging.DEBUG)
    training, phases = Training(rank), []
    training.channel.rate = SLOW
    for _ in range(150):
        begins = not training.auto["decisions"]
        training.link.compute(gain if begins else 0.0)
        training.link.compute(0.3 if training.auto["phase"] == "holding" else 0.0)
        training.step()
        phases.append(training.auto["phase"])
    return {"phases": phases, "decisions": training.auto["decisions"], "said": said}


def slower_than_uncompressed(rank: int) -> dict[str, Any]:
    """The forward pass takes longer than all that methods save, as long as buckets have any."""
    said = heard(logging.DEBUG)
    training = Training(rank)
    training.settle(SLOW, least=1)
    for _ in range(40):
        training.link.compute(0.3 if training.auto["phase"] == "holding" else 0.0)
        training.step()
    return {"auto": training.auto, "said": said}


def loss_scaled(rank: int, scaled: bool) -> dict[str, Any]:
    """A GradScaler that begins far too high: its scale is halved seven times, step by step, and doubled once later."""
    training = Training(rank)
    training.channel.rate = SLOW
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=scaled)
    for step in range(40):
        training.optimizer.zero_grad()
        scaler.scale(loss_of(training.model, examples(training.data))).backward()
        training.link.wait()
        scaler.step(training.optimizer)
        scaler.update(scaler.get_scale() * (0.5 if 3 <= step < 10 else 2.0 if step == 20 else 1.0))
    return {"decisions": training.auto["decisions"], "digest": digest(training.model)}


def made_again(rank: int) -> dict[str, Any]:
    """A run, and another one that makes its decisions again without measuring."""
    training = Training(rank)
    training.settle(SLOW)
    decisions, steps = training.auto["decisions"], training.state.metrics()["steps"]
    training.state.close()
    again = Training(rank, decisions=decisions)
    before = again.auto["buckets"]
    again.run(steps, FAST)
    return {
        "elements": sum(param.numel() for param in again.model.parameters()),
        "told": (before, again.auto["buckets"]),
        "decisions": decisions,
        "digests": (digest(training.model), digest(again.model)),
        "phase": again.auto["phase"],
        "made": again.auto["decisions"],
    }


def resumed(rank: int) -> dict[str, Any]:
    training = Training(rank)
    training.settle(SLOW, least=3)
    saved, before = training.state.state_dict(), sorted(training.state.exchange.methods.assigned)
    training.state.close()
    other = Training(rank)
    other.state.load_state_dict(saved)
    after = sorted(other.state.exchange.methods.assigned)
    other.settle(SLOW)
    return {
        "before": before,
        "after": after,
        "later": sorted(other.state.exchange.methods.assigned),
        "auto": other.auto,
    }


def resumed_in_part(rank: int) -> dict[str, Any]:
    """A state whose last decision was for a layer that is frozen now, for one that is trained, and for hosts."""

    def model_of(frozen: str) -> DistributedDataParallel:
        net = network(64)
        for name, param in net.named_parameters():
            param.requires_grad_(not name.startswith(frozen))
        return DistributedDataParallel(net)

    def step(model: DistributedDataParallel) -> None:
        loss_of(model, examples(torch.Generator().manual_seed(rank))).backward()

    choices = [
        {"method": "qsgd:bits=8", "strategy": "allgather", "params": ["2.weight", "3.weight"]},
        {"method": "bf16", "strategy": "hierarchical", "params": ["4.weight"]},
    ]
    decisions = [{"step": 1, "choices": choices}]
    model = model_of("none")
    before = gradwire.compress_ddp(model, decisions=decisions)
    step(model)
    saved = before.state_dict()
    before.close()
    hosts.own_host = lambda: b"1".ljust(16)
    model = model_of("2.")
    state = gradwire.compress_ddp(model)
    state.load_state_dict(saved)
    assigned, auto = {name: code.bits for name, (code, _) in state.exchange.methods.assigned.items()}, state.decisions()
    step(model)
    try:
        state.load_state_dict({**saved, "auto": saved["auto"].replace("2.weight", "elsewhere")})
    except gradwire.ConfigError as error:
        said = str(error)
    return {"assigned": assigned, "auto": auto, "steps": state.metrics()["steps"], "said": said}


def refused(rank: int, options: dict[str, Any]) -> str:
    model = DistributedDataParallel(network(32))
    try:
        gradwire.compress_ddp(model, options.pop("compressor", "auto"), **options)
    except gradwire.ConfigError as error:
        return str(error)
    return "accepted"


def taken_over(rank: int, holding: bool) -> dict[str, Any]:
    """The method is changed by hand while auto watches, or holds; bytes of the steps after that."""
    training = Training(rank)
    if holding:
        training.settle(SLOW, least=3)
    training.run(5, SLOW)
    training.state.change("qsgd", bits=4)
    sent = []
    for _ in range(8):
        before = training.state.metrics()["bytes_sent"]
        training.step()
        sent.append(training.state.metrics()["bytes_sent"] - before)
    return {
        "sent": sent,
        "auto": bool(training.state.decisions()),
        "assigned": training.state.exchange.methods.assigned,
        "digest": digest(training.model),
    }


def sub_group(rank: int) -> float:
    """The hook in its plain form, on the module inside a model of two of four ranks."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = groups[rank // 2]
    model = DistributedDataParallel(nn.Linear(4, 1, bias=False), process_group=group)
    state = gradwire.GradwireState(model.module, "auto", process_group=group)
    model.register_comm_hook(state, gradwire.gradwire_hook)
    for _ in range(3):
        model.zero_grad()
        model(torch.full((1, 4), float(rank))).sum().backward()
    grad = model.module.weight.grad
    assert grad is not None
    state.close()
    return float(grad[0, 0])


def plain_loop(rank: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = gradwire.compress_optimizer(optimizer, model, "auto", bucket_mb=0.25)
    slow(state.exchange, SLOW)
    data = torch.Generator().manual_seed(rank + 1)
    for _ in range(50):
        optimizer.zero_grad()
        loss_of(model, examples(data)).backward()
        optimizer.step()
    return {"digest": digest(model), "auto": state.decisions()}


def by_layer(model: nn.Module) -> nn.Module:
    """FSDP2, each layer a module of its own."""
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def flat_by_layer(model: nn.Module) -> nn.Module:
    """FSDP1, each layer a module of its own."""
    return FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.device("cpu"), use_orig_params=True
    )


SHARDED = {"2": (by_layer, gradwire.compress_fsdp), "1": (flat_by_layer, gradwire.compress_fsdp1)}


class SlowGather(DefaultAllGather):
    """A gather of weights that makes a time go by before it is done."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.wait()
        return super().__call__(*given, **named)


def gather_apart(model: nn.Module, wait: Callable[[], None] = lambda: None) -> None:
    """Gather the weights of a model on a link of their own, which nobody watches."""
    for module in (each for each in model.modules() if isinstance(each, FSDPModule)):
        module.set_custom_all_gather(SlowGather(wait))


def sharded(
    rank: int, version: str, rate: float, pause: float = 0.0, gather: float = 0.0, steps: int = 40
) -> dict[str, Any]:
    """A model under FSDP, each of whose layers takes so long in the backward pass, and so long to be gathered."""
    torch.set_num_threads(1)
    shard, compress = SHARDED[version]
    net = network()
    for layer in net.children():
        layer.register_full_backward_hook(lambda *_: link.compute(pause))
    model = shard(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = compress(model, "auto")
    link = slow(state.exchange, rate)
    gather_apart(model, lambda: link.compute(gather))
    data, losses, sent = torch.Generator().manual_seed(rank + 1), [], []
    for _ in range(steps):
        before = state.metrics()["bytes_sent"]
        optimizer.zero_grad()
        loss = loss_of(model, examples(data))
        loss.backward()
        link.wait()
        optimizer.step()
        losses.append(float(loss.detach()))
        sent.append(state.metrics()["bytes_sent"] - before)
    codes = {name: code for name, (code, _) in state.exchange.methods.assigned.items() if not name.endswith("bias")}
    bits = {int(re.findall(r"\d+", name)[0]): code.bits for name, code in codes.items()}
    return {"auto": state.decisions(), "losses": losses, "sent": sent, "bits": bits}


def sharded_on_hosts(rank: int, sharing: int) -> dict[str, Any]:
    """A model under FSDP2 on two hosts of two ranks and a slow link."""
    hosts.own_host = lambda: f"host {rank // 2}".encode().ljust(16)
    torch.set_num_threads(1)
    model = by_layer(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = gradwire.compress_fsdp(model, "auto")
    slow(state.exchange, SLOW / 4)
    gather_apart(model)
    channel = state.exchange.channel
    channel.__class__ = HostChannel
    channel.sharing = sharing  # type: ignore[attr-defined]
    data = torch.Generator().manual_seed(rank + 1)
    for _ in range(50):
        optimizer.zero_grad()
        loss_of(model, examples(data)).backward()
        optimizer.step()
    return {"auto": state.decisions(), "local": state.metrics()["local_bytes"]}


def scattered_by_hosts(rank: int, bad: bool) -> dict[str, Any]:
    """One backward pass in which hosts sum plainly before they reduce to the owners; the gradients, and the exact mean.

    With ``bad`` the batch of one rank is not finite.
    """
    numbers = [0, 1, 1, 0]  # Neighbours by rank are not on the same host.
    hosts.own_host = lambda: f"host {numbers[rank]}".encode().ljust(16)
    torch.set_num_threads(1)
    whole, batches = network(64), [examples(torch.Generator().manual_seed(each)) for each in range(4)]
    names = [name for name, _ in whole.named_parameters()]
    torch.stack([loss_of(whole, each) for each in batches]).mean().backward()
    model = by_layer(network(64))
    choice = {"method": "bf16", "strategy": "hierarchical", "params": names}
    state = gradwire.compress_fsdp(model, decisions=[{"step": 1, "choices": [choice]}])
    x, y = batches[rank]
    loss_of(model, (x * float("inf") if bad and rank == 2 else x, y)).backward()
    found = {name: param.grad.full_tensor() for name, param in model.named_parameters()}
    return {
        "found": found,
        "exact": {name: param.grad for name, param in whole.named_parameters()},
        "metrics": state.metrics(),
    }


def sharded_in_16_bits(rank: int) -> dict[str, Any]:
    """A model under FSDP2 whose gradients are reduced in bfloat16."""
    torch.set_num_threads(1)
    model = fully_shard(network(128), mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    state = gradwire.compress_fsdp(model)
    slow(state.exchange, SLOW)
    gather_apart(model)
    data = torch.Generator().manual_seed(rank + 1)
    for _ in range(10):
        loss_of(model, examples(data)).backward()
    return {"link": state.decisions()["link"]}


class Ticks:
    """A clock that is a second later whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


def codes_of_parts(rank: int) -> tuple[float, float]:
    """The seconds of the code of one owner's part, and those that are expected of a reduce-scatter."""
    exchange = Exchange(Identity(), group=dist.new_group(backend="gloo"))  # type: ignore[arg-type]
    params = [("weight", (64, 64))]
    controller = AutoController(exchange, params)
    controller.scatter(lambda _: None)
    exchange.counters.clock = lambda: 0.0
    step_record.time = Ticks()  # type: ignore[assignment]
    choice, part = controller.model.candidates[-1], torch.randn(64 * 64)
    one = probe(exchange, choice, lambda _: choice.compressor, part, params, 1)
    expected = controller.model.probe(choice, part, params)
    assert one is not None
    assert expected is not None
    return one.seconds, expected.seconds


def room(rank: int) -> int | None:
    """The reductions that may be under way, where ranks have different numbers of buffers for them."""
    exchange = Exchange(Identity(), group=dist.new_group(backend="gloo"))  # type: ignore[arg-type]
    controller = AutoController(exchange, [("weight", (4, 4))])
    controller.scatter(lambda _: None, lambda: 2 + rank)
    for step in range(3):
        run = BucketRun((("weight", (4, 4)),), float(step), float(step), 0.0)
        run.done = step + 0.5
        controller.recorder.steps.append(StepRecord(begun=float(step), runs=[run]))
    seen = controller.recorder.measure(bears=False, latency=1e-3)
    assert seen is not None
    return seen.buffers


def low_rank(step: int) -> list[dict[str, Any]]:
    """Decisions with a method that a reduce-scatter does not carry."""
    choice = {"method": "powersgd:rank=4", "strategy": "allreduce", "params": ["2.weight"]}
    return [{"step": step, "choices": [choice]}]


def sharded_refused(rank: int) -> str:
    """Decisions of a run under DDP, with a method that a reduce-scatter does not carry."""
    model = network()
    fully_shard(model)
    try:
        gradwire.compress_fsdp(model, decisions=low_rank(3))
    except gradwire.ConfigError as error:
        return str(error)
    return "accepted"


def sharded_refused_later(rank: int) -> dict[str, Any]:
    """The state of a run under DDP, whose method a reduce-scatter does not carry, for a model under FSDP2."""
    replicated = Training(rank, "SGD", decisions=low_rank(2))
    replicated.run(4, FAST)
    saved = replicated.state.state_dict()
    replicated.state.close()
    model = network()
    fully_shard(model)
    state = gradwire.compress_fsdp(model, "auto")
    data, said, steps = torch.Generator().manual_seed(rank + 1), "accepted", list[int]()
    for step in range(2):
        loss_of(model, examples(data)).backward()
        steps.append(state.metrics()["steps"])
        if step == 0:
            try:
                state.load_state_dict(saved)
            except gradwire.ConfigError as error:
                said = str(error)
    return {"said": said, "steps": steps, "decisions": state.decisions()["decisions"]}


def drained(rank: int, bad: bool) -> list[Tensor]:
    """The sum of all steps as it arrives, where a method that keeps residuals is left for none."""
    from gradwire.auto.choices import DENSE
    from gradwire.compressors.sparse.topk import TopK
    from gradwire.engine.strategies.allgather import AllGather

    exchange = Exchange(Identity(), group=dist.new_group(backend="gloo"))  # type: ignore[arg-type]
    params = [("a", (64, 64)), ("b", (64, 64))]
    exchange.assign({name: (TopK(ratio=0.1), AllGather()) for name, _ in params})
    total, own = torch.zeros(2 * 4096), torch.zeros(2 * 4096)
    data = torch.Generator().manual_seed(rank)
    for step in range(6):
        if step == 3:
            exchange.assign({"a": (DENSE.compressor, DENSE.strategy)} if not bad else {})
        flat = torch.randn(2 * 4096, generator=data)
        if bad and step == 3 and rank == 0:
            flat[5] = float("nan")
        own += torch.nan_to_num(flat) if not (bad and step == 3) else 0
        exchange.begin_step()
        exchange.run(flat, params)
        if not (bad and step == 3):
            total += flat
    exchange.end_step()
    waits = exchange.residuals.worker.get("residual", {})
    dist.all_reduce(own)
    return [own / 2, total, torch.tensor([len(waits)])]
