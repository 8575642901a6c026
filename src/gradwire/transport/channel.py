"""The collectives of one process group; nothing else in the package calls ``torch.distributed`` collectives.

Invariants:
    * Everything is sent as bytes, or as a float type that the collective can sum. Sizes agree on all ranks by
      construction.
    * One thread issues all messages of a channel, on a process group that nobody else uses:

        payloads on Gloo            the exchange's own thread      irecv, then isend, in ``_post``
        payloads on NCCL            the thread of the DDP hook     batch_isend_irecv in ``_post``, on a stream
        sums of whole buckets       the thread of the DDP hook     all_reduce in ``begin_sum``

    * Every step and every agreement begins with messages of one size (``transport/handshake.py``). Before these have
      been compared, nothing else is posted but messages that only messages of their own size can meet, by their tag,
      and sums of whole buckets of DDP, whose sizes DDP has agreed on.
    * A small payload that all ranks send first in a step, as they did in the step before, travels behind the digests of
      the comparison. All opening messages keep that size until the ranks have been compared once more, so that digests
      without a payload meet those with one.
    * A function that is called when a sum has arrived neither starts a collective nor waits for one.

Why:
    * Receives are posted before sends, because in the other order a full-duplex link runs at half its rate on Gloo.
    * ``reduce_scatter`` is never called here: on Gloo it is an all-reduce inside and moves twice the bytes. A framework
      that calls it itself may do so where nothing is compressed, on its own group or on the channel's, and is counted
      so.
    * Gloo sums and broadcasts tensors on a GPU but cannot send them, so such messages go through the host's memory.
    * On the loopback a message costs more than 30 kB in it do, hence the payload behind the digest.

Failure modes:
    * On Gloo a message of another size than its receiver expects ends the process (SIGABRT), and no handler sees it.
    * ``wait`` blocks the thread on Gloo, until the group's timeout; on NCCL it orders streams and does not block the
      CPU.
    * After a failure the ranks no longer agree on what comes next, so every later call fails at once with the first
      error.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.errors import ConfigError, GroupError
from gradwire.metrics import Metrics
from gradwire.transport.failures import Loss, explain, roll_call

if TYPE_CHECKING:
    from gradwire.transport.handshake import Comparison

__all__ = ["Channel", "Traffic", "divided", "traffic_of"]

_LAST_WORDS = 5.0
"""Seconds in which a rank that has lost a peer still sends to the others: one that reads nothing keeps it no longer."""


_TAGS = 2**30
"""Tags by which messages of different sizes are told from each other; those that open a conversation have others."""

_SMALL = 2**18
"""Bytes of a payload up to which it travels with the comparison of the ranks."""


@dataclass
class Traffic:
    """Counts of the collectives that were begun on a group, and of those that ended well.

    Attributes:
        room: bytes that every opening message on the group has behind its row, where a payload may travel. It is the
            group's and not a channel's, because openings of two sizes on one group would never meet.
    """

    begun: int = 0
    ended: int = 0
    room: int = 0


_traffic: weakref.WeakKeyDictionary[dist.ProcessGroup, Traffic] = weakref.WeakKeyDictionary()


def traffic_of(group: dist.ProcessGroup | None) -> Traffic:
    """The record that all channels on a group share."""
    return Traffic() if group is None else _traffic.setdefault(group, Traffic())


def divided(tensor: Tensor, number: int) -> Tensor:
    """Divide a tensor in place; a sparse one, coalesced, stays so."""
    (tensor.values() if tensor.is_sparse else tensor).mul_(1.0 / number)
    return tensor


class Channel:
    """Collectives on one process group, with the bytes counted; they block unless their name says ``begin``.

    Args:
        group: used by this channel alone; None stands for a group of one, which needs no process group at all.
        metrics: receives the byte counts and the time spent.
    """

    compares = True
    """False where the other ranks are pretended, so that there is nobody to compare with."""

    def __init__(self, group: dist.ProcessGroup | None, metrics: Metrics) -> None:
        self.group, self.metrics = group, metrics
        self.members, self.rank, self.is_nccl = self._place()
        self.world = len(self.members)
        self.peers = [j for j in range(self.world) if j != self.rank]
        self.doing = "its first exchange"
        self.failed: GroupError | None = None
        self.call_limit: float | None = None
        """Seconds that a call which all ranks must make may take; None: as long as any collective."""
        self._limit: float | None = None
        self._opening: Comparison | None = None
        self._deferred: list[Callable[[], None]] = []
        self.traffic, self._closed = traffic_of(group), False
        self._lock, self._summed_until = threading.Lock(), 0.0
        self.release: Callable[[], object] = lambda: None

    def _place(self) -> tuple[list[int], int, bool]:
        """The ranks of the group as torch numbers them, which of them this is, and whether NCCL connects them."""
        if self.group is None:
            return [0], 0, False
        group = self.group
        return dist.get_process_group_ranks(group), dist.get_rank(group), dist.get_backend(group) == "nccl"

    def called(self, call: str) -> AbstractContextManager[object]:
        """Say inside the block, to who asks, that this rank has come to a call, and after a while who has not."""
        # A rank that never comes may be waiting for this one in a call that is not ours.
        return nullcontext() if self.group is None else self._expected(self.group, call)

    @contextmanager
    def _expected(self, group: dist.ProcessGroup, call: str) -> Iterator[None]:
        self._limit = None if self.is_nccl else self.call_limit
        try:
            with roll_call(call, group.group_name, self.members):
                yield
        finally:
            # The collectives of a step have the group's own deadline again.
            self._limit = None

    @property
    def closed(self) -> bool:
        """Return whether the group was handed back."""
        return self._closed

    def close(self) -> None:
        """Return the group to its lender; another exchange may use it from now on, and this one must not."""
        # Closed before the group is given back, because from then on another exchange may use it.
        self._closed = True
        self.release()

    def all_reduce(self, tensor: Tensor, how: str = "sum") -> None:
        """Reduce ``tensor`` over the ranks, in place. Traffic of a ring: 2 (W-1)/W of its bytes, whatever W is."""
        self.begin_all_reduce(tensor, how)()

    def begin_all_reduce(self, tensor: Tensor, how: str = "sum") -> Callable[[], None]:
        """Start an all-reduce; the result is there after a call of the returned function.

        While the ranks are still being compared it waits for its turn, and starts with the next message or when it is
        waited for.
        """
        if self.world == 1 or tensor.numel() == 0:
            return lambda: None
        self._begin()
        moved = self.summed(tensor)
        self._count(moved, moved)
        op = dist.ReduceOp.MAX if how == "max" else dist.ReduceOp.SUM
        works: list[tuple[int | None, dist.Work | None]] = []

        def post() -> None:
            with self._communicating():
                works.append((None, dist.all_reduce(tensor, op=op, group=self.group, async_op=True)))

        if self._opening is None:
            self._refuse_after_failure()
            post()
        else:
            # A sum has no tag by which only its own size would meet it, so it waits until the ranks have been compared.
            self._deferred.append(post)

        def finish() -> None:
            # The sum may still wait for the comparison, and must be posted before it can be waited for.
            self.settle()
            self._finish(works)

        return finish

    def begin_sum(
        self, tensor: Tensor, group: dist.ProcessGroup | None, arrived: Callable[[Tensor], object]
    ) -> Future[Tensor]:
        """Start to add up ``tensor`` over the ranks in place; any number of sums may be under way.

        It is posted at once, whether or not the ranks of this step have been compared: its size must have been agreed
        on elsewhere, as that of DDP's buckets is. Traffic as of ``all_reduce``.

        Args:
            tensor: a tensor on the CPU, or one that the group's backend serves.
            group: this channel's own, or another group of the same ranks, such as DDP's; that group is its owner's, who
                sees to the order on it.
            arrived: called with the sum, on any thread; it must not wait, nor keep this channel alive.

        Returns:
            The tensor when it is the sum, or a ``GroupError``.

        Raises:
            GroupError: an earlier exchange failed.
        """
        own = group is self.group
        if own:
            self._begin()
        else:
            self._refuse_if_closed()
        self._refuse_after_failure()
        moved = self.summed(tensor)
        self._count(moved, moved)
        began = self.metrics.clock()
        try:
            work: Any = dist.all_reduce(tensor, group=group, async_op=True)
        except RuntimeError as error:
            # A collective does not say whose connection is gone.
            self._fail(error, None, ())

        # Gloo's thread has this function for a moment longer than anybody waits for it. If it were the last that holds
        # the group, that thread would end the group, wait for itself, and abort the process.
        reference = weakref.ref(self)

        def done(finished: Future[list[Tensor]]) -> Tensor:
            channel = reference()
            try:
                # An error of the collective is lost unless somebody asks for the value.
                finished.value()
            except RuntimeError as error:
                if channel is None:
                    raise
                channel._fail(error, None, ())
            # Torch gives another view of a complex tensor; the sum is in the tensor itself.
            arrived(tensor)
            if channel is not None:
                channel._ended(began, own)
            return tensor

        future: Future[list[Tensor]] = work.get_future()
        return future.then(done)

    def summed(self, tensor: Tensor) -> int:
        """Count the bytes that a rank sends where a tensor is added up: 2 (W-1)/W of them.

        A sparse one, coalesced, goes to every rank as it is, with its indices; the others' are taken to be as large.
        """
        if tensor.is_sparse:
            return (self.world - 1) * (tensor.indices().nbytes + tensor.values().nbytes)
        return 2 * (self.world - 1) * tensor.nbytes // self.world

    def scattered(self, nbytes: int) -> int:
        """Count the bytes that a rank sends where a framework reduces so many to their owners.

        Traffic: (W-1)/W of them; on Gloo, whose reduce-scatter is an all-reduce inside, twice that.
        """
        return (1 if self.is_nccl else 2) * (self.world - 1) * nbytes // self.world

    def run_scatter(self, scatter: Callable[[], object], nbytes: int, *, own: bool = False) -> None:
        """Let a framework reduce so many bytes to their owners, once the ranks were compared.

        Traffic as of ``scattered``.

        Args:
            scatter: returns when the result is there, or is ordered on the stream.
            own: true where it does so on this channel's group; else the group's owner sees to the order on it and to
                the timeout.

        Raises:
            GroupError: the ranks differ, or an exchange failed, this one or an earlier one.
        """
        if own:
            self._begin()
        else:
            self._refuse_if_closed()
        self._refuse_after_failure()
        # The framework's messages have no tags of ours, so the ranks are compared before.
        self.settle()
        with self._communicating():
            scatter()
        # Only collectives of the own group count: the pool lends a group again when all that was begun on it has ended.
        self.traffic.ended += own
        moved = self.scattered(nbytes)
        self._count(moved, moved)

    def begin_mean(self, tensor: Tensor, arrived: Callable[[Tensor], object]) -> Future[Tensor]:
        """Start to average ``tensor`` over the ranks in place, as ``begin_sum`` adds up on the channel's own group.

        Args:
            tensor: floating point or complex, on the CPU or served by NCCL; on Gloo it may be sparse and coalesced.
            arrived: called with the mean, as for ``begin_sum``.
        """
        return self.begin_sum(divided(tensor, self.world), self.group, arrived)

    def _ended(self, began: float, own: bool) -> None:
        """Count a sum that has ended, on the own group or on another; the time of sums that overlap counts once."""
        # Sums may overlap, and end on any of the backend's threads.
        with self._lock:
            now = self.metrics.clock()
            self.metrics.seconds["communicate"] += now - max(began, self._summed_until)
            self._summed_until = now
            self.traffic.ended += own

    def all_gather(self, rows: Tensor, headed: Tensor | None = None) -> None:
        """Send row ``rank`` of ``rows`` to every rank. The traffic is (W-1) rows.

        Args:
            rows: contiguous in each row, as large on all ranks.
            headed: the same memory with room in front of each row, for the row of a comparison of the ranks that is
                still to be made; where it is given in every step, small payloads travel with that.
        """
        if headed is not None and self._opening is not None:
            # The other ranks have room in their opening messages for exactly as many bytes as in the last step.
            if self._opening.deferred and rows[0].nbytes == self.traffic.room:
                self._gather_headed(headed)
                return
            small = rows[0].nbytes <= _SMALL
            self._gather(rows)
            # Set after the exchange, which has compared the ranks and so has closed the room of the step before.
            self.traffic.room = rows[0].nbytes if small else 0
            return
        self._gather(rows)

    def _gather(self, rows: Tensor) -> None:
        own = rows[self.rank]
        self.exchange([own] * self.world, list(rows.unbind(0)))

    def _gather_headed(self, headed: Tensor) -> None:
        """Exchange the rows of the comparison that is to be made and the payloads behind them, in one message."""
        if self.failed is not None:
            self._refuse_after_failure()
        comparison, self._opening = self._opening, None
        assert comparison is not None
        heads = headed[:, : headed.size(1) - self.traffic.room]
        comparison.write(heads, self.traffic.room)
        self._open_with(headed)()
        # Nothing of the payloads may be decoded before it is known that all ranks are in the same step.
        self._compare(partial(comparison.check, heads))
        if self._deferred:
            self._post_deferred()
        moved = len(self.peers) * self.traffic.room
        self.metrics.compared_bytes += len(self.peers) * heads.size(1)
        self._count(moved, moved)

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
        """Send ``sends[j]`` to rank j, and receive ``receives[j]`` from it; a rank's own entries are left alone."""
        peers = self.peers
        if not peers:
            return
        self._begin()
        if self.failed is not None:
            self._refuse_after_failure()
        # Posted before the comparison of this step has ended, which saves a round trip: a payload of another size has
        # another tag and is never received.
        finish = self._move(sends, receives, peers, tagged=True)
        # The rows of this step came before these messages, so that nobody waits for each of them in turn.
        self.settle()
        finish()
        self._count(sum(sends[j].nbytes for j in peers), sum(receives[j].nbytes for j in peers))

    def broadcast(self, rows: Tensor) -> None:
        """Do what ``all_gather`` does, by one broadcast from each rank."""
        if self.world == 1 or rows.numel() == 0:
            return
        self._begin()
        # Broadcasts have no tags, so the ranks are compared before.
        self.settle()
        with self._communicating():
            works = [
                (None, dist.broadcast(rows[j], self.members[j], group=self.group, async_op=True))
                for j in range(self.world)
            ]
        self._finish(works)
        moved = (self.world - 1) * rows[0].nbytes
        self._count(moved, moved)

    def share(self, value: Any, source: int) -> Any:
        """Return on every rank the value of one; it is pickled, which only the ranks of one job may trust.

        Args:
            source: the rank that has it, as the default group counts.
        """
        if self.world == 1:
            return value
        self._begin()
        self.settle()
        self._refuse_after_failure()
        box = [value]
        with self._communicating():
            dist.broadcast_object_list(box, source, group=self.group, device=torch.device("cpu"))
        self.traffic.ended += 1
        return box[0]

    def begin_opening(self, rows: Tensor) -> Callable[[], None]:
        """Start the exchange of rows with which a conversation begins: row ``rank`` goes to every rank.

        Args:
            rows: uint8 of shape (W, n), with the same n in every conversation.

        Returns:
            A function that waits until all rows are there.
        """
        # A comparison that is still to be made comes first, because rows of two comparisons must not meet.
        self.settle()
        if not self.traffic.room or self.is_nccl:
            return self.begin_rows(rows)
        # A rank that has no payload here sends zeros in its place, or its message would not meet those of the others.
        headed = torch.zeros((self.world, rows.size(1) + self.traffic.room), dtype=torch.uint8, device="cpu")
        headed[:, : rows.size(1)] = rows
        self.metrics.compared_bytes += len(self.peers) * headed[0].nbytes
        finish = self._open_with(headed)

        def arrive() -> None:
            finish()
            rows.copy_(headed[:, : rows.size(1)])

        return arrive

    def _open_with(self, headed: Tensor) -> Callable[[], None]:
        """Start the exchange of opening messages that have room for a payload."""
        self._begin()
        rows, tag = list(headed.unbind(0)), _TAGS + 1 + headed[0].nbytes % (_TAGS - 1)
        return partial(self._finish, self._post([rows[self.rank]] * self.world, rows, self.peers, tag))

    def begin_rows(self, rows: Tensor) -> Callable[[], None]:
        """Start an exchange of rows whose size all ranks know: row ``rank`` goes to every rank.

        Args:
            rows: uint8 of shape (W, n).

        Returns:
            A function that waits until all rows are there.
        """
        self._begin()
        # These rows must not meet those of a comparison that is still to be made.
        self.settle()
        self.metrics.compared_bytes += len(self.peers) * rows[0].nbytes
        if self.is_nccl:
            with self._communicating():
                works: list[tuple[int | None, dist.Work | None]] = [
                    (None, dist.all_gather_into_tensor(rows, rows[self.rank].clone(), self.group, async_op=True))
                ]
        else:
            return self._move([rows[self.rank]] * self.world, list(rows.unbind(0)), self.peers)
        return partial(self._finish, works)

    @property
    def opens_with_payload(self) -> bool:
        """Return whether the next step's first message is expected to be a small payload, as it was in the last."""
        return self.traffic.room > 0 and self.group is not None and not self.is_nccl

    def open(self, comparison: Comparison) -> None:
        """Register a comparison of the ranks, which is made before the next message is posted, or with it."""
        self._opening = comparison

    def settle(self) -> None:
        """Compare the ranks, if that is still to be done, and post the messages that waited for it.

        Raises:
            GroupError: the ranks differ, or an earlier exchange failed.
        """
        if self.failed is not None:
            self._refuse_after_failure()
        # Taken off first: the comparison sends its rows through this channel, which settles again.
        comparison, self._opening = self._opening, None
        if comparison is not None:
            self._compare(comparison.end)
            self.traffic.room = 0
        if self._deferred:
            self._post_deferred()

    def _compare(self, compare: Callable[[], None]) -> None:
        """Compare the ranks, and meanwhile hold back the messages that wait to be sent: if ranks came apart they may
        have other sizes than those of the others, which get the reason.
        """
        waiting, self._deferred = self._deferred, []
        compare()
        self._deferred = waiting

    def _post_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for post in deferred:
            post()

    def _refuse_after_failure(self) -> None:
        if self.failed is not None:
            raise GroupError(f"an earlier exchange failed: {self.failed}")

    def _move(
        self, sends: Sequence[Tensor], receives: Sequence[Tensor], peers: Sequence[int], tagged: bool = False
    ) -> Callable[[], None]:
        """Start to receive from all peers and to send to them; all is done after a call of the returned function.

        Args:
            tagged: Gloo lets only messages of one size meet; else a message of another size ends the process.
        """
        tag = None if tagged else 0
        if not self._by_host(receives):
            return partial(self._finish, self._post(sends, receives, peers, tag))
        with self.metrics.timed("communicate"):
            # The same tensor may go to every rank; it is copied once.
            copies = {id(each): each.cpu() for each in sends}
            hosts = [torch.empty_like(each, device="cpu") for each in receives]
        works = self._post([copies[id(each)] for each in sends], hosts, peers, tag)

        def finish() -> None:
            self._finish(works)
            with self.metrics.timed("communicate"):
                for j in peers:
                    receives[j].copy_(hosts[j])

        return finish

    def _by_host(self, tensors: Sequence[Tensor]) -> bool:
        # All tensors of an exchange are on one device.
        return tensors[0].is_cuda and not self.is_nccl

    def _post(
        self, sends: Sequence[Tensor], receives: Sequence[Tensor], peers: Sequence[int], tag: int | None
    ) -> list[tuple[int | None, dist.Work | None]]:
        """Post receives from all peers, then sends to them; return each work with its peer.

        Args:
            tag: tag of all messages; None: each message has the tag of its size.
        """
        if self.is_nccl:
            calls = [(dist.irecv, j, receives[j]) for j in peers] + [(dist.isend, j, sends[j]) for j in peers]
            ops = [dist.P2POp(call, each, self.members[j], self.group) for call, j, each in calls if each.numel()]
            with self._communicating():
                # In one batch: one by one, sends and receives of NCCL would wait for each other.
                return [(None, work) for work in dist.batch_isend_irecv(ops)] if ops else []
        works: list[tuple[int | None, dist.Work | None]] = []
        lost: list[tuple[int, RuntimeError]] = []
        received, began = 0, self.metrics.clock()
        # Receives first: in the other order a full-duplex link runs at half its rate.
        for start, tensors in ((self._receive, receives), (self._send, sends)):
            received = len(works)
            for j in peers:
                tensor = tensors[j]
                try:
                    if tensor.numel():
                        works.append((j, start(tensor, j, 1 + tensor.nbytes % _TAGS if tag is None else tag)))
                except RuntimeError as error:
                    lost.append((j, error))
        self.metrics.seconds["communicate"] += self.metrics.clock() - began
        if lost:
            # The lost rank is reported after the others got what they wait for: from silence they would learn nothing
            # until the timeout, because they wait for this rank before they come to the one that is lost.
            deadline, gone = time.monotonic() + _LAST_WORDS, {j for j, _ in lost}
            for peer, work in works[received:]:
                if peer not in gone:
                    came(work, deadline - time.monotonic())
            self._fail(lost[0][1], lost[0][0], ())
        return works

    def _receive(self, tensor: Tensor, peer: int, tag: int) -> dist.Work | None:
        return dist.irecv(tensor, self.members[peer], group=self.group, tag=tag)

    def _send(self, tensor: Tensor, peer: int, tag: int) -> dist.Work | None:
        return dist.isend(tensor, self.members[peer], group=self.group, tag=tag)

    def _explain(self, loss: Loss, error: RuntimeError) -> str:
        """Say why an exchange failed."""
        return explain(self.group, loss, error, self._limit, self.members)

    def _finish(self, works: Sequence[tuple[int | None, dist.Work | None]]) -> None:
        began = self.metrics.clock()
        for number, (peer, work) in enumerate(works):
            try:
                # A call that all ranks must make gives up sooner than a collective may last.
                if work is not None and self._limit is not None:
                    work.wait(timedelta(seconds=self._limit))
                elif work is not None:
                    work.wait()
            except RuntimeError as error:
                self._fail(error, peer, works[number + 1 :])
        self.metrics.seconds["communicate"] += self.metrics.clock() - began
        self.traffic.ended += 1

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        """Time the communication, and explain its failure."""
        try:
            with self.metrics.timed("communicate"):
                yield
        except RuntimeError as error:
            self._fail(error, None, ())

    def _fail(
        self, error: RuntimeError, peer: int | None, rest: Sequence[tuple[int | None, dist.Work | None]]
    ) -> NoReturn:
        if self.failed is not None:
            # Sums that were under way beside it end with it.
            raise GroupError(f"an earlier exchange failed: {self.failed}") from None
        # Only the text of the backend's error says whether the peer was silent or its connection is gone.
        silent = "imed out" in str(error) or "timeout" in str(error)
        peers = {peer} if peer is not None else set()
        # Gloo has closed all connections after a timeout, so waiting for the rest ends at once, with those that came.
        peers |= {j for j, work in rest if silent and j is not None and not came(work)}
        loss = Loss(self.rank, self.world, self.doing, sorted(peers), silent)
        # Kept, so that later calls name the first cause and not an error that follows from it.
        self.failed = GroupError(self._explain(loss, error))
        raise self.failed from None  # Its message ends with that of torch.

    def _begin(self) -> None:
        if self._closed:
            self._refuse_if_closed()
        # Before it is posted, because a group with a collective under way must not be lent to another exchange.
        self.traffic.begun += 1

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ConfigError("state must be open to exchange anything, got one after close(): make a new one")

    def _count(self, sent: int, received: int) -> None:
        # Sums on another group are begun by the thread of the backward pass, beside the messages of this channel.
        with self._lock:
            self.metrics.bytes_sent += sent
            self.metrics.bytes_received += received


def came(work: dist.Work | None, seconds: float | None = None) -> bool:
    """Return whether a message of a group that failed had arrived before, or does within some seconds."""
    try:
        if work is None or seconds is None:
            return work is None or bool(work.wait())
        return bool(work.wait(timedelta(seconds=max(seconds, 0.001))))
    except RuntimeError:
        # The group has failed already, and only whether the message came is of interest now.
        return False
