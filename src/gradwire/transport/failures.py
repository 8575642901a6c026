"""Notes that ranks leave for each other in the store of the default group: which ranks have come, and which waited for
which.

Invariants:
    * Without a failure nothing is read, and one key is written for each call that all ranks must make, such as the
      set-up.
    * Whatever is asked of the store has a deadline of its own. No answer is not an error: the message then says less.

Why:
    A connection that fails tells a rank that it has lost a peer, but not the reason; only the peer knows it. So a rank
    whose exchange fails writes down which ranks it waited for, and reads what the lost ranks have written.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from gradwire.notices import log

__all__ = ["CALL_LIMIT", "Loss", "explain", "named", "roll_call", "timeout_of"]


T = TypeVar("T")

PATIENCE = 10.0
"""Seconds that set-up waits for the other ranks before it says, once, whom it waits for."""

CALL_LIMIT = 180.0
"""Seconds that a call which all ranks must make waits for the others, unless the user gives a timeout: far more than
ranks are apart that run the same script, and far less than the half hour of torch."""

DEADLINE = 3.0
"""Seconds that the store may take to say what the others have written."""


@dataclass(frozen=True)
class Loss:
    """The record of an exchange that failed.

    Args:
        rank: rank of this process in the group.
        world: ranks of the group.
        doing: name of what was exchanged.
        peers: ranks that did not answer, where that is known.
        silent: true: the ranks are connected and said nothing until the timeout; else the connection is gone.
    """

    rank: int
    world: int
    doing: str
    peers: list[int]
    silent: bool


def timeout_of(group: dist.ProcessGroup | None, device: torch.device | None = None) -> float | None:
    """The time-out in seconds of a collective of the group; None if torch does not tell.

    Args:
        group: None is the default group.
        device: device of the tensors, where the group has a backend for each kind; None: any.
    """
    asked = group if group is not None else dist.group.WORLD
    if asked is None:
        return None
    for kind in ([device] if device is not None else []) + [torch.device("cpu"), torch.device("cuda")]:
        try:
            limit = cast(Any, asked)._get_backend(kind).options._timeout
        except (RuntimeError, AttributeError):
            # The group has no backend for this device, or this torch keeps the timeout elsewhere.
            continue
        return float(limit.total_seconds())
    return None


def explain(
    group: dist.ProcessGroup | None,
    loss: Loss,
    error: Exception,
    limit: float | None = None,
    members: Sequence[int] | None = None,
) -> str:
    """Explain why an exchange failed: the peers, the seconds and the option, as far as is known.

    Args:
        limit: seconds that it was waited for; None: the group's own timeout.
        members: ranks of the group as the default group counts them, by which they are named; None: those of the group.
    """
    numbers = list(range(loss.world) if members is None else members)

    def called(ranks: Sequence[int]) -> str:
        return named([numbers[j] for j in ranks])

    seconds = timeout_of(group) if limit is None else limit
    notes = within(DEADLINE, lambda store: _swap(store, f"gradwire/lost/{group.group_name}", loss)) if group else None
    mine = numbers[loss.rank]
    place = f"of {loss.world}" if mine == loss.rank else f"({loss.rank} of {loss.world} in its group)"
    where = f"rank {mine} {place} in {loss.doing}"
    patience = f"timeout={seconds:g} s" if seconds is not None else "its timeout"
    unheard = [j for j in range(loss.world) if j != loss.rank and j not in (notes or {})]
    # Ranks that are well have written for whom they waited, so one that wrote nothing is the likely cause.
    peers = loss.peers or (unheard if notes is not None or loss.world == 2 else [])
    if loss.silent:
        whom = called(peers) or "the other ranks"
        told = (
            f"{where} waited {patience} for {whom} and got no answer: busy for longer, stopped, or in another call. If "
            "that is no mistake, give a longer timeout= (seconds)"
        )
    else:
        gave_up = [j for j, note in (notes or {}).items() if note["silent"] and loss.rank in note["peers"]]
        if gave_up:
            told = (
                f"{where} came too late: {called(gave_up)} waited {patience} for this rank and gave up. If that is no "
                "mistake, give a longer timeout= (seconds) on all ranks"
            )
        else:
            whom = called(peers) or "a peer"
            told = f"{where} lost {whom}: the process died, or gave up after {patience} or an error of its own"
    return f"{told} ({str(error).partition('. This is typically')[0]})"


def named(ranks: Sequence[int]) -> str:
    """Name the ranks in words; empty if there are none."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else ""


