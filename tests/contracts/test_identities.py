"""Identities of a step, input = output + residual, in each step, for every method, memory and strategy that go
together.

With x_i what rank i compresses, m_i what it keeps of it and s what the owners of shards keep of the mean, "before" and
"after" a step:

    settle(mean_i (x_i - m_i)) + s before = out + s after

A memory's own arithmetic gives x_i, and what else must hold of its tensors: ``LAWS``. One that keeps nothing of x is
held against the payloads that the code makes of the x_i.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.contrib.memory.demo import DeMoMemory
from gradwire.contrib.memory.momentum import Momentum
from gradwire.contrib.memory.variance import VarianceMemory
from gradwire.engine.part import Unit
from gradwire.kernels.stored import read
from gradwire.memory.averaged_error import AveragedError
from gradwire.memory.base import Memory
from gradwire.memory.dgc import DGCMemory
from gradwire.memory.ef21 import EF21Memory
from gradwire.memory.preconditioned import Preconditioned
from gradwire.memory.residual import Residual
from gradwire.testing._expect import decode, payload_for
from gradwire.testing.ranks import mean_rounds
from gradwire.vocabulary import Key, tensor_id
from tests.cases import run_all
from tests.contracts.thread_ranks import (
    COMPRESSORS,
    MATRIX,
    PLACES,
    SEED,
    WORLDS,
    N,
    Step,
    exchange_in_threads,
    goes,
)

STEPS, PERIODIC_STEPS = 3, 6
"""The number of steps, and that of a method that does something else every few steps."""
ROTATED = 4
FLOAT32 = 2.0**-21
"""Rounding of a few operations in float32, as a share of the largest number."""
CHOOSES_AGAIN = ("two_phase", "oktopk")
"""Strategies of which the owners of shards compress the mean, or drop what is small in it. What that loses of a
gradient is lost where nobody keeps anything, so nothing is equal to what came out."""
MEMORIES: list[Memory] = [registry.build("memory", name) for name in registry.names("memory")]
OTHER_MEMORIES: list[Memory] = [
    Residual(beta=0.75, gamma=2.0),
    Residual(dtype="bfloat16"),
    EF21Memory(eta=0.25),
    DGCMemory(nesterov=True),
    VarianceMemory(alpha=0.5, zeta=0.75, keep_error=True),
    Preconditioned(beta=0.5, floor=0.25),
    AveragedError(beta=0.5, reset=0, block=16),
]


@dataclass(frozen=True)
class Case:
    compressor: Compressor
    memory: Memory
    strategy: str
    world: int

    def __str__(self) -> str:
        return f"{self.compressor.name}-{self.memory}-{self.strategy}-{self.world}"


def cases() -> Iterator[Case]:
    """All that go together, each on one number of ranks; every pair of memory and strategy sees every number.

    A memory with other settings, and the broadcast of what an all-gather moves, see every fourth method.
    """
    for memory, strategy in itertools.product([*MEMORIES, *OTHER_MEMORIES], registry.names("strategies")):
        carried = [each for each in COMPRESSORS if goes(each, memory, strategy)]
        few = memory in OTHER_MEMORIES or strategy == "broadcast"
        for i, compressor in enumerate(carried[:: ROTATED if few else 1]):
            yield Case(compressor, memory, strategy, WORLDS[i % len(WORLDS)])


CASES = list(cases())
BY_MEMORY = {str(memory): [case for case in CASES if case.memory == memory] for memory in [*MEMORIES, *OTHER_MEMORIES]}


def gradient(step: int, rank: int) -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(7919 * step + rank))


Kept = Mapping[str, Tensor]
"""The tensors that a rank keeps for one parameter, float64, by the buffer's name."""


@dataclass
class Moved:
    """The tensor that one rank compresses in a step, what it keeps of that (None: nothing), and the fate of the mean.

    The mean is multiplied by ``unit``, and added to ``base``.
    """

    x: Tensor
    kept: Tensor | None
    base: Tensor | float = 0.0
    unit: Tensor | float = 1.0


def residual(memory: Residual, grad: Tensor, before: Kept, after: Kept) -> Moved:
    return Moved(memory.beta * before["residual"] + memory.gamma * grad, after["residual"])


def averaged_error(memory: AveragedError, grad: Tensor, before: Kept, after: Kept) -> Moved:
    """The part of the mean that is not added to the gradient waits; what the step forgets, or rounds, it has not."""
    m, waits = before["residual"], (1 - memory.beta) * before["residual"]
    x = grad + memory.beta * m
    return Moved(x, after["residual"] - waits)


