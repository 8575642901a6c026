"""What a class does on its own is declared, so that nobody has to compare its methods with those of its base."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gradwire import registry
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.memory.base import Memory
from gradwire.memory.none import NoMemory
from gradwire.types import Configuration


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
