"""Whatever a method or a memory keeps of the past, no jump of the gradients makes twice the error of before."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire import registry
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.errors import ConfigError
from gradwire.memory import facts
from gradwire.memory.base import Memory
from gradwire.vocabulary import Key
from tests.cases import together

SHAPE, BEFORE, AFTER = (32, 64), 12, 6

SLOW = {"gradzip", "demo"}
"""The first keeps what ``acp_sgd`` keeps; the memory of the second is tried with another code."""


def keeps(code: str, memory: str | None) -> Memory | None:
    """Return the memory, if it or the method keeps anything; None also where they do not go together."""
    compressor = registry.build("compressors", code)
    try:
        used = Exchange(compressor, memory=memory, force=True).methods.memory_for(compressor)
    except ConfigError:
        return None
    return used if used.buffers or compressor.init_state(SHAPE, Key()) else None


PAIRS = [(name, None) for name in registry.names("compressors") if name not in SLOW]
PAIRS += [("eden", memory) for memory in registry.names("memory")]
KEPT = {f"{code} with {used.name}": (code, used) for code, memory in PAIRS if (used := keeps(code, memory)) is not None}


def grown() -> list[Tensor]:
    """Sizes of the gradients in each step: a thousandfold, nothing, and a thousandfold again."""
    whole = torch.ones(SHAPE)
    return [whole] * BEFORE + [1000 * whole] * AFTER + [0 * whole] * 20 + [1000 * whole] * AFTER


def errors(code: str, memory: Memory, sizes: list[Tensor]) -> list[float]:
    """The error over the energy of the gradient, in each step that has one."""
    exchange = Exchange(registry.build("compressors", code), memory=memory, policy=Policy(min_numel=1), force=True)
    generator, found = torch.Generator().manual_seed(0), []
    for size in sizes:
        grad = torch.randn(SHAPE, generator=generator) * size
        arrived = grad.clone().view(-1)
        exchange.begin_step()
        exchange.run(arrived, [("w", SHAPE)])
        assert arrived.isfinite().all()
        energy = float(grad.square().sum())
        if energy:
            found.append(float((arrived - grad.view(-1)).square().sum()) / energy)
    return found


@together
@pytest.mark.parametrize("case", list(KEPT))
def test_gradients_grow_and_come_back(case: str) -> None:
    sizes = grown()
    normal = errors(*KEPT[case], [torch.ones(SHAPE)] * len(sizes))[BEFORE // 2 :]
    assert max(errors(*KEPT[case], sizes)) <= 2 * max(normal)


@together
@pytest.mark.parametrize(
    "case", [case for case, (_, used) in KEPT.items() if facts.keeps_nothing(used) or used.forgets]
)
def test_gradients_shrink(case: str) -> None:
    """Memories in which nothing waits; what waits elsewhere is as large as the gradients were of which it is a part."""
    whole = torch.ones(SHAPE)
    normal = errors(*KEPT[case], [whole] * 40)
    assert max(errors(*KEPT[case], [whole] * BEFORE + [whole / 1000] * 30)) <= 2 * max(normal)
