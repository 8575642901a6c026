"""Exchange of all gradients of a step at once: copied into buckets, averaged on one thread, copied out again.

Invariants:
    * A parameter without a gradient on some ranks counts as zero there.
    * A parameter without a gradient on all ranks stays without one, and what is kept for it stays as it was.

Why:
    A rank cannot know alone which of the two it is, so each step begins with an all-reduce of one byte for each
    parameter, while the first bucket is filled. In a plain loop nobody has to announce unused parameters, as DDP wants
    it; a forgotten announcement would be weight decay on layers that were not used. While every gradient is there,
    nothing else is paid for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor, nn

from gradwire.engine.exchange import USED
from gradwire.engine.part import nonfinite
from gradwire.engine.plan import Named
from gradwire.errors import ConfigError
from gradwire.frontends.setup import Prepared, in_memory, memory_order
from gradwire.frontends.state_units import ExchangeState
from gradwire.modes import ordinary_modes
from gradwire.transport.worker import Worker

__all__ = ["Bucket", "BucketState", "buckets_of"]


class Bucket:
    """Parameters whose gradients travel as one flat tensor.

    Args:
        members: parameters, with their names.
        device: device of the flat tensor.
        dtype: dtype of their gradients, where no method takes it and they travel in it; None: they are compressed.
    """

    def __init__(
        self, members: Sequence[tuple[str, nn.Parameter]], device: torch.device, dtype: torch.dtype | None = None
    ) -> None:
        self.compressed = dtype is None
        self.params = [param for _, param in members]
        self.named: list[Named] = [(name, tuple(in_memory(param).shape)) for name, param in members]
        numels = [param.numel() for param in self.params]
        self.flat = torch.zeros(sum(numels), dtype=dtype or torch.float32, device=device)
        pairs = zip(torch.split(self.flat, numels), self.params, strict=True)
        self.views = [as_stored(view, param) for view, param in pairs]
        self.unused = [False] * len(numels)
        """True for each parameter for which no rank had a gradient in the last step."""

    def gather(self, grads: Sequence[Tensor | None]) -> None:
        """Copy the gradients in; a gradient that is missing on this rank counts as zero."""
        for view, grad, (name, _) in zip(self.views, grads, self.named, strict=True):
            if grad is None:
                view.zero_()
                continue
            if grad.layout != torch.strided:
                raise ConfigError(
                    f"gradient of {name} must be dense, or that of an embedding with sparse=True, got {grad.layout}"
                )
            view.copy_(grad)

    def scatter(self) -> None:
        """Copy the gradients out; a parameter that no rank used keeps none."""
        for view, param, unused in zip(self.views, self.params, self.unused, strict=True):
            if unused:
                continue
            if param.grad is None:
                param.grad = torch.empty_like(param)
            param.grad.copy_(view)

    def narrowed(self) -> list[Tensor]:
        """Return the mean in fewer bits, if the gradients have fewer than the bucket: in one piece where they all have
        one dtype.
        """
        dtypes = {param.dtype for param in self.params}
        if len(dtypes) == 1:
            views, dtypes_of = [self.flat], [dtypes.pop()]
        else:
            views, dtypes_of = list(self.views), [param.dtype for param in self.params]
        pairs = zip(views, dtypes_of, strict=True)
        return [view.to(dtype) for view, dtype in pairs if dtype.itemsize < self.flat.itemsize]


class SparseBucket(Bucket):
    """A parameter whose gradient is sparse, and travels as it is."""

    def __init__(self, name: str, param: nn.Parameter, device: torch.device) -> None:
        self.compressed, self.params, self.unused, self.device = False, [param], [False], device
        self.named = [(name, tuple(param.shape))]

    def gather(self, grads: Sequence[Tensor | None]) -> None:
        """Take the gradient; one that is missing on this rank has no rows."""
        (param,), (grad,) = self.params, grads
        given = torch.zeros_like(param) if grad is None else grad
        # Ranks must have the same sparse dimensions: the first, as an embedding's gradient has it.
        self.flat = (given if given.is_sparse else given.to_sparse(1)).to(self.device).coalesce()

    def scatter(self) -> None:
        """Give the parameter the mean; one that no rank used keeps no gradient."""
        (param,), (unused,) = self.params, self.unused
        if unused:
            return
        if param.grad is None:
            param.grad = self.flat.to(param.device)
        else:
            param.grad.copy_(self.flat if param.grad.is_sparse else self.flat.to_dense())


def as_stored(flat: Tensor, param: Tensor) -> Tensor:
    """View ``flat`` in the parameter's shape, with elements in the order in which the parameter's lie in memory."""
    stored = in_memory(param)
    view = flat.view(stored.shape)
    if stored is param:
        return view
    order = memory_order(param)
    return view.permute([order.index(dim) for dim in range(param.dim())])


class BucketState(ExchangeState):
    """Base of the states that exchange all gradients of a step at once; they set ``buckets``."""

    in_backward = False
    buckets: Sequence[Bucket]
    complete: ClassVar[bool] = False
    """True: every parameter gets a gradient on every rank in every step."""

    def __init__(self, worker: Worker | None = None) -> None:
        self._worker = worker or Worker()

    def close(self) -> None:
        """End the communication thread; nothing can be exchanged any more."""
        # The thread first: it uses the channel, which another exchange may get afterwards.
        self._worker.close()
        self._give_back()

    @ordinary_modes()
    def average(
        self, grads: Callable[[Bucket], Sequence[Tensor | None]], done: Callable[[Bucket], None] = lambda _: None
    ) -> None:
        """Exchange all gradients of a step: fill each bucket, average it while the next is filled, and yield each when
        it is done.
        """
        self.exchange.begin_step()
        self.exchange.open()
        # Before anything is encoded, because residuals must be in the unit of these gradients.
        self.units.follow(self.exchange, *self.units.read())
        own = [grads(bucket) for bucket in self.buckets]
        there = [[grad is not None for grad in each] for each in own]
        uses = self._uses(there)
        told = (lambda: None) if self.complete else self._begin(partial(self._tell, uses))
        parts = torch.split(uses, [len(each) for each in own])
        ends = []
        for bucket, each, part in zip(self.buckets, own, parts, strict=True):
            bucket.gather(each)
            missing = [i for i, grad in enumerate(each) if grad is None]
            ends.append(self._begin(partial(self._run, bucket, part, missing)))
        # The uses are read below; the exchanges have all been queued behind this one.
        told()
        for bucket, wait, part, known in zip(self.buckets, ends, parts, there, strict=True):
            wait()
            # A rank that has all gradients knows that all are used, and need not wait for the device.
            bucket.unused = [False] * len(known) if all(known) else (part != USED).tolist()
            done(bucket)

    def note_overflow(self, bucket: Bucket) -> None:
        """Note whether a mean that float32 holds is infinite in the bits of the gradients; it is so on all ranks."""
        if bucket.compressed:
            self.exchange.rollback.note([nonfinite(each) for each in bucket.narrowed()])

    def _begin(self, job: Callable[[], Tensor]) -> Callable[[], object]:
        """Start an exchange; return the function that waits for its end."""
        if self.exchange.channel.is_nccl:
            # It is only queued, and a thread of its own would have another current stream and device.
            job()
            return lambda: None
        return partial(self._worker.result, self._worker.submit(job))

    def _uses(self, there: Sequence[Sequence[bool]]) -> Tensor:
        """The use of each parameter on this rank.

        Args:
            there: true where a parameter has a gradient, of each bucket.
        """
        flags = list(chain.from_iterable(there))
        uses = torch.tensor(flags, dtype=torch.uint8, device="cpu").mul_(USED).to(self.exchange.device)
        names = [name for bucket in self.buckets for name, _ in bucket.named]
        self.exchange.note_pending(uses, {i: name for i, name in enumerate(names) if not flags[i]})
        return uses

    def _tell(self, uses: Tensor) -> Tensor:
        """The uses of the parameters on any rank."""
        self.exchange.any_rank(uses)
        return uses

    def _run(self, bucket: Bucket, uses: Tensor, missing: Sequence[int]) -> Tensor:
        if not bucket.compressed:
            return self.exchange.mean(bucket.flat)
        itemsize = bucket.params[0].itemsize
        self.exchange.run(bucket.flat, bucket.named, itemsize, uses={i: uses[i] for i in missing})
        return bucket.flat


def buckets_of(prepared: Prepared, bucket_mb: float) -> list[Bucket]:
    """The buckets of all parameters: in the order in which gradients come, then those that no method takes."""
    device = prepared.exchange.device
    compressed = list(prepared.compressed.items())[::-1]
    buckets = [Bucket(members, device) for members in split(compressed, bucket_mb) if members]
    of_kind: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for name, kind in prepared.uncompressed.items():
        of_kind.setdefault(kind, []).append((name, prepared.params[name]))
    for kind, members in of_kind.items():
        if kind == "sparse":
            buckets += [SparseBucket(name, param, device) for name, param in members]
        else:
            parts = split(members[::-1], bucket_mb)
            buckets += [Bucket(part, device, part[0][1].dtype) for part in parts]
    return buckets


def split(params: Sequence[tuple[str, nn.Parameter]], bucket_mb: float) -> list[list[tuple[str, nn.Parameter]]]:
    """Divide consecutive parameters into buckets of at most ``bucket_mb`` MB in float32; a larger
    parameter is alone.
    """
    buckets: list[list[tuple[str, nn.Parameter]]] = [[]]
    room = bucket_mb * 2**20
    for name, param in params:
        if buckets[-1] and 4 * param.numel() > room:
            buckets.append([])
            room = bucket_mb * 2**20
        buckets[-1].append((name, param))
        room -= 4 * param.numel()
    return buckets
