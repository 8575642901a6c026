"""Pool of process groups that are reused, so that the number of threads and sockets follows the exchanges alive at one
time.

Invariants:
    * A group serves one exchange at a time, so one thread issues its collectives.
    * A group is free if nothing refers to its channel any more and every collective that was begun on it has ended.
    * All ranks lease the same group: the first that is free on all of them after the same number of collectives. If
      there is none, all ranks make a new one.
    * The name of a new group contains the number of comparisons so far, so that it never meets the addresses of an
      earlier group.

Why:
    torch keeps a group, its two threads and its sockets until ``destroy_process_group()``, and ranks release a model at
    different times. So the ranks compare through the store which groups are free.
"""

from __future__ import annotations

import gc
import hashlib
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from gradwire.errors import GroupError
from gradwire.transport.channel import Channel, traffic_of

__all__ = ["Lease", "lease"]

LONGEST_PAUSE = 0.05
"""Seconds between two looks at the store."""

LEAST_WAIT = 10.0
"""Seconds that ranks wait for each other at least, as in torch when it makes a group: they start at different times."""


@dataclass(eq=False)
class Lease:
    """A process group that is lent to one exchange.

    torch owns the group: one that outlived ``destroy_process_group()`` would abort the process at its end.
    """

    reference: weakref.ref[dist.ProcessGroup]
    lent: bool = True

    @property
    def group(self) -> dist.ProcessGroup:
        """The group, which torch must know."""
        found = self.reference()
        assert found is not None
        return found

    def known(self) -> bool:
        """Return whether torch knows the group: it was not destroyed, alone or with all others."""
        return (found := self.reference()) is not None and found in dist.distributed_c10d._world.pg_names

    def give_back(self) -> None:
        """Make the group available again; a plain assignment, because it may happen in any thread at any moment."""
        self.lent = False

    def hold(self, channel: Channel) -> None:
        """Keep the lease until this channel is closed or nothing refers to it any more."""
        # A channel that nobody closes gives the group back when it is collected, in whatever thread that is.
        channel.release = weakref.finalize(channel, self.give_back)
        # At the end of the process nobody takes the group any more.
        channel.release.atexit = False

    def label(self) -> str:
        """The group's name, which is the same on all ranks, and the number of collectives begun on it."""
        return f"{self.group.group_name}/{traffic_of(self.group).begun}"

    def free(self) -> bool:
        """Return whether nobody uses the group, and nothing is under way on it."""
        traffic = traffic_of(self.group)
        return not self.lent and traffic.begun == traffic.ended


_pool: dict[tuple[tuple[int, ...], str, float], list[Lease]] = {}


def lease(
    members: Sequence[int],
    backend: str,
    seconds: float,
    make: Callable[[str], dist.ProcessGroup],
    limit: float | None = None,
) -> Lease:
    """Lease a group over these ranks that nobody else uses. All of them must call it, in the same order.

    Args:
        members: global ranks, this one among them.
        backend: such as ``"gloo"``.
        seconds: seconds that a collective may take.
        make: makes a new group of a name that no other has; called on all ranks or on none.
        limit: seconds that this call may take, but for the first ten; None: as many as a collective.

    Raises:
        GroupError: not all ranks made the call in time.
    """
    # The timeout, too, because torch fixes it when a group is made.
    kind = tuple(members), backend, seconds
    pool = _pool[kind] = [each for each in _pool.get(kind, []) if each.known()]
    if pool and not any(each.free() for each in pool):
        gc.collect()  # A model in a reference cycle is let go of by chance, at other times on each rank.
    free = {each.label(): each for each in pool if each.free()}
    name, label = common(members, sorted(free), seconds if limit is None else limit)
    if label is None:
        taken = Lease(weakref.ref(make(name)))
        pool.append(taken)
    else:
        taken = free[label]
        taken.lent = True
    return taken


def common(members: Sequence[int], labels: Sequence[str], seconds: float) -> tuple[str, str | None]:
    """Find the first of these labels that all members bring, or None; before it stands a name for this comparison.

    Raises:
        GroupError: not all members came in time.
    """
    seconds = max(seconds, LEAST_WAIT)
    name = f"gradwire/{hashlib.sha256(repr(list(members)).encode()).hexdigest()}"
    try:
        shared = PrefixStore(name, dist.distributed_c10d._get_default_store())
        # Counted in the store and not in this process: the store may outlive destroy_process_group(), and a process
        # that replaces a lost one has compared with nobody yet.
        turn = str(shared.add(f"turn/{dist.get_rank()}", 1))
        name = f"{name}/{turn}"
        if len(members) == 1:
            return name, next(iter(labels), None)
        store = PrefixStore(turn, shared)
        for label in labels:
            store.add(f"free/{label}", 1)
        # After the labels: whoever sees that all ranks have come must see all their labels, too.
        store.add("ranks", 1)
        wait_for_all(store, len(members), seconds)
        return name, next((label for label in labels if store.add(f"free/{label}", 0) == len(members)), None)
    except RuntimeError as error:
        raise GroupError(
            f"ranks {list(members)} did not all set up gradwire within {seconds:g} s: every rank must make the call, "
            f"or a longer timeout= is needed ({error})"
        ) from None


def wait_for_all(store: Store, world: int, seconds: float) -> None:
    """Wait until all ranks have come.

    Raises:
        RuntimeError: not all ranks came in time; the message says how many.
    """
    # A loop of our own, because the store's wait would not say how many ranks have come.
    deadline, pause = time.monotonic() + seconds, 0.001
    while (came := store.add("ranks", 0)) < world:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{came} of {world} came")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
