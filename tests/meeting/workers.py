"""Workers of a meeting: real processes that do what they are told over a pipe, one thing after the other."""

from __future__ import annotations

import contextlib
import io
import math
import multiprocessing as mp
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import gradwire
from gradwire.errors import GradwireError
from gradwire.optim.local._islands import on_rank
from tests.optim.jobs import digest

SIZE = 40


class Work:
    """The model and optimizer of a worker: a model whose gradients are drawn, and an optimizer that exchanges when it
    is told to."""

    def make(self, place: str, name: str, meeting: dict[str, Any], options: dict[str, Any]) -> None:
        torch.manual_seed(sum(name.encode()))
        self.model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4))
        if "frozen" in options:
            self.model[options.pop("frozen")].requires_grad_(False)
        if "island" in options:
            self._shard(*options.pop("island"))
        inner = torch.optim.SGD(self.model.named_parameters(), lr=1.0)
        kind = options.pop("kind", "local_sgd")
        own = {"every": 10**6, "min_numel": 8, **options}
        self.optimizer = getattr(gradwire, kind)(inner, **own, meeting=gradwire.Meeting(place, name, **meeting))
        self.ways = torch.zeros(sum(param.numel() for param in self.optimizer.params), dtype=torch.float64)

    def _shard(self, rank: int, port: int, shape: tuple[int, ...]) -> None:
        """Make this process one of an island, as ``torchrun`` would."""
        world = math.prod(shape)
        # Each island has a store of its own, which its first rank keeps, so that islands die alone.
        store = dist.TCPStore("127.0.0.1", port, world, is_master=rank == 0)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", rank=rank, world_size=world, store=store)
        names = ("shard",) if len(shape) == 1 else ("replicate", "shard")
        fully_shard(self.model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))

    def load(self, state: bytes) -> None:
        saved = torch.load(io.BytesIO(state), weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])

    def save(self) -> bytes:
        file = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
        return file.getvalue()

    def join(self) -> int:
        before, way = self.optimizer.round, self.way()
        self.optimizer.join()
        if self.optimizer.round != before and getattr(self.optimizer, "streamed", None) is None:
            # The round of these local steps is over: they wait for the next.
            self.ways += way
        return self.optimizer.round

    def way(self) -> Tensor:
        held = torch.cat([on_rank(param).detach().view(-1) for param in self.model.parameters() if param.requires_grad])
        return (self.optimizer.agreed.data - held).double().nan_to_num(0.0, 0.0, 0.0)

    def local(self, seed: int, scale: float = 0.1) -> None:
        """Two local steps."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(2):
            for param in self.model.parameters():
                if param.requires_grad:
                    param.grad = as_sharded(scale * torch.randn(param.shape, generator=generator), param)
            self.optimizer.step()

    def exchange(self) -> dict[str, Any]:
        self.ways += self.way()
        self.optimizer.synchronize()
        return self.now()

    def spoil(self) -> None:
        """A parameter that is not finite, which no gradient made so."""
        with torch.no_grad():
            on_rank(next(self.model.parameters()))[0, 0] = float("nan")

    def put(self, value: float, number: int = 0) -> None:
        """Give an element of a parameter a value that no gradient gave it."""
        with torch.no_grad():
            on_rank(list(self.model.parameters())[number]).view(-1)[0] = value

    def now(self) -> dict[str, Any]:
        parameters = digest([on_rank(param).detach() for param in self.model.parameters()])
        return {"parameters": parameters, "round": self.optimizer.round, **self.optimizer.metrics()}

    def sums(self) -> dict[str, Tensor]:
        """All ways that were gone, and what of them waits here."""
        residuals = self.optimizer.exchange.residuals.worker.get("residual", {})
        named = self.optimizer.named
        kept = [residuals.get(name, torch.zeros(torch.Size(shape).numel())).double() for name, shape in named]
        waits = torch.cat(kept) + self.optimizer.rounds.late.double()
        return {"ways": self.ways, "waits": waits, "agreed": self.optimizer.agreed.data.double()}

    def stream(self, steps: int, seed: int, pause: float = 0.0) -> dict[str, Any]:
        """Local steps, in which fragments leave and land."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            time.sleep(pause)
            for param in self.optimizer.trained:
                param.grad = as_sharded(0.1 * torch.randn(param.shape, generator=generator), param)
            self.ways += torch.cat([on_rank(param.grad).view(-1) for param in self.optimizer.trained])
            self.optimizer.step()
        return self.now()

    def watch(self) -> None:
        """Add up from now on what the rounds of fragments apply, as one worker applies them all."""
        self.applied, outer = torch.zeros_like(self.ways), self.optimizer._outer

        def watched(mean: Tensor, span: slice) -> None:
            self.applied[span] += len(self.optimizer.rounds.workers) * mean.double()
            outer(mean, span)

        self.optimizer._outer = watched

    def account(self) -> dict[str, Tensor]:
        """All that was made here, what of it waits here, and what this worker has seen applied."""
        residuals = self.optimizer.exchange.residuals.worker.get("residual", {})
        kept = [residuals.get(name, torch.zeros(torch.Size(shape))).view(-1) for name, shape in self.optimizer.named]
        held = torch.cat([param.detach().view(-1) for param in self.optimizer.params])
        waits = (self.optimizer.agreed.data - held).double() + torch.cat(kept).double()
        # Copies, because a tensor goes through the pipe as shared memory.
        return {"made": self.ways.clone(), "waits": waits, "applied": getattr(self, "applied", self.ways * 0).clone()}

    def meet(self) -> dict[str, Any]:
        """Exchange all fragments at once."""
        self.optimizer.synchronize()
        return self.now()

    def flights(self) -> int:
        return len(self.optimizer.streams.under_way())

    def tensors(self) -> list[Tensor]:
        # Copies, because a tensor goes through the pipe as shared memory.
        return [on_rank(param).detach().clone() for param in self.model.parameters()]

    def tokens(self, number: float | None) -> None:
        """A local step on so many tokens; None: nobody has counted them."""
        for param in self.model.parameters():
            param.grad = as_sharded(torch.ones(param.shape), param)
        if number is not None:
            self.optimizer.add_tokens(number)
        self.optimizer.step()

    def agreed(self) -> str:
        return digest([self.optimizer.round, self.optimizer.agreed.data, self.optimizer.velocity.data])

    def leave(self) -> None:
        self.optimizer.leave()


