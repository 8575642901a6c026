"""Ranks as threads of one process: for tests of cooperation, without a network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor, MultiRound, reduce_fields
from gradwire.testing._expect import decode, expect, payload_for, same
from gradwire.vocabulary import Key, Payload, State

__all__ = ["check_rounds", "mean_rounds", "run_ranks"]

T = TypeVar("T")


def run_ranks(world: int, work: Callable[[int], T]) -> list[T]:
    """Call ``work(rank)`` in a thread of its own for every rank.

    Returns:
        The results in rank order.

    Raises:
        Exception: exception of the first rank that failed by itself, not of one that was only left waiting for it.

    >>> run_ranks(3, lambda rank: rank * rank)
    [0, 1, 4]
    """
    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(work, rank) for rank in range(world)]
    failures = [error for error in (future.exception() for future in futures) if error]
    failures.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))
    if failures:
        raise failures[0]
    return [future.result() for future in futures]


def mean_rounds(
    compressor: MultiRound,
    xs: Sequence[Sequence[Tensor]],
    states: Sequence[Sequence[State]],
    keys: Sequence[Sequence[Key]],
    timeout: float = 60.0,
) -> list[list[Payload]]:
    """Drive a method of several rounds over ranks that are threads, with a plain reduction for the collective.

    Args:
        compressor: the same on all ranks.
        xs: ``xs[rank][tensor]``, float32.
        states: states of the same shape; updated.
        keys: keys of the same shape.
        timeout: seconds that a rank waits for the others.

    Returns:
        ``payloads[rank][tensor]``, complete: each decodes to the mean over the ranks.
    """
    payloads = [[payload_for(compressor, x)[1] for x in mine] for mine in xs]
    barrier = threading.Barrier(len(xs), timeout=timeout)

    def work(rank: int) -> None:
        try:
            for field, how in compressor.pauses(xs[rank], payloads[rank], states[rank], keys[rank]):
                if barrier.wait() == 0:
                    for of_one_tensor in zip(*payloads, strict=True):
                        reduce_fields([payload[field] for payload in of_one_tensor], how)
                barrier.wait()
        except BaseException:
            barrier.abort()
            raise

    run_ranks(len(xs), work)
    return payloads


def check_rounds(compressor: Compressor, x: Tensor) -> None:
    """Check that three ranks end with the same bits, and that states change only after the last round."""
    if not isinstance(compressor, MultiRound):
        return
    xs = [[x * weight, x * x.sign() - weight] for weight in (1.0, 0.5, -0.25)]
    keys = [[Key(tensor=tensor, rank=rank) for tensor in range(2)] for rank in range(3)]
    states = [[compressor.init_state(x.shape, key, x.device) for key in mine] for mine in keys]
    _check_states_wait(compressor, xs[0], states[0], keys[0])
    before = [[x.clone() for x in mine] for mine in xs]
    payloads = mean_rounds(compressor, xs, states, keys)
    for rank in range(3):
        for tensor in range(2):
            expect(same(xs[rank][tensor], before[rank][tensor]), compressor, "rounds changed their input")
            mine, first = (decode(compressor, payloads[r][tensor], x) for r in (rank, 0))
            expect(same(mine, first), compressor, f"ranks {rank} and 0 decode different bits")
            _check_same_state(compressor, states[rank][tensor], states[0][tensor], f"rank {rank}'s state differs")


def _check_states_wait(
    compressor: MultiRound, xs: Sequence[Tensor], states: Sequence[State], keys: Sequence[Key]
) -> None:
    before = [{name: value.clone() for name, value in state.items()} for state in states]
    payloads = [payload_for(compressor, x)[1] for x in xs]
    rounds = compressor.rounds(xs, payloads, states, keys)
    for _ in range(capabilities.rounds_needed(compressor)):
        next(rounds)
        for old, state in zip(before, states, strict=True):
            _check_same_state(compressor, old, state, "a state changed before the last round was over")


def _check_same_state(compressor: Compressor, a: State, b: State, what: str) -> None:
    expect(a.keys() == b.keys() and all(same(a[name], b[name]) for name in a), compressor, what)
