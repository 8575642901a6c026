"""Check of what declares ``fine``: that Adam on two ranks ends with it where uncompressed training ends.

    from gradwire.testing import adaptive
    adaptive.check_fine(MyMethod())

A network of two layers learns another one from noisy batches. Its inputs have sizes from 1 to 1/100, and so have the
gradients: what Adam is there for. The same batches and the same rate for all, lower at the end. The error is the mean
square against the network without noise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.compressors.base import Compressor
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.testing._expect import expect
from gradwire.testing.processes import run_ranks

__all__ = ["BOUND", "check_fine", "errors"]

STEPS, BATCH, WIDTH, RATE = 60, 8, 32, 1e-2
BOUND = 1.25
"""Times the error of no compression, which other batches change to 0.98 to 1.08 times itself. With six seeds of them,
who is fine at the defaults ends at 0.99 to 1.12 times that of the same seed, and who keeps back much at 1.41 to 2.35
times. With the first seed the coarsest forms that are fine end at up to 1.16 times, and forms that are coarser at 1.57
and 2.11 times."""


def check_fine(compressor: Compressor, **options: Any) -> None:
    """Check that training with a method ends at most at ``BOUND`` times the error of no compression.

    Args:
        compressor: method; its class must be importable, because processes of their own train with it.
        options: options of ``compress_optimizer``, such as ``memory="residual"``.

    Raises:
        AssertionError: training ends worse.
    """
    found, plain = errors([(compressor, options), ("none", {})])
    told = f"with {options}" if options else "at the defaults"
    expect(
        found < BOUND * plain,
        compressor,
        f"is not fine {told}: under Adam the error is {found:.4g} and without compression {plain:.4g}",
    )


def errors(cases: Sequence[tuple[Any, Mapping[str, Any]]]) -> list[float]:
    """Train on two ranks with each method, and return the errors, which are the same on both.

    Args:
        cases: each method, or its name, with options of ``compress_optimizer``.
    """
    found, other = run_ranks(2, _errors, list(cases))
    if found != other:
        raise AssertionError(f"the ranks ended apart: {found} and {other}")
    return list(found)


def _errors(rank: int, cases: Sequence[tuple[Any, Mapping[str, Any]]]) -> list[float]:
    torch.set_num_threads(1)
    logging.getLogger("gradwire").setLevel(logging.ERROR)
    return [_error(rank, method, options) for method, options in cases]


def _error(rank: int, method: Any, options: Mapping[str, Any]) -> float:
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 8))
    sizes, draws = torch.logspace(0, -2, WIDTH), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.Adam(model.parameters(), RATE, (0.9, 0.95))
    state = compress_optimizer(optimizer, model, method, min_numel=64, **options)

    def batch(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, WIDTH, generator=generator)
        return x * sizes, teacher(x).detach()

    for step in range(STEPS):
        x, y = batch(BATCH, draws)
        optimizer.zero_grad()
        noise = torch.randn(y.shape, generator=draws)
        (model(x) - y - noise / 2).square().mean().backward()
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        optimizer.step()
    state.close()
    x, y = batch(2000, torch.Generator().manual_seed(99))
    with torch.no_grad():
        return float((model(x) - y).square().mean())
