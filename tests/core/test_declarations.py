"""A class declares what it does on its own, so that nobody has to compare its methods with those of its base."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass

import pytest
import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors._adapted import Adapted
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.compressors.wrappers.compose import Compose
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.contrib.compressors.wrappers.entropy import Entropy
from gradwire.memory import facts
from gradwire.memory.none import NoMemory
from gradwire.memory.residual import Residual
from tests.compressors.methods import Linear8, TopHalf
from tests.strategies.methods import NonZero


@dataclass(frozen=True)
class Looks(NoMemory):
    """Sees what arrives."""

    def finish(self, out, kept, bad):
        return


@dataclass(frozen=True)
class Returns(NoMemory):
    """Keeps again what nobody received."""

    def returned(self, grad, kept, places, values):
        return


def test_what_a_memory_defines_need_not_be_declared() -> None:
    for name in registry.names("memory"):
        memory = registry.build("memory", name)
        assert facts.keeps_mean(memory) == (name in ("ef21", "preconditioned")), name
    assert [facts.keeps_mean(each) for each in (NoMemory(), Looks(), Returns())] == [False, True, False]
    assert [facts.returned.declared(each) for each in (NoMemory(), Looks(), Returns())] == [False, False, True]


def test_what_a_method_defines_need_not_be_declared() -> None:
    codes = [registry.build("compressors", name) for name in registry.names("compressors")]
    settling = {code.name for code in codes if capabilities.settles(code)}
    assert settling == {"demo", "signsgd", "signum"}


class Halved(TopK):
    """Writes one of the methods that facts of its base describe."""

    def encode(self, x, payload, state, key):
        super().encode(0.5 * x, payload, state, key)


class Repeated(Halved):
    """Says that they hold all the same."""

    takes_pieces = True

    def encode(self, x, payload, state, key):
        super().encode(x, payload, state, key)


def test_a_fact_does_not_outlive_what_it_describes_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    told = "Halved has its own encode, so 'takes_pieces' of its base does not hold for it: declare takes_pieces beside"
    with caplog.at_level("INFO", "gradwire"):
        assert capabilities.takes_pieces(TopK(0.1))
        assert [capabilities.takes_pieces(Halved(0.1)) for _ in range(2)] == [False, False]
        assert not capabilities.takes_pieces.declared(Halved(0.1))
        assert capabilities.takes_pieces(Repeated(0.1))
    assert [told in record.getMessage() for record in caplog.records] == [True]


class Mistyped(NonZero):
    """Has a mistake in what it declares."""

    @property
    def average(self) -> bool:
        return bool(self.mistyped)  # type: ignore[attr-defined]


def test_an_error_in_what_is_declared_is_no_default() -> None:
    with pytest.raises(AttributeError, match="mistyped"):
        capabilities.average(Mistyped())


def test_what_an_object_is_given_holds_whatever_its_class_overrides() -> None:
    code = Mistyped()
    # As a method around another one does it, whose class has an ``encode`` of its own.
    object.__setattr__(code, "takes_pieces", True)
    assert capabilities.takes_pieces(code)
    assert capabilities.takes_pieces.declared(code)


def test_a_question_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(capabilities.omega)) is capabilities.omega


def test_what_describes_no_method_outlives_all_of_them() -> None:
    assert capabilities.contraction(Halved(0.1))
    assert capabilities.delta(Halved(0.1), 100) == TopK(0.1).delta(100)


def test_a_class_that_declares_nothing_has_the_defaults() -> None:
    code = NonZero()
    facts = "fine", "votes", "settles", "identity", "in_rounds", "takes_pieces", "tells_nonfinite", "contraction"
    assert not any(getattr(capabilities, fact)(code) for fact in facts)
    assert (capabilities.memory(code), capabilities.advice(code), capabilities.bounded(code)) == (None, 0, "")
    assert (capabilities.delta(code, 10), capabilities.omega(code, 10)) == (0.0, math.inf)
    assert (capabilities.average(code), capabilities.portable(code)) == (True, True)
    assert capabilities.for_mean(code) is code
    assert capabilities.traffic(code, (3,)) == code.layout((3,)).nbytes == 28


@pytest.mark.parametrize("name", registry.names("compressors"))
def test_a_method_that_declares_plain_elements_sends_them(name: str) -> None:
    code, x = registry.find("compressors", name)(), torch.tensor([1.0, -0.1, 3e-9, 0.0])
    assert capabilities.plain_dtype(code) is not None or not capabilities.identity(code)
    if capabilities.plain_dtype(code) is not None:
        (payload,) = code.compress(x).view(capabilities.plain_dtype(code)).split(4)
        assert payload.tolist() == x.to(capabilities.plain_dtype(code)).tolist()
        assert not capabilities.identity(code) or torch.equal(code.decompress(code.compress(x), (4,)), x)


def test_the_strategies_of_each_way_are_declared() -> None:
    classes = [registry.find("strategies", name) for name in registry.names("strategies")]
    ways = {"sums": ["allreduce"], "gathers": ["allgather", "broadcast"], "reencodes": ["two_phase"]}
    for way, names in ways.items():
        assert [cls.name for cls in classes if getattr(cls, way)] == names


def test_a_memory_that_does_something_in_its_own_way_is_not_plain() -> None:
    @dataclass(frozen=True)
    class Fades(Residual):
        def update(self, unsent, kept, bad):
            kept["residual"].mul_(0.5)

    @dataclass(frozen=True)
    class Renamed(Residual):
        pass

    assert [facts.plain(each()) for each in (Residual, Renamed, Fades)] == [True, True, False]


@pytest.mark.parametrize("name", registry.names("memory"))
def test_a_memory_that_declares_a_dtype_takes_one(name: str) -> None:
    cls = registry.find("memory", name)
    assert facts.takes_dtype(cls) == ("dtype" in cls.__dataclass_fields__)
    assert not facts.beta_is_momentum(cls) or "beta" in cls.__dataclass_fields__


def test_a_method_is_the_same_whatever_its_parameters() -> None:
    qsgd, other = registry.build("compressors", "qsgd", {"bits": 2}), registry.build("compressors", "topk")
    assert capabilities.same_method(qsgd, registry.build("compressors", "qsgd", {"bits": 4}))
    assert not capabilities.same_method(qsgd, other)


def test_methods_around_others_are_the_same_where_those_are() -> None:
    twobit, qsgd, four = TwoBit(), QSGD(bits=8), QSGD(bits=4)
    assert capabilities.same_method(Entropy(qsgd), Entropy(four))
    assert capabilities.same_method(Compose(TopK(), qsgd), Compose(TopK(0.5), four))
    for other in (Entropy(twobit), Compose(TopK(), qsgd), qsgd):
        assert not capabilities.same_method(Entropy(qsgd), other)
    for other in (Compose(TopK(), twobit), Compose(RandomK(), qsgd), Entropy(qsgd)):
        assert not capabilities.same_method(Compose(TopK(), qsgd), other)


def test_two_simple_methods_are_two_although_one_class_adapts_them() -> None:
    assert capabilities.same_method(Adapted(Linear8()), Adapted(Linear8()))
    assert not capabilities.same_method(Adapted(Linear8()), Adapted(TopHalf()))
    assert not capabilities.same_method(Adapted(Linear8()), registry.build("compressors", "topk"))
