"""Error feedback where it is allowed: the residual stays bounded; where it diverges it is refused, unless forced."""

from __future__ import annotations

import re

import pytest
import torch

from gradwire import registry
from gradwire.compressors.atomo import Atomo
from gradwire.compressors.base import Compressor
from gradwire.compressors.compose import Compose
from gradwire.compressors.entropy import Entropy
from gradwire.compressors.lpc_svrg import LpcSvrg
from gradwire.compressors.nuqsgd import NUQSGD
from gradwire.compressors.qsgd import QSGD
from gradwire.compressors.randomk import RandomK
from gradwire.compressors.terngrad import TernGrad
from gradwire.compressors.topk import TopK
from gradwire.errors import ConfigError
from gradwire.exchange import Exchange
from gradwire.memory.base import default_memory
from gradwire.memory.residual import Residual
from gradwire.types import Key

N, STEPS, BOUND = 4096, 100, 40.0
COMPRESSORS: list[Compressor] = [registry.build("compressors", name) for name in registry.names("compressors")]
BOUNDED = [each for each in COMPRESSORS if each.feedback != "unsafe"]
UNSAFE = [each for each in COMPRESSORS if each.feedback == "unsafe"]


def residual_rms(compressor: Compressor, steps: int = STEPS, size: float = 1.0) -> float:
    """Of one worker's residual after ``steps`` gradients of independent normal elements."""
    generator, shape = torch.Generator().manual_seed(11), (64, N // 64)
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


@pytest.mark.parametrize("compressor", BOUNDED, ids=lambda each: each.name)
def test_the_residual_stays_bounded(compressor: Compressor) -> None:
    if default_memory(compressor) not in ("none", "residual"):
        pytest.skip(f"is defined with memory {compressor.memory!r}, which has its own tests")
    size = unit(compressor)
    assert residual_rms(compressor, size=size) < BOUND * size


@pytest.mark.parametrize("compressor", [RandomK(ratio=0.01, scaled=True), QSGD(bits=2, block=4096, norm="l2")], ids=str)
def test_what_is_called_unsafe_diverges(compressor: Compressor) -> None:
    assert compressor.feedback == "unsafe"
    assert residual_rms(compressor) > 1e3 * BOUND


def test_the_scaled_variant_is_bounded_and_allowed() -> None:
    scaled = QSGD(bits=2, block=4096, norm="l2", scaled=True)
    assert scaled.feedback != "unsafe"
    assert residual_rms(scaled) < BOUND
    Exchange(scaled, memory="residual")


def test_what_the_reference_lists_is_refused_through_the_registry() -> None:
    """Scaled random-k, QSGD with few levels, TernGrad."""
    for each in (RandomK(scaled=True), QSGD(bits=2, block=4096, norm="l2"), TernGrad()):
        with pytest.raises(ConfigError, match="would grow without bound"):
            Exchange(each, memory="residual")


def built(text: str) -> Compressor:
    """What a message offers, as its reader would write it."""
    names = {cls.__name__: cls for cls in {type(each) for each in COMPRESSORS}}
    compressor: Compressor = eval(text, {"compose": Compose, **names})
    return compressor


OFFERED = [
    *(each for each in UNSAFE if each.memory is None), QSGD(bits=2, block=4096, norm="l2"),
    RandomK(ratio=0.01, scaled=True), LpcSvrg(bits=2), TernGrad(clip=0),
    NUQSGD(bits=3), NUQSGD(bits=2), NUQSGD(bits=4, block=65536), Atomo(budget=0.3), Entropy(inner=TernGrad()),
    Compose(RandomK(scaled=True), QSGD(bits=8)), Compose(TopK(0.1), QSGD(bits=2, norm="l2")),
]  # fmt: skip


@pytest.mark.parametrize("compressor", OFFERED, ids=str)
def test_where_feedback_diverges_a_form_of_the_method_is_offered_with_which_it_does_not(compressor: Compressor) -> None:
    offered = built(compressor.bounded)
    assert compressor.feedback == "unsafe" != offered.feedback
    assert residual_rms(offered, steps=40) < BOUND
    with pytest.raises(ConfigError, match=re.escape(f"with error feedback use {compressor.bounded}; or memory='none'")):
        Exchange(compressor, memory="residual")
    Exchange(offered, memory="residual")


@pytest.mark.parametrize("compressor", UNSAFE, ids=lambda each: each.name)
def test_feedback_that_diverges_is_refused_with_an_explanation_unless_forced(compressor: Compressor) -> None:
    with pytest.raises(ConfigError) as refused:
        Exchange(compressor, memory="residual")
    assert repr(compressor) in str(refused.value) or repr(compressor.name) in str(refused.value)
    assert "force=True" in str(refused.value)
    assert Exchange(compressor, memory="residual", force=True).memory_for(compressor) == Residual()
    Exchange(compressor)


def test_there_are_methods_of_both_kinds() -> None:
    assert {"terngrad", "adaptive_sparse", "atomo"} <= {each.name for each in UNSAFE}
    assert {"topk", "powersgd", "twobit", "qsgd"} <= {each.name for each in BOUNDED}
