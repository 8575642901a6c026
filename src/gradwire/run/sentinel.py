"""An exact mean beside the compressed one, now and then, of one bucket at a time.

Invariants:
    * Every number that decides something is a sum over the ranks, with the same bits on all of them. So all ranks put
      the bucket back to uncompressed in the same step, or none does.
    * Errors are compared as shares of the mean's length, so neither the scale of the loss nor the learning rate
      matters.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.auto.controller import AutoController
from gradwire.frontends.sharded import ReduceScatter, multiplier
from gradwire.notices import tell

__all__ = ["Sentinel"]

BOUND = 3.0
"""The error at most, over the one that the budget has counted with."""

SOON = 4
"""Compressed steps after which the first bucket is looked at."""


class Sentinel:
    """The checks of one exchange.

    Args:
        state: state of a DDP model, or of a sharded one.
        group: process group of the DDP model; None: that of each module's reduce-scatter.
        every: compressed steps from one check to the next, >= 1.
        rows: list to which each check adds what it found.
    """

    def __init__(self, state: Any, group: Any, every: int, rows: list[dict[str, Any]]) -> None:
        self.state, self.every, self.rows = state, every, rows
        # Weakly: torch owns a group, and one that outlives its end would abort the process.
        self._group = (lambda: None) if group is None else weakref.ref(group)
        self._compressed, self._turn, self._target = 0, 0, -1
        self._assigned: set[str] = set()
        self._seen: list[int] = []
        self._known: list[int] = []
        self._pending: tuple[tuple[str, ...], Tensor, Any, Tensor, list[Tensor]] | None = None

    @property
    def group(self) -> Any:
        """The process group of the DDP model."""
        return self._group()

    @property
    def controller(self) -> AutoController:
        """The controller that has decided."""
        controller: AutoController = self.state.exchange.controller
        return controller

    def _begin(self) -> None:
        """Begin a step, and choose the bucket that is looked at in it, if it is time for one."""
        self._known, self._seen, self._target = self._seen, [], -1
        # As the last step left it: the controller may switch in this one on another thread, before or after a bucket
        # comes.
        self._assigned = set(self.state.exchange.methods.assigned)
        if not self._assigned or self.state.exchange.controller is None:
            return
        self._compressed += 1
        if self._known and (self._compressed == SOON or self._compressed % self.every == 0):
            self._target = self._known[self._turn % len(self._known)]
            self._turn += 1

    def _is_due(self, index: int, names: Sequence[str]) -> bool:
        """Note a compressed bucket; return whether it is the one to look at."""
        if names and names[0] in self._assigned:
            self._seen.append(index)
        return index == self._target

    def reduce(self, bucket: Any, hook: Callable[[Any, Any], Future[Tensor]]) -> Future[Tensor]:
        """Exchange a bucket of DDP, and reduce it exactly, too, if it is time for that."""
        if bucket.index() == 0:
            self._judge_pending()
            self._begin()
        names = self.state.names_of(bucket)
        if not self._is_due(bucket.index(), names):
            return hook(self.state, bucket)
        buffer = bucket.buffer()
        own, arrived = buffer.clone(), list[Tensor]()
        exact = buffer / dist.get_world_size(self.group)
        # In the order of the hooks, which is the same on all ranks.
        work = dist.all_reduce(exact, group=self.group, async_op=True)
        self._pending = names, own, work, exact, arrived

        def keep(future: Future[Tensor]) -> Tensor:
            value: Any = future.value()
            mean: Tensor = value[0] if isinstance(value, list | tuple) else value
            arrived.append(mean.clone())
            self.controller.disturb()
            return mean

        return hook(self.state, bucket).then(keep)

    def _judge_pending(self) -> None:
        if self._pending is None:
            return
        (names, own, work, exact, arrived), self._pending = self._pending, None
        work.wait()
        got = arrived[0] if arrived else exact
        self.judge(names, norms_of(own, exact, got), self.group)

    def judge(self, names: tuple[str, ...], norms: Tensor, group: Any, *, parts: bool = False) -> None:
        """Compare the error of a bucket with what was expected; one that is too wrong goes back to dense.

        Args:
            names: names of its parameters.
            norms: squared norms of this rank: of its own gradient, of the exact mean, of what arrived, of their
                difference, and their product.
            group: ranks that judge together.
            parts: true where each rank has only its part of the means.
        """
        dist.all_reduce(norms, group=group)
        world = dist.get_world_size(group)
        counted = 1 if parts else world
        own, exact, got, wrong, product = norms.tolist()
        own, exact, got, wrong, product = own / world, *(each / counted for each in (exact, got, wrong, product))
        expected = self.controller.expected_error(names, own, exact)
        if expected is None or not all(map(math.isfinite, (own, exact, got, wrong))) or min(exact, got) <= 0:
            return
        method, variance = expected
        row = {
            "step": self.state.exchange.step,
            "bucket": names[0],
            "choice": method,
            "error": math.sqrt(wrong / exact),
            "expected": math.sqrt(variance / exact),
            "cosine": product / math.sqrt(exact * got),
        }
        row["kept"] = row["error"] <= BOUND * row["expected"]
        self.rows.append(row)
        if row["kept"]:
            return
        self.controller.bar(names)
        if self.state.exchange.channel.rank == 0:
            tell(
                "step %d: the mean of bucket %s was wrong by %.3g of its length, more than %g times the %.3g expected "
                "of %s: it travels uncompressed from now on",
                row["step"],
                names[0],
                row["error"],
                BOUND,
                row["expected"],
                method,
            )

    def watch_scatters(self, model: Any) -> None:
        """Look at the reduce-scatters of a model under FSDP2; those between replicas are left out."""
        from gradwire.frontends.fsdp import managed

        for index, (_, group) in enumerate(managed(model)):
            if isinstance(group._reduce_scatter_comm, ReduceScatter):
                group._reduce_scatter_comm = CheckedScatter(group._reduce_scatter_comm, self, index)


class CheckedScatter(ReduceScatter):
    """The reduce-scatter of one module, which now and then is made exactly, too."""

    def __init__(self, inner: ReduceScatter, sentinel: Sentinel, index: int) -> None:
        vars(self).update(vars(inner))
        self._sentinel, self._index = sentinel, index

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        sentinel, shards = self._sentinel, self.trained()
        names = tuple(each.name for each in shards)
        if self.state.begins(names):
            sentinel._begin()
        if not sentinel._is_due(self._index, names) or self.inner is not None:
            super().__call__(output_tensor, input_tensor, group, op, async_op)
            return
        given = input_tensor.clone()
        super().__call__(output_tensor, input_tensor, group, op, async_op)
        self.state.background.finish()
        sentinel.controller.disturb()
        world = dist.get_world_size(group)
        exact = torch.empty_like(output_tensor)
        dist.reduce_scatter_tensor(exact, given, group=group)
        scale = multiplier(op, world)
        # As means, whatever FSDP divides by.
        got = output_tensor / (scale * world)
        sentinel.judge(names, norms_of(given, exact / world, got), group, parts=True)


def norms_of(own: Tensor, exact: Tensor, got: Tensor) -> Tensor:
    """The squared norms that ``judge`` takes, in float64 on the tensors' device."""
    own, exact, got = own.float(), exact.float(), got.float()
    pairs = [(own, own), (exact, exact), (got, got), (got - exact, got - exact), (exact, got)]
    found = [torch.linalg.vecdot(a.flatten(), b.flatten()).double() for a, b in pairs]
    return torch.stack(found)
