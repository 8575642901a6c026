"""A class declares what it does on its own, so that nobody has to compare its methods with those of its base."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from gradwire import registry
from gradwire.compressors._adapted import Adapted
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.memory.base import Memory
from gradwire.memory.none import NoMemory
from gradwire.memory.residual import Residual
from gradwire.vocabulary import Configuration
from tests.compressors.methods import Linear8, TopHalf


@pytest.mark.parametrize(
    ("kind", "base"), [("compressors", Compressor), ("compressors", MultiRound), ("memory", Memory)]
)
def test_what_is_declared_is_what_is_defined(kind: str, base: type[Configuration]) -> None:
    for name in registry.names(kind):
        cls = registry.find(kind, name)
        for declared, methods in base.declared_by.items() if issubclass(cls, base) else ():
            own = any(getattr(cls, method) is not getattr(base, method) for method in methods)
            assert bool(getattr(cls, declared)) == own, f"{name}.{declared}"


def test_a_method_that_is_defined_anew_is_declared() -> None:
    with pytest.raises(TypeError, match=r"^Looks defines finish\(\), so it must declare keeps_mean = True$"):

        @dataclass(frozen=True)
        class Looks(NoMemory):
            def finish(self, out, kept, bad):
                return


@pytest.mark.parametrize("name", registry.names("compressors"))
def test_a_method_that_declares_plain_elements_sends_them(name: str) -> None:
    code, x = registry.find("compressors", name)(), torch.tensor([1.0, -0.1, 3e-9, 0.0])
    assert code.plain_dtype is not None or not code.identity
    if code.plain_dtype is not None:
        (payload,) = code.compress(x).view(code.plain_dtype).split(4)
        assert payload.tolist() == x.to(code.plain_dtype).tolist()
        assert not code.identity or torch.equal(code.decompress(code.compress(x), (4,)), x)


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

    assert (Residual.plain, Renamed.plain, Fades.plain) == (True, True, False)


@pytest.mark.parametrize("name", registry.names("memory"))
def test_a_memory_that_declares_a_dtype_takes_one(name: str) -> None:
    cls = registry.find("memory", name)
    assert cls.takes_dtype == ("dtype" in cls.__dataclass_fields__)
    assert not cls.beta_is_momentum or "beta" in cls.__dataclass_fields__


def test_a_method_is_the_same_whatever_its_parameters() -> None:
    qsgd, other = registry.build("compressors", "qsgd", {"bits": 2}), registry.build("compressors", "topk")
    assert qsgd.same_method(registry.build("compressors", "qsgd", {"bits": 4}))
    assert not qsgd.same_method(other)


def test_two_simple_methods_are_two_although_one_class_adapts_them() -> None:
    assert Adapted(Linear8()).same_method(Adapted(Linear8()))
    assert not Adapted(Linear8()).same_method(Adapted(TopHalf()))
    assert not Adapted(Linear8()).same_method(registry.build("compressors", "topk"))
