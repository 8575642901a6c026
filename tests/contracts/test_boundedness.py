"""Error feedback where it is allowed: the residual stays bounded; where it diverges it is refused, unless forced."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.signs.efsignsgd import EFSignSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.terngrad import TernGrad
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.compressors.transforms.eden import EDEN
from gradwire.compressors.wrappers.compose import Compose
from gradwire.contrib.compressors.levels.lpc_svrg import LpcSvrg
from gradwire.contrib.compressors.levels.nuqsgd import NUQSGD
from gradwire.contrib.compressors.lowrank.atomo import Atomo
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.contrib.compressors.wrappers.entropy import Entropy
from gradwire.engine.exchange import Exchange
from gradwire.errors import ConfigError
from gradwire.memory.base import Memory
from gradwire.memory.ef21 import EF21Memory
from gradwire.memory.none import NoMemory
from gradwire.memory.residual import Residual
from gradwire.vocabulary import Key
from tests.contracts.thread_ranks import COMPRESSORS as THREADED
from tests.contracts.thread_ranks import MATRIX, PLACES, N, exchange_in_threads, goes

STEPS, BOUND = 100, 40.0
SHAPE = (64, 64)
WORLDS = (2, 3)
"""Numbers of ranks, in turn; the equations of test_identities hold on up to seven ranks."""
LEAST_RUN = 32
"""Steps of several ranks, of a method that sends a tenth of the elements or more."""
RATIOS = (0.1, 0.05, 0.02, 0.01)
COMPRESSORS: list[Compressor] = [registry.build("compressors", name) for name in registry.names("compressors")]
BOUNDED = [each for each in COMPRESSORS if each.feedback != "unsafe"]
UNSAFE = [each for each in COMPRESSORS if each.feedback == "unsafe"]


def residual_rms(compressor: Compressor, steps: int = STEPS, size: float = 1.0) -> float:
    """The root mean square of one worker's residual after ``steps`` gradients of independent normal elements."""
    generator, shape = torch.Generator().manual_seed(11), SHAPE
    residual, status = torch.zeros(shape), torch.zeros(1, dtype=torch.int32)
    layout, state = compressor.layout(shape), compressor.init_state(shape, Key())
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    for step in range(1, steps + 1):
        grad = size * torch.randn(shape, generator=generator)
        Residual().encode(compressor, grad, {"residual": residual}, payload, state, Key(step=step), status)
    return float(residual.square().mean().sqrt())


def unit(compressor: Compressor) -> float:
    """The size of gradients that suits a method: its own threshold, where it has one in the gradient's unit."""
    given = compressor.to_config()
    return float(next((given[name] for name in ("threshold", "v") if isinstance(given.get(name), float)), 1.0))


def quickened(compressor: Compressor) -> Compressor:
    """The same with the largest share of the elements that pays, where it has a ratio, so that few steps are many."""
    names = {each.name for each in dataclasses.fields(compressor)}  # type: ignore[arg-type]
    if "inner" in names:
        compressor = dataclasses.replace(compressor, inner=quickened(compressor.inner))  # type: ignore[attr-defined, type-var]
    ratios = RATIOS if "ratio" in names else ()
    quick = [dataclasses.replace(compressor, ratio=ratio) for ratio in ratios]  # type: ignore[type-var]
    return next((each for each in quick if capabilities.pays_for(each, MATRIX)), compressor)


def on_ranks(memory: Memory) -> Iterator[tuple[Compressor, str, int]]:
    """The methods that go with a memory unforced, each with the strategies that carry it, on 2 and 3 ranks in turn."""
    world = itertools.cycle(WORLDS)
    for strategy in registry.names("strategies"):
        for compressor in THREADED:
            if strategy != "broadcast" and not capabilities.votes(compressor) and goes(compressor, memory, strategy):
                yield quickened(compressor), strategy, next(world)


