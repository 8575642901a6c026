"""The name for a contraction with memory ef21: it is the inner method, byte for byte, and asks for that memory."""

import re

import pytest
import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.signs.signsgd import SignSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.compressors.wrappers.ef21 import EF21
from gradwire.contrib.compressors.sparse.threshold import Threshold
from gradwire.contrib.compressors.transforms.demo import DeMo
from gradwire.contrib.compressors.wrappers.entropy import Entropy
from gradwire.engine.exchange import Exchange
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from tests.cases import together


@pytest.mark.parametrize("inner", [TopK(ratio=0.1), QSGD(bits=8, block=64)], ids=lambda inner: inner.name)
def test_it_sends_what_the_inner_method_sends(inner):
    x = gaussian(1000)
    assert torch.equal(EF21(inner).compress(x), inner.compress(x))
    assert capabilities.delta(EF21(inner), 1000) == capabilities.delta(inner, 1000)
    assert EF21(inner).random == inner.random


def test_the_inner_method_may_be_given_by_name_or_configuration():
    expected = EF21(TopK(ratio=0.2))
    config = {"name": "ef21", "inner": {"name": "topk", "ratio": 0.2}}
    assert expected.to_config()["inner"]["ratio"] == 0.2
    assert registry.from_config("compressors", config) == expected
    assert registry.build("compressors", "ef21", {"inner": "topk"}) == EF21()


def test_it_runs_with_its_own_memory_only():
    assert Exchange(EF21()).methods.memory_for(EF21()).name == "ef21"
    with pytest.raises(ConfigError, match="makes another method of 'ef21'"):
        Exchange(EF21(), memory="residual")


def test_the_optimizer_gets_the_estimate():
    code = EF21(TopK(ratio=0.4))
    exchange = Exchange(code)
    exchange.methods.policy = type(exchange.methods.policy)(min_numel=0)
    g, outputs = torch.tensor([1.0, -5.0, 3.0, -2.0, 4.0]).repeat(10), []
    for _ in range(3):
        flat = g.clone()
        exchange.begin_step()
        exchange.run(flat, [("a", (50,))])
        outputs.append(flat[:5].tolist())
    assert outputs == [[0.0, -5.0, 0.0, 0.0, 4.0], [0.0, -5.0, 3.0, -2.0, 4.0], [1.0, -5.0, 3.0, -2.0, 4.0]]


@together
@pytest.mark.parametrize("inner", [TwoBit(), QSGD(bits=2), PowerSGD(), "topk", None, 3], ids=str)
def test_what_is_no_contraction_is_refused(inner):
    with pytest.raises(
        ConfigError, match=re.escape(f"EF21.inner must be a contraction of one round, such as TopK(), got {inner!r}")
    ):
        EF21(inner)


def test_a_method_that_hands_out_signs_is_refused():
    """The mean of the estimates would become signs, and the next step would start from them."""
    assert EF21(DeMo(sign=False)).inner == DeMo(sign=False)
    message = re.escape("EF21.inner must be a method that hands out the mean and not its sign, got DeMo(")
    with pytest.raises(ConfigError, match=message):
        EF21(DeMo())
    for code in (DeMo(), SignSGD(ties="zero"), Entropy(SignSGD())):
        with pytest.raises(ConfigError, match=r"memory 'ef21' keeps the mean that arrives, but .* turns it into signs"):
            Exchange(code, memory="ef21", force=True)


def test_rounding_to_the_range_of_float32_keeps_a_contraction():
    assert EF21(TopK(ratio=0.1, values="bfloat16")).inner.values == "bfloat16"
    assert capabilities.delta(EF21(Threshold(v=0)), 100) == 1
    with pytest.raises(ConfigError, match=r"EF21\.inner must be a contraction"):
        EF21(TopK(ratio=0.1, values="float16"))