def as_sharded(whole: Tensor, param: Tensor) -> Tensor:
    """The same tensor in shards, if the parameter is; every rank has the whole."""
    if not isinstance(param, DTensor):
        return whole
    return distribute_tensor(whole, param.device_mesh, param.placements, src_data_rank=None)


class Worker:
    """A process with a ``Work``; ``ask`` waits for the answer, ``tell`` and ``answer`` do it in two parts."""

    def __init__(self, place: str, name: str, meeting: dict[str, Any] | None = None, **options: Any) -> None:
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(
            ["torch", "torch.distributed", "gradwire.rounds", "tests.optim.jobs", "tests.frozen"]
        )
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.name = name
        try:
            self.ask("make", place, name, {"deadline": 60.0, "timeout": 60.0, **(meeting or {})}, options)
        except BaseException:
            # Nobody else knows of it yet.
            self.process.kill()
            raise

    def tell(self, what: str, *args: Any) -> Worker:
        self.pipe.send((what, args))
        return self

    def answer(self) -> Any:
        assert self.pipe.poll(90), f"worker {self.name} does not answer"
        kind, value = self.pipe.recv()
        if kind == "error":
            raise value if isinstance(value, GradwireError) else AssertionError(f"worker {self.name}: {value}")
        return value

    def ask(self, what: str, *args: Any) -> Any:
        return self.tell(what, *args).answer()

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.join(30)


@contextlib.contextmanager
def starter() -> Iterator[Callable[..., Worker]]:
    """Starts workers; ends those that still live."""
    made: list[Worker] = []

    def start(place: str, name: str, meeting: dict[str, Any] | None = None, **options: Any) -> Worker:
        made.append(Worker(place, name, meeting, **options))
        return made[-1]

    try:
        yield start
    finally:
        for each in made:
            each.process.kill()
            each.process.join(10)


class Island:
    """The processes of a worker that is an island, which do everything together; answers are those of all ranks."""

    def __init__(
        self,
        start: Callable[..., Worker],
        place: str,
        names: str | list[str],
        meeting: dict[str, Any] | None = None,
        shape: tuple[int, ...] = (2,),
        **options: Any,
    ) -> None:
        world = math.prod(shape)
        names = [names] * world if isinstance(names, str) else names
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        made = [partial(start, place, names[i], meeting, island=(i, port, shape), **options) for i in range(world)]
        with ThreadPoolExecutor(world) as threads:
            self.ranks = list(threads.map(lambda make: make(), made))

    def tell(self, what: str, *args: Any) -> Island:
        for rank in self.ranks:
            rank.tell(what, *args)
        return self

    def answer(self) -> list[Any]:
        return [rank.answer() for rank in self.ranks]

    def ask(self, what: str, *args: Any) -> list[Any]:
        return self.tell(what, *args).answer()

    def ask_each(self, what: str, args: list[Any]) -> list[Any]:
        """Ask with an argument for each rank."""
        for rank, own in zip(self.ranks, args, strict=True):
            rank.tell(what, own)
        return self.answer()

    def signal(self, number: signal.Signals) -> None:
        for rank in self.ranks:
            rank.signal(number)


def together(workers: list[Worker], what: str, *args: Any) -> list[Any]:
    """All do the same at once."""
    for worker in workers:
        worker.tell(what, *args)
    return [worker.answer() for worker in workers]


def a_round(workers: list[Worker], seed: int) -> list[Any]:
    """Local steps, different for each, and an exchange."""
    for i, worker in enumerate(workers):
        worker.ask("local", 100 * seed + i)
    return together(workers, "exchange")


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    work = Work()
    while True:
        try:
            what, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", getattr(work, what)(*args)))
        except GradwireError as error:
            pipe.send(("error", error))
        except Exception:
            pipe.send(("error", traceback.format_exc()))
