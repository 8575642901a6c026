"""Streams where there is no GPU: what is launched on which, what waits for what, and accesses that nothing orders.

A stand-in for torch's streams and events, under the library's own calls, because the real ones need a driver. Torch's
sanitizer keeps the account: it knows of each stream what it is ordered after, and finds an access to memory that
another stream wrote, or still reads, without an order between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.cuda import _sanitizer
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.frontends import ddp
from gradwire.frontends.ddp import compress_ddp
from gradwire.optim.local import _flight
from gradwire.transport.channel import Channel
from tests.integrations.jobs import batch, model_of

COMMUNICATION = 1 << 20
"""The stream of the collectives: NCCL's own."""


@dataclass(frozen=True)
class Access:
    """One access to bytes of a storage.

    Args:
        low: first byte.
        high: byte after the last.
        stream: stream on which it was launched.
        number: number of its launch.
        writes: true where it changes them.
        name: operation.
    """

    low: int
    high: int
    stream: int
    number: int
    writes: bool
    name: str

    def meets(self, other: Access) -> bool:
        """Return whether another access is to some of the same bytes, and their order matters."""
        return (self.writes or other.writes) and self.low < other.high and other.low < self.high


class Account(TorchDispatchMode):
    """The launches, in their order, and those that are not ordered after what they depend on.

    Attributes:
        log: records, waits and launches, each a word and a stream, and of launches the operation.
        unordered: descriptions of accesses that nothing orders.
    """

    def __init__(self) -> None:
        super().__init__()
        self.order = _sanitizer.StreamSynchronizations()
        self.numbers, self.launches = itertools.count(1), itertools.count(1)
        self.log: list[tuple[Any, ...]] = []
        self.unordered: list[str] = []
        self.accesses: dict[int, list[Access]] = {}
        # Memory that is freed would be used again, at the same address.
        self.alive: list[Any] = []
        self.order.create_stream(COMMUNICATION)
        self.current = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        out = func(*args, **given)
        if func.namespace != "c10d":
            read, written = list[Tensor](), list[Tensor]()
            for argument, value in _sanitizer.zip_arguments(func._schema, args, given):
                alias = argument.alias_info
                if alias is None or alias.is_write:
                    (read if alias is None else written).extend(tensors_in(value))
            if all(result.alias_info is None for result in func._schema.returns):
                written += tensors_in(out)
            self.launch(self.current, read, written, str(func))
        return out

    def launch(self, stream: int, read: list[Tensor], written: list[Tensor], name: str) -> None:
        """Note a launch, and the accesses before it that it is not ordered after."""
        self.log.append(("launch", stream, name))
        number = next(self.launches)
        self.order.update_seq_num(stream, number)
        for tensors, writes in ((read, False), (written, True)):
            for tensor in tensors:
                storage = tensor.untyped_storage()
                self.alive.append(storage)
                low = tensor.storage_offset() * tensor.itemsize
                last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
                own = Access(low, low + (last + 1) * tensor.itemsize, stream, number, writes, name)
                known = self.accesses.setdefault(storage.data_ptr(), [])
                self.unordered += [
                    f"{name} on stream {stream} does not wait for {each.name} on stream {each.stream}"
                    for each in known
                    if own.meets(each) and not self.order.is_ordered_after(stream, each.number, each.stream)
                ]
                if writes:
                    # Whoever waits for this one waits for those before it.
                    known[:] = [each for each in known if not (own.low <= each.low and each.high <= own.high)]
                known.append(own)

    def record(self, stream: int) -> int:
        """Note that an event is recorded on a stream, and return it."""
        event = next(self.numbers)
        self.log.append(("record", stream))
        self.order.create_event(event)
        self.order.record_state(event, stream)
        return event

    def wait(self, stream: int, event: int) -> None:
        """Note that a stream waits for an event."""
        self.log.append(("wait", stream))
        self.order.stream_wait_for_event(stream, event)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a value that have elements."""
    return [each for each in _pytree.tree_leaves(value) if isinstance(each, Tensor) and each.numel()]


class FakeEvent:
    account: Account

    def __init__(self, **_: Any) -> None:
        self.number = 0

    def record(self, stream: Any = None) -> None:
        self.number = self.account.record(self.account.current if stream is None else stream.number)

    def query(self) -> bool:
        return False


class FakeStream:
    account: Account

    def __init__(self, *_: Any, number: int | None = None, **__: Any) -> None:
        self.number = next(self.account.numbers) if number is None else number
        if number is None:
            self.account.order.create_stream(self.number)

    def record_event(self) -> FakeEvent:
        event = FakeEvent()
        event.record(self)
        return event

    def wait_event(self, event: FakeEvent) -> None:
        self.account.wait(self.number, event.number)

    def wait_stream(self, stream: FakeStream) -> None:
        self.wait_event(stream.record_event())


class FakeWork:
    """A collective on NCCL's stream, which has waited for the one that called it; ``wait`` orders the current one."""

    def __init__(self, account: Account, works: Any, tensors: Any, name: str) -> None:
        for work in works:
            work.wait()
        self.account = account
        account.wait(COMMUNICATION, account.record(account.current))
        account.launch(COMMUNICATION, [], tensors_in(tensors), name)

    def wait(self, *_: Any) -> bool:
        self.account.wait(self.account.current, self.account.record(COMMUNICATION))
        return True


