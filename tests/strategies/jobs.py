"""Work of the ranks in the tests of strategies, and their reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named
from gradwire.engine.policy import Policy
from gradwire.engine.settings import build_compressor
from gradwire.transport.channel import traffic_of

SHAPES: list[Named] = [("a.weight", (40, 33)), ("a.bias", (33,)), ("b.weight", (1000,)), ("c.weight", (64, 48))]


def numel(shapes: Sequence[Named]) -> int:
    return sum(torch.Size(shape).numel() for _, shape in shapes)


def gradient(step: int, rank: int, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(7919 * step + rank)
    return torch.randn(n, generator=generator)


class Counter:
    """Counts the bytes handed to the collectives of torch.distributed."""

    def __init__(self) -> None:
        self.sent = self.received = 0

    def __enter__(self) -> Self:
        self._originals = {name: getattr(dist, name) for name in ("isend", "irecv", "all_reduce", "broadcast")}
        self._wrap("isend", self._sent)
        self._wrap("irecv", self._received)
        self._wrap("all_reduce", self._reduced)
        self._wrap("broadcast", self._broadcast)
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(dist, name, original)

    def _wrap(self, name: str, count: Callable[..., None]) -> None:
        original = getattr(dist, name)

        def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            count(tensor, *args, **kwargs)
            return original(tensor, *args, **kwargs)

        setattr(dist, name, counted)

    def _sent(self, tensor: Tensor, *_: Any, **__: Any) -> None:
        self.sent += tensor.nbytes

    def _received(self, tensor: Tensor, *_: Any, **__: Any) -> None:
        self.received += tensor.nbytes

    def _reduced(self, tensor: Tensor, *_: Any, **__: Any) -> None:
        world = dist.get_world_size()
        self.sent += 2 * (world - 1) * tensor.nbytes // world
        self.received += 2 * (world - 1) * tensor.nbytes // world

    def _broadcast(self, tensor: Tensor, src: int, **_: Any) -> None:
        mine = src == dist.get_rank()
        self.sent += (dist.get_world_size() - 1) * tensor.nbytes if mine else 0
        self.received += 0 if mine else tensor.nbytes


def run_exchange(
    rank: int,
    compressor: str,
    params: dict[str, Any],
    options: dict[str, Any],
    policy: dict[str, Any],
    steps: int,
    poison: dict[int, tuple[int, float]] | None = None,
) -> dict[str, Any]:
    """Exchange ``steps`` gradients; at step s rank ``poison[s][0]`` puts ``poison[s][1]`` into one element.

    Returns the outputs, the residuals before and after each step, what owners kept, metrics and counted bytes.
    """
    traffic_of(dist.group.WORLD).room = 0  # No payload of the exchange before is expected.
    exchange = Exchange(
        build_compressor(compressor, params), group=dist.group.WORLD, policy=Policy(**policy), **options
    )
    n, outputs, residuals = numel(SHAPES), [], []
    with Counter() as counter:
        for step in range(steps):
            flat = gradient(step, rank, n)
            if poison and step in poison and poison[step][0] == rank:
                flat[n // 2] = poison[step][1]
            exchange.begin_step()
            exchange.run(flat, SHAPES)
            outputs.append(flat.clone())
            residuals.append(kept(exchange))
    return {
        "outputs": outputs,
        "residuals": residuals,
        "owned": owned(exchange),
        "metrics": exchange.metrics(),
        "sent": counter.sent,
        "received": counter.received,
        "states": exchange.residuals.states,
    }


def run_all(
    rank: int,
    steps: dict[str, int],
    options: dict[str, Any],
    policy: dict[str, Any],
    poison: dict[int, tuple[int, float]] | None = None,
) -> dict[str, dict[str, Any]]:
    """``run_exchange`` for each compressor with its defaults and as many steps as are named."""
    return {name: run_exchange(rank, name, {}, options, policy, count, poison) for name, count in steps.items()}


def kept(exchange: Exchange) -> dict[str, Tensor]:
    return {name: view.clone() for name, view in exchange.residuals.worker.get("residual", {}).items()}


def owned(exchange: Exchange) -> dict[str, list[tuple[int, Tensor]]]:
    """The tensors that an owner keeps of each parameter, in use or waiting for their cut, with their first elements."""
    found = exchange.residuals.state_dict()["owned"].items()
    return {
        name: [(int(lo), view.clone()) for views in buffers.values() for lo, view in views.items()]
        for name, buffers in found
    }


def conserved(results: Sequence[dict[str, Any]], steps: int) -> tuple[Tensor, Tensor]:
    """(what arrived, what was put in), both summed over steps: equal to rounding, or gradient was lost."""
    world, n = len(results), numel(SHAPES)
    arrived = sum(results[0]["outputs"], torch.zeros(n)).double()
    put = sum(sum(gradient(s, r, n).double() for s in range(steps)) for r in range(world)) / world
    lo = 0
    for name, shape in SHAPES:
        hi = lo + torch.Size(shape).numel()
        for result in results:
            if name in result["residuals"][-1]:
                arrived[lo:hi] += result["residuals"][-1][name].double() / world
            for start, view in result["owned"].get(name, []):
                arrived[lo + start : lo + start + view.numel()] += view.double()
        lo = hi
    return arrived, put