def demo(memory: DeMoMemory, grad: Tensor, before: Kept, after: Kept) -> Moved:
    return Moved(memory.beta * before["residual"] + grad, after["residual"])


def none(memory: Memory, grad: Tensor, before: Kept, after: Kept) -> Moved:
    return Moved(grad, None)


def momentum(memory: Momentum, grad: Tensor, before: Kept, after: Kept) -> Moved:
    check_close(after["momentum"], memory.beta * before["momentum"] + (1 - memory.beta) * grad)
    return Moved(after["momentum"], None)


def ef21(memory: EF21Memory, grad: Tensor, before: Kept, after: Kept) -> Moved:
    """The estimates move by what is sent, and their mean by what arrives."""
    if memory.eta < 1:
        grad = (1 - memory.eta) * before["momentum"] + memory.eta * grad
        check_close(after["momentum"], grad)
    if not bool(after["local"].any()):
        # Of a method of several rounds: all estimates are the mean.
        return Moved(grad - before["mean"], None, before["mean"])
    return Moved(grad - before["local"], grad - after["local"], before["mean"])


def went(after: Kept, x: Tensor, mark: str) -> Tensor:
    """The elements that were sent and not given back: one that was has its whole x again, and its ``mark`` is not 0."""
    back = (after[mark] != 0) & ((after["residual"] - x).abs() <= FLOAT32 * x.abs().max())
    return (after["sent"] != 0) & ~back


def dgc(memory: DGCMemory, grad: Tensor, before: Kept, after: Kept) -> Moved:
    mean = memory.momentum * before["momentum"] + grad * (memory.momentum if memory.nesterov else 1.0)
    x = before["residual"] + mean + (grad if memory.nesterov else 0.0)
    check_close(after["momentum"], mean.masked_fill(went(after, x, "momentum"), 0.0))
    return Moved(x, after["residual"])


def variance(memory: VarianceMemory, grad: Tensor, before: Kept, after: Kept) -> Moved:
    """The error of the code's rounding is dropped unless ``keep_error``."""
    x = before["residual"] + grad
    sent = went(after, x, "variance")
    squares = memory.zeta * (before["variance"] + grad * grad)
    check_close(after["variance"], squares.masked_fill(sent, 0.0))
    check_close(after["residual"].masked_fill(sent, 0.0), x.masked_fill(sent, 0.0))
    dropped = 0.0 if memory.keep_error else (x - after["sent"]).masked_fill(~sent, 0.0)
    return Moved(x, after["residual"] + dropped)


def preconditioned(memory: Preconditioned, grad: Tensor, before: Kept, after: Kept) -> Moved:
    """The scale that is in use is that of the steps before; tests/memory/test_preconditioned.py has how it moves."""
    scale = before["scale"].where(before["scale"] != 0, 1.0)
    return Moved(grad / scale, None, unit=scale)


LAWS: dict[str, Callable[..., Moved]] = {
    "averaged_error": averaged_error,
    "residual": residual,
    "none": none,
    "momentum": momentum,
    "ef21": ef21,
    "dgc": dgc,
    "variance": variance,
    "demo": demo,
    "preconditioned": preconditioned,
}


def test_every_memory_has_its_law() -> None:
    assert set(LAWS) == set(registry.names("memory"))


@pytest.mark.parametrize("cases", BY_MEMORY.values(), ids=list(BY_MEMORY))
def test_what_went_in_is_what_came_out_and_what_is_kept(cases: list[Case]) -> None:
    run_all((str(case), partial(check_case, case)) for case in cases)


def check_case(case: Case) -> None:
    options = {"memory": case.memory, "strategy": case.strategy}
    steps = PERIODIC_STEPS if "period" in case.compressor.to_config() else STEPS
    ranks = exchange_in_threads(case.compressor, case.world, steps, gradient, **options)
    units = ranks[0].units()
    assert units
    for step in range(steps):
        at = [rank.steps[step] for rank in ranks]
        assert all(torch.equal(mine.out, at[0].out) for mine in at)
        for unit in units:
            check_unit(case, unit, step, at)


