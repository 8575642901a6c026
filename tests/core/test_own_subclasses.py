"""A method or memory that does one thing in its own way is asked for it also where its base takes many tensors."""

import dataclasses
from collections import Counter

import pytest
import torch

from gradwire import compressor
from gradwire.compressors import capabilities
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.memory.none import NoMemory
from gradwire.memory.residual import Residual

PARAMS = [("a", (16, 8)), ("b", (100,)), ("c", (64, 16))]
CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _nothing_called():
    CALLS.clear()


def exchanged(code, memory, steps=2, bad=None, strategy=None):
    """The output of the last step, and the exchange."""
    exchange = Exchange(code, memory=memory, strategy=strategy, policy=Policy(min_numel=1), force=True)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        flat = torch.randn(sum(torch.Size(shape).numel() for _, shape in PARAMS), generator=generator)
        if step == bad:
            flat[3] = torch.nan
        exchange.begin_step()
        exchange.run(flat, PARAMS)
    return flat, exchange


def residual_of(exchange):
    return torch.cat([exchange.residuals.worker["residual"][name] for name, _ in PARAMS])


@dataclasses.dataclass(frozen=True)
class TwoArguments(Residual):
    """Takes back as memories did before ``when``."""

    name = "two_arguments"

    def rollback(self, grad, kept):
        CALLS["rollback"] += 1
        kept["residual"].copy_(grad)


@dataclasses.dataclass(frozen=True)
class Fading(Residual):
    """Lets go of half in every step."""

    name = "fading"

    def encode(self, compressor, grad, kept, payload, state, key, status, scale=1.0):
        CALLS["encode"] += 1
        kept["residual"].mul_(0.5)
        super().encode(compressor, grad, kept, payload, state, key, status, scale)


@dataclasses.dataclass(frozen=True)
class Compensating(Residual):
    """Compensates in its own way."""

    name = "compensating"

    def compensate(self, grad, kept):
        CALLS["compensate"] += 1
        super().compensate(grad, kept)


@dataclasses.dataclass(frozen=True)
class Halving(Residual):
    """Keeps half of what was not sent."""

    name = "halving"

    def update(self, unsent, kept, bad):
        CALLS["update"] += 1
        kept["residual"].copy_(torch.where(bad, kept["residual"], 0.5 * unsent))


@dataclasses.dataclass(frozen=True)
class Clipping(NoMemory):
    """Clips what it encodes."""

    name = "clipping"

    def encode(self, compressor, grad, kept, payload, state, key, status, scale=1.0):
        super().encode(compressor, grad.clamp_(-0.125, 0.125), kept, payload, state, key, status, scale)


@dataclasses.dataclass(frozen=True)
class OwnProduct(PowerSGD):
    """Adds in its own way."""

    name = "own_product"

    def add_decoded(self, payload, out, scale=1.0):
        CALLS["add_decoded"] += 1
        super().add_decoded(payload, out, scale)


@dataclasses.dataclass(frozen=True)
class Saturating(FP16):
    """Encodes no value that is not finite."""

    name = "saturating"

    def encode(self, x, payload, state, key):
        super().encode(torch.nan_to_num(x), payload, state, key)

    def encode_scaled(self, x, scale, payload, state, key):
        super().encode_scaled(torch.nan_to_num(x), scale, payload, state, key)


class Counting:
    """A part of a class that is no method itself."""

    def encode_feedback(self, grad, residual, payload, state, key, status=None):
        CALLS["mixed in"] += residual.numel() > 0
        super().encode_feedback(grad, residual, payload, state, key, status)


@dataclasses.dataclass(frozen=True)
class Counted(Counting, TopK):
    """Has its code from two classes."""

    name = "counted"


def test_a_memory_that_takes_back_with_two_arguments():
    _, exchange = exchanged(compressor("topk:ratio=0.1"), TwoArguments(), bad=1)
    assert CALLS["rollback"] == len(PARAMS)
    _, expected = exchanged(compressor("topk:ratio=0.1"), Residual(), steps=1)
    assert torch.equal(residual_of(exchange), residual_of(expected))


def test_a_memory_that_encodes_in_its_own_way():
    exchanged(compressor("topk:ratio=0.1"), Fading())
    assert CALLS["encode"] == 2 * len(PARAMS)


@pytest.mark.parametrize(("memory", "called"), [(Compensating(), "compensate"), (Halving(), "update")])
def test_a_memory_that_has_its_own_halves(memory, called):
    exchanged(compressor("powersgd:rank=1"), memory)
    assert CALLS[called] == 4


def test_a_memory_that_keeps_nothing_and_changes_what_is_sent():
    flat, _ = exchanged(compressor("fp16"), Clipping(), strategy="allreduce")
    assert float(flat.abs().max()) == 0.125


def test_a_low_rank_method_that_adds_in_its_own_way():
    exchanged(OwnProduct(rank=1), "residual")
    assert CALLS["add_decoded"] >= 4


def test_a_cast_that_hides_what_is_not_finite():
    flat, _ = exchanged(Saturating(), "none", bad=1, strategy="allreduce")
    assert bool(flat.isnan().all())


def test_a_method_whose_code_is_mixed_in():
    assert not capabilities.takes_pieces(Counted(ratio=0.1))
    exchanged(Counted(ratio=0.1), "residual")
    assert CALLS["mixed in"] == 2 * len(PARAMS)
