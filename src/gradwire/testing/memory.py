"""Measurement of the memory that a call asks torch for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.testing._expect import expect, payload_for
from gradwire.vocabulary import Key

__all__ = ["check_memory", "largest_allocation"]


def largest_allocation(work: Callable[[], object]) -> int:
    """The bytes of the largest CPU tensor that ``work`` makes, on its second call: the first one may fill caches.

    >>> largest_allocation(lambda: torch.ones(1000).add_(1).sum())
    4000
    """
    work()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    return max((event.self_cpu_memory_usage for event in recorded.events() or ()), default=0)


def check_memory(compressor: Compressor, x: Tensor) -> None:
    """Check that a step makes no tensor half the gradient's size. With the torch reference of an operation it may.

    Nor are methods asked that decompose the gradient, which takes room of its size.
    """
    if capabilities.factorises(compressor):
        return
    grad, residual, payload = x.clone(), torch.zeros_like(x), payload_for(compressor, x)[1]
    state, status = compressor.init_state(x.shape, Key()), torch.zeros(1, dtype=torch.int32)
    gathered = tuple(torch.stack([field, field]) for field in payload)

    def step() -> None:
        compressor.encode(x, payload, state, Key())
        compressor.encode_feedback(grad, residual, payload, state, Key(), status)
        compressor.encode_feedback(grad, residual, payload, state, Key())
        for all_ranks, mine in zip(gathered, payload, strict=True):
            all_ranks.copy_(mine)
        compressor.add_decoded_many(gathered, grad, 0.5)

    largest = largest_allocation(step)
    expect(2 * largest < x.nbytes, compressor, f"a step on {x.nbytes} bytes allocates {largest} at once")