def check_unit(case: Case, unit: Unit, step: int, at: Sequence[Step]) -> None:
    place, code = PLACES[unit.name], unit.compressor
    seen = [(mine.grad[place].double(), kept(mine.before, unit), kept(mine.after, unit)) for mine in at]
    if case.strategy == "hierarchical":
        seen = [of_host(seen)]
    moved = [LAWS[case.memory.name](case.memory, *each) for each in seen]
    if all(each.kept is not None for each in moved):
        mean = torch.stack([each.x - each.kept for each in moved]).mean(0)
    elif case.strategy in CHOOSES_AGAIN:
        return
    elif case.strategy == "hierarchical":  # There is no other host, so sums stay as they are.
        mean = moved[0].x
    else:
        mean = mean_of_codes(unit, step, at, [each.x for each in moved])
    if case.strategy == "hierarchical":
        mean = mean / len(at)
    mean = mean * moved[0].unit
    sizes = [mean, *(part * each.unit for each in moved for part in (each.x, each.kept) if part is not None)]
    # A host's sum is rounded once for each of its ranks.
    times = len(at) if case.strategy == "hierarchical" else 1
    allowed = times * rounding(case) * max(float(part.abs().max()) for part in sizes)
    owned = sum((mine.owned - mine.owned_before)[place].double() for mine in at)
    arrived = at[0].out[place].double() + owned - moved[0].base
    settled = mean.float().view(unit.shape).clone()
    capabilities.settle(code, settled)
    if not torch.equal(settled.view(-1), mean.float()):  # It votes.
        if case.strategy == "hierarchical":  # One worker has one vote, so nothing is near a tie.
            settled = mean.sign().float().view(unit.shape)
            capabilities.settle(code, settled)
        # The sign of a sum that is all rounding is anybody's guess.
        mean = torch.where(mean.abs() > allowed, settled.view(-1).double(), arrived)
    torch.testing.assert_close(arrived, mean, rtol=0, atol=allowed)


def of_host(seen: Sequence[tuple[Tensor, Kept, Kept]]) -> tuple[Tensor, Kept, Kept]:
    """The ranks, which are threads of one host, as one worker: gradients and what lanes keep are added up."""
    grads, befores, afters = zip(*seen, strict=True)
    before, after = ({name: sum(each[name] for each in every) for name in every[0]} for every in (befores, afters))
    return sum(grads), before, after


def rounding(case: Case) -> float:
    """The error of a step's sums relative to their largest number: in float32, or in the type in which payloads are
    summed."""
    types = [field.dtype for field in case.compressor.layout(MATRIX).fields]
    form = case.memory.form
    codes = 1 / 127 if form.block else 0.0  # Half a step of a code, for each of two ranks or more.
    if case.compressor.summable and case.strategy == "allreduce":
        return max(codes, torch.finfo(types[0]).eps)
    # An element is a sum of products that may cancel.
    products = 2.0**-18 if not capabilities.portable(case.compressor) else 0.0
    return max(products, codes or 8 * torch.finfo(form.dtype).eps)


def mean_of_codes(unit: Unit, step: int, at: Sequence[Step], xs: Sequence[Tensor]) -> Tensor:
    """The mean over the ranks of what the code makes of ``xs`` in this step."""
    code, tensor = unit.compressor, tensor_id(f"{unit.name}[0]")
    key = Key(seed=SEED, step=step + 1, tensor=tensor)
    floats = [x.float().view(unit.shape) for x in xs]
    states = [mine.states.get(unit.name) or code.init_state(unit.shape, Key(seed=SEED, tensor=tensor)) for mine in at]
    keys = [replace(key, rank=rank) for rank in range(len(at))]
    if isinstance(code, MultiRound):
        columns = ([[each] for each in of] for of in (floats, states, keys))
        return decode(code, mean_rounds(code, *columns)[0][0], floats[0]).view(-1).double()
    decoded = []
    for x, state, each in zip(floats, states, keys, strict=True):
        payload = payload_for(code, x)[1]
        code.encode(x, payload, {name: of.clone() for name, of in state.items()}, each)
        decoded.append(decode(code, payload, x).view(-1).double())
    return torch.stack(decoded).mean(0)


def kept(worker: Mapping[str, Kept], unit: Unit) -> dict[str, Tensor]:
    """The tensors that a rank keeps for a unit, zeros before the first step."""
    found = {name: worker.get(name, {}).get(unit.name) for name in unit.memory.buffers}
    return {
        name: torch.zeros(unit.numel).double() if of is None else read(of, unit.numel).double()
        for name, of in found.items()
    }


def check_close(found: Tensor, expected: Tensor) -> None:
    """Equal but for float32 rounding of the largest number."""
    torch.testing.assert_close(found, expected, rtol=0, atol=FLOAT32 * float(expected.abs().max()))
