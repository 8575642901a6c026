"""DDP's Python reducer, which compiled autograd traces: ``torch._dynamo.config.optimize_ddp = "python_reducer"``.

Invariants:
    * A hook of a parameter only notes that its gradient is there. The last one calls one operator that cannot be
      traced, on all gradients.
    * The operator exchanges the gradients in buckets in the model's order, whatever the order of the backward pass was.
      Nothing overlaps with the backward pass; the buckets are a copy of the gradients in float32.

Why:
    This reducer has no buckets. It calls a function for each parameter when its gradient is complete, and that function
    is traced into the graph of the backward pass.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradwire._once import once
from gradwire.errors import ConfigError
from gradwire.frontends._buckets import Bucket, BucketState, buckets_of
from gradwire.frontends.optimizer_watch import parameters_of
from gradwire.frontends.setup import Prepared
from gradwire.frontends.state_units import Units
from gradwire.transport.worker import Worker

__all__ = ["Arrivals"]

_library = torch.library.Library("gradwire", "FRAGMENT")  # type: ignore[no-untyped-call]
_numbers = itertools.count()
_alive: weakref.WeakValueDictionary[int, Arrivals] = weakref.WeakValueDictionary()


class Arrivals(BucketState):
    """The gradients of one backward pass; the parameters' hooks keep it alive.

    Args:
        model: the DDP model, which knows whether a pass is synchronised.
        prepared: exchange, and its parameters by name, none of which gets sparse gradients.
        units: unit of the exchange's residuals.
        worker: thread that talks to the network.
    """

    complete = True

    def __init__(self, model: nn.Module, prepared: Prepared, units: Units, worker: Worker) -> None:
        super().__init__(worker)
        params = prepared.params
        self.model, self.exchange, self.units = model, prepared.exchange, units
        self.names = list(params)
        cap = getattr(model, "bucket_bytes_cap", 25 * 2**20) / 2**20
        numbers = {name: number for number, name in enumerate(self.names)}
        self.buckets = buckets_of(prepared, cap)
        self.members = [[numbers[name] for name, _ in bucket.named] for bucket in self.buckets]
        self.there: list[int] = []
        self.grads: list[Tensor] = []
        self.handle = next(_numbers)
        # A traced graph may hold a number and no object, so the operator finds this by its number.
        _alive[self.handle] = self
        self.ids = frozenset(map(id, params.values()))
        watch_optimizers()
        for number, param in enumerate(params.values()):
            param.register_post_accumulate_grad_hook(partial(self.arrived, number))  # type: ignore[no-untyped-call]

    def arrived(self, number: int, param: Tensor) -> None:
        """Note, in traced code, that a gradient is complete; with the last one all are exchanged."""
        if not self.model.require_backward_grad_sync or param.grad is None:
            return
        if number in self.there:
            self.refuse()
        self.there.append(number)
        self.grads.append(param.grad)
        if len(self.there) == len(self.names):
            torch.ops.gradwire.exchange_gradients(self.grads, self.there, self.handle)
            self.there.clear()
            self.grads.clear()

    def refuse(self) -> None:
        """Raise an error, because the pass before was not exchanged: a gradient did not come."""
        raise ConfigError(
            f"every parameter must get a gradient in every backward pass under 'python_reducer', but only "
            f"{len(self.there)} of {len(self.names)} did; use optimize_ddp='ddp_optimizer'"
        )

    def exchange_all(self, grads: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """Replace the gradients of the parameters of these numbers by their means."""
        found = dict(zip(numbers, grads, strict=True))
        of_bucket = {
            id(bucket): [found[number] for number in members]
            for bucket, members in zip(self.buckets, self.members, strict=True)
        }

        def scatter(bucket: Bucket) -> None:
            for view, grad in zip(bucket.views, of_bucket[id(bucket)], strict=True):
                grad.copy_(view)

        self.average(lambda bucket: of_bucket[id(bucket)], scatter)


@once
def watch_optimizers() -> None:
    """Report, before any optimizer applies them, gradients that were not exchanged: the next
    backward pass is too late.
    """
    register_optimizer_step_pre_hook(before_step)


def before_step(optimizer: Optimizer, *_: object) -> None:
    waiting = [each for each in _alive.values() if each.there]
    applied = {id(param) for param in parameters_of(optimizer)} if waiting else set()
    for each in waiting:
        if not applied.isdisjoint(each.ids):
            each.refuse()


def _exchange(grads: list[Tensor], numbers: list[int], handle: int) -> None:
    _alive[handle].exchange_all(grads, numbers)


_library.define(  # type: ignore[no-untyped-call]
    "exchange_gradients(Tensor(a!)[] grads, int[] numbers, int handle) -> ()", tags=(torch.Tag.pt2_compliant_tag,)
)
_library.impl("exchange_gradients", _exchange, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
_library.impl("exchange_gradients", lambda *_: None, "Meta")  # type: ignore[no-untyped-call]