class Run:
    """Ranks whose gradients are constants, with noise of a share of their size, for ``steps`` steps, divisible by 4."""

    def __init__(self, compressor: Compressor, memory: Memory, strategy: str, world: int, noise: float) -> None:
        self.size, self.noise = 0.4 * unit(compressor), noise
        self.world = world
        ratio = compressor.to_config().get("ratio", 1.0)
        self.steps = max(LEAST_RUN, 4 * math.ceil(1.25 / ratio))
        late = [*range(self.steps // 4, self.steps // 2), *range(3 * self.steps // 4, self.steps)]
        self.ranks = exchange_in_threads(
            compressor, world, self.steps, self.gradient, watched=late, memory=memory, strategy=strategy
        )
        units = self.ranks[0].units()
        self.compressed = torch.cat([torch.arange(N)[PLACES[unit.name]] for unit in units])

    def gradient(self, step: int, rank: int) -> Tensor:
        constant = torch.rand(N, generator=torch.Generator().manual_seed(rank)) * 2 - 1
        noise = torch.randn(N, generator=torch.Generator().manual_seed(7919 * (step + 1) + rank))
        return self.size * (constant + self.noise * noise)

    def mean_gradient(self, steps: Iterable[int]) -> Tensor:
        grads = [self.gradient(step, rank).double() for step in steps for rank in range(self.world)]
        return torch.stack(grads).mean(0)[self.compressed]

    def waiting(self, step: int) -> float:
        """The Euclidean norm of what the ranks and the owners of shards keep back of the mean."""
        total = torch.zeros(N, dtype=torch.float64)
        for rank in self.ranks:
            at = rank.steps[step]
            total += at.owned
            for name, residual in at.after["residual"].items():
                total[PLACES[name]] += residual / self.world
        return float(total.norm())


@pytest.mark.parametrize(("compressor", "strategy", "world"), list(on_ranks(Residual())), ids=str)
def test_on_several_ranks_what_waits_stops_growing_and_the_gradient_arrives(
    compressor: Compressor, strategy: str, world: int
) -> None:
    run = Run(compressor, Residual(), strategy, world, noise=0.2)
    early, late = (
        max(run.waiting(step) for step in range(end - run.steps // 4, end)) for end in (run.steps // 2, run.steps)
    )
    gradient = run.mean_gradient(range(run.steps // 2, run.steps))
    assert late < 1.5 * early + 0.1 * float(gradient.norm())
    arrived = (run.ranks[0].total - run.ranks[0].steps[run.steps // 2 - 1].total)[run.compressed] / (run.steps // 2)
    assert (arrived - gradient).norm() < 0.5 * gradient.norm() + early / (run.steps // 2)


@pytest.mark.parametrize(
    ("compressor", "strategy", "world"),
    [each for each in on_ranks(EF21Memory()) if capabilities.contraction(each[0])],
    ids=str,
)
def test_on_several_ranks_estimates_reach_a_gradient_that_does_not_change(
    compressor: Compressor, strategy: str, world: int
) -> None:
    run = Run(compressor, EF21Memory(), strategy, world, noise=0.0)
    gradient = run.mean_gradient([0])
    assert (run.ranks[0].steps[run.steps - 1].out[run.compressed] - gradient).norm() < 0.25 * gradient.norm()


@pytest.mark.parametrize(
    ("compressor", "strategy", "world"), [each for each in on_ranks(NoMemory()) if each[0].unbiased], ids=str
)
def test_on_several_ranks_an_unbiased_method_without_a_memory_is_right_on_average(
    compressor: Compressor, strategy: str, world: int
) -> None:
    """The sum of all errors along the mean gradient, against its standard error as the steps show it."""
    run = Run(compressor, NoMemory(), strategy, world, noise=0.0)
    gradient = run.mean_gradient([0])
    outs = torch.stack([at.out[run.compressed].double() for at in run.ranks[0].steps.values()])
    along = (outs - gradient) @ (gradient / gradient.norm())
    allowed = 5 * along.std() / len(along) ** 0.5 + 2.0**-20 * gradient.norm()
    assert along.mean().abs() < allowed


@pytest.mark.parametrize("compressor", [RandomK(ratio=0.01, scaled=True), QSGD(bits=2, block=4096, norm="l2")], ids=str)
def test_what_is_called_unsafe_diverges(compressor: Compressor) -> None:
    assert compressor.feedback == "unsafe"
    assert residual_rms(compressor) > 1e3 * BOUND


def test_the_scaled_variant_is_bounded_and_allowed() -> None:
    for scaled in (QSGD(bits=2, block=4096, norm="l2", scaled=True), EDEN(bits=0.125, block=64, scaled=True)):
        assert scaled.feedback != "unsafe"
        assert residual_rms(scaled) < BOUND
        Exchange(scaled, memory="residual")


def test_what_the_reference_lists_is_refused_through_the_registry() -> None:
    """Scaled random-k, QSGD with few levels, TernGrad."""
    for each in (RandomK(scaled=True), QSGD(bits=2, block=4096, norm="l2"), TernGrad()):
        with pytest.raises(ConfigError, match="would grow without bound"):
            Exchange(each, memory="residual")


def built(text: str) -> Compressor:
    """The method that a message offers, as its reader would write it."""
    names = {cls.__name__: cls for cls in {type(each) for each in COMPRESSORS}}
    compressor: Compressor = eval(text, {"compose": Compose, **names})
    return compressor


OFFERED = [
    *(each for each in UNSAFE if capabilities.memory(each) is None),
    QSGD(bits=2, block=4096, norm="l2"),
    RandomK(ratio=0.01, scaled=True),
    LpcSvrg(bits=2),
    TernGrad(clip=0),
    NUQSGD(bits=3),
    NUQSGD(bits=2),
    NUQSGD(bits=4, block=65536),
    Atomo(budget=0.3),
    Entropy(inner=TernGrad()),
    Compose(RandomK(scaled=True), QSGD(bits=8)),
    Compose(RandomK(scaled=True), Atomo()),
    Compose(RandomK(scaled=True), QSGD(bits=2, norm="l2")),
]


@pytest.mark.parametrize("compressor", OFFERED, ids=str)
def test_where_feedback_diverges_a_form_of_the_method_is_offered_with_which_it_does_not(compressor: Compressor) -> None:
    offered = built(capabilities.bounded(compressor))
    assert compressor.feedback == "unsafe" != offered.feedback
    assert residual_rms(offered, steps=40) < BOUND
    told = f"with error feedback use {capabilities.bounded(compressor)}; or memory='none'"
    with pytest.raises(ConfigError, match=re.escape(told)):
        Exchange(compressor, memory="residual")
    Exchange(offered, memory="residual")


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (TopK(0.1), QSGD(bits=2, norm="l2")),
        (TopK(0.1), TernGrad()),
        (TopK(0.1), EDEN(bits=0.25)),
        (TopK(0.1), Atomo()),
        (RandomK(scaled=True), TwoBit()),
        (RandomK(scaled=True), EFSignSGD()),
    ],
    ids=str,
)
def test_a_composition_with_which_no_memory_is_right_is_refused_with_one_that_has_a_memory(
    outer: Compressor, inner: Compressor
) -> None:
    """Without a residual it would lose what the one method leaves out; with one the noise of the other would grow."""
    with pytest.raises(
        ConfigError, match=r"^Compose\.(outer|inner) must be safe with the error feedback that "
    ) as told:
        Compose(outer, inner)
    offered = built(str(told.value).partition("use ")[2].rpartition(", got ")[0])
    assert offered.feedback == "required"
    assert residual_rms(offered, steps=40) < BOUND
    Exchange(offered)


@pytest.mark.parametrize("compressor", UNSAFE, ids=lambda each: each.name)
def test_feedback_that_diverges_is_refused_with_an_explanation_unless_forced(compressor: Compressor) -> None:
    with pytest.raises(ConfigError) as refused:
        Exchange(compressor, memory="residual")
    assert repr(compressor) in str(refused.value) or repr(compressor.name) in str(refused.value)
    assert "force=True" in str(refused.value)
    assert Exchange(compressor, memory="residual", force=True).methods.memory_for(compressor) == Residual()
    Exchange(compressor)


def test_there_are_methods_of_both_kinds() -> None:
    assert {"terngrad", "adaptive_sparse", "atomo"} <= {each.name for each in UNSAFE}
    assert {"topk", "powersgd", "twobit", "qsgd"} <= {each.name for each in BOUNDED}