@contextmanager
def roll_call(call: str, place: str, members: Sequence[int]) -> Iterator[Callable[[], list[int]]]:
    """Say which ranks this one waits for, while inside ranks wait for each other to make the same call.

    Args:
        call: name of the call that all of them must make, equally often.
        place: name of the group.
        members: ranks of the group in the default group.

    Yields:
        A function that gives the ranks that have not come, as far as the store says so in time.
    """
    prefix = f"gradwire/came/{place}/{call}"
    keys = {rank: f"{prefix}/{rank}" for rank in members}
    # Before anything is waited for, so that the others see that this rank has come.
    number = count(keys[dist.get_rank()])
    over = threading.Event()

    def missing() -> list[int]:
        return within(DEADLINE, lambda store: [j for j in members if store.add(keys[j], 0) < number], apart=True) or []

    def watch() -> None:
        # Most set-ups are over before this wait is, and ask the store nothing.
        while not over.wait(PATIENCE):
            if absent := missing():
                told = "%s has waited %g s for %s: every rank must make the call (docs/troubleshooting.md)"
                log.warning(told, call, PATIENCE, named(absent))
                return

    thread = threading.Thread(target=watch, name="gradwire set-up", daemon=True)
    thread.start()
    try:
        yield missing
    finally:
        over.set()
        # The thread may be asking the store just now, which takes as many seconds at most.
        thread.join(DEADLINE)


def default_store() -> Any:
    return dist.distributed_c10d._get_default_store()


def count(key: str) -> int:
    """Note that this rank has come once more; return how often, or 0 if there is no store to ask any more."""
    try:
        return int(default_store().add(key, 1))
    except (RuntimeError, ValueError) as error:
        # Only the names in a warning depend on it, so a store that is gone must not fail the call.
        log.debug("the store did not take %s: %s", key, error)
        return 0


def within(seconds: float, ask: Callable[[Any], T], apart: bool = False) -> T | None:
    """Return the result of ``ask`` from the store, or None if that fails or takes longer.

    Args:
        apart: true: use another connection to the store, because another thread waits on the first.
    """
    answers: list[T] = []

    def work() -> None:
        try:
            answers.append(ask(default_store().clone() if apart else default_store()))
        except (RuntimeError, ValueError) as error:
            # The caller is about to explain another failure, which this one must not hide.
            log.debug("the store did not answer: %s", error)

    # A call of the store may block for the store's own timeout, which is much longer. So another thread makes it, and
    # this one gives up after ``seconds``.
    thread = threading.Thread(target=work, name="gradwire store", daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


def _swap(store: Any, prefix: str, loss: Loss) -> dict[int, dict[str, Any]]:
    """Record this loss and read those of the others, which may be writing theirs just now."""
    store.set(f"{prefix}/{loss.rank}", json.dumps(dataclasses.asdict(loss)))
    others = [j for j in range(loss.world) if j != loss.rank]
    # Known peers that were silent until the timeout have written nothing, so nothing is waited for.
    asked = [] if loss.silent and loss.peers else loss.peers or others
    # The caller gives up after DEADLINE, and must get by then what was found.
    until = time.monotonic() + DEADLINE / 3
    while time.monotonic() < until and not all(store.check([f"{prefix}/{j}"]) for j in asked):
        time.sleep(0.05)
    return {j: json.loads(store.get(f"{prefix}/{j}")) for j in others if store.check([f"{prefix}/{j}"])}