class FakeFuture:
    """A future that notes which stream has its value, as torch's does on a GPU, for whoever waits."""

    account: Account

    def __init__(self, *, devices: Any) -> None:
        assert devices, "a future of tensors on a GPU must know their device"
        self.inner: Future[Any] = Future()

    def set_result(self, value: Any) -> None:
        self.event = self.account.record(self.account.current)
        self.inner.set_result(value)


@contextmanager
def recorded(*, waits: bool = True) -> Iterator[Account]:
    """Run the library as over NCCL, on streams that are accounts alone.

    Args:
        waits: DDP waits for what the hook returns.
    """
    account = Account()
    FakeEvent.account = FakeStream.account = FakeFuture.account = account
    place = Channel._place

    @contextmanager
    def entered(stream: Any) -> Iterator[None]:
        before, account.current = account.current, stream.number
        try:
            yield
        finally:
            account.current = before

    def collective(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            return FakeWork(account, [call(*args, **kwargs)], args, name)

        return run

    def in_batch(ops: Any) -> list[Any]:
        return [FakeWork(account, batched(ops), [op.tensor for op in ops], "batch")]

    def gather(out: Tensor, own: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Gloo wants both of one shape, where NCCL compares their sizes alone.
        return gathered(out.view(-1), own, *args, **kwargs)

    def unpinned(*args: Any, **kwargs: Any) -> Tensor:
        # Pinned memory needs a driver as well.
        kwargs.pop("pin_memory", None)
        return empty(*args, **kwargs)

    empty, batched, gathered = torch.empty, dist.batch_isend_irecv, dist.all_gather_into_tensor
    with ExitStack() as stack:
        for target, name, value in (
            (torch.cuda, "Stream", FakeStream),
            (torch.cuda, "Event", FakeEvent),
            (torch.cuda, "stream", entered),
            (torch.cuda, "current_stream", lambda *_: FakeStream(number=account.current)),
            (torch, "empty", unpinned),
            (dist, "all_reduce", collective(dist.all_reduce, "all_reduce")),
            (dist, "all_gather_into_tensor", collective(gather, "all_gather")),
            (dist, "broadcast", collective(dist.broadcast, "broadcast")),
            (dist, "batch_isend_irecv", in_batch),
            (Channel, "_place", lambda channel: (*place(channel)[:2], True)),
            (ddp, "Future", FakeFuture),
        ):
            stack.enter_context(patch.object(target, name, value))
        start = ddp.GradwireState._submit

        def submit(state: Any, device: Any, job: Any) -> Any:
            future = start(state, device, job)
            if waits:
                # At the end of the backward pass DDP lets the stream of the gradients wait for each future.
                queue = cast(Any, Variable)._execution_engine.queue_callback
                queue(lambda: account.wait(0, future.event))
            return future.inner

        stack.enter_context(patch.object(ddp.GradwireState, "_submit", submit))
        yield account


def exchanged(rank: int, method: str, strategy: str, broken: str = "") -> tuple[list[str], list[tuple[Any, ...]]]:
    """Train three steps of DDP; what nothing ordered, and what was recorded, waited for and launched.

    Args:
        rank: rank of this process.
        method: method of the exchange.
        strategy: strategy of the exchange.
        broken: "side": the side stream does not wait for gradients; "main": nobody waits for means.
    """
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.02, gradient_as_bucket_view=True)  # type: ignore[arg-type]
    with recorded(waits=broken != "main") as account:
        if broken == "side":
            FakeStream.wait_stream = lambda *_: None  # type: ignore[method-assign]
        state = compress_ddp(model, method, min_numel=128, strategy=strategy)
        with account:
            for step in range(3):
                x, y = batch(step, rank)
                nn.functional.cross_entropy(model(x), y).backward()
                for param in model.parameters():
                    assert param.grad is not None
                    param.grad.mul_(1.0)
        del state
    return account.unordered, account.log


def flown(broken: bool) -> list[str]:
    """The accesses that nothing ordered where a flight takes a change and lands its mean, on a rank of its own.

    Args:
        broken: the flight's stream does not wait for the change.
    """
    with recorded() as account, patch.object(torch.Tensor, "is_cuda", True, create=True):
        if broken:
            FakeStream.wait_event = lambda *_: None  # type: ignore[method-assign]
        flat, change = torch.zeros(1000), torch.ones(1000)
        stream = FakeStream()
        with account:
            change.add_(1.0)
            flat.copy_(change)
            ready = FakeStream(number=0).record_event()
            stream.synchronize = lambda: account.order.all_streams_wait_for_stream(stream.number)  # type: ignore[attr-defined]
            _flight._run(lambda tensor: bool(tensor.mul_(0.5) is tensor), flat, stream, ready)  # type: ignore[arg-type]
            flat.add_(1.0)
    return account.unordered
