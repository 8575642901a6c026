import pytest

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.signs.onebit import OneBit
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.lowrank.atomo import Atomo
from gradwire.contrib.compressors.ternary.strom import Strom
from gradwire_lab.bench.goals import judged, least_ratio, misses, nanoseconds
from gradwire_lab.bench.steps import STEPS


def row(compressor, op="encode", size=1000, ratio=1.0, each=1.0):
    described = capabilities.properties(compressor)
    figures = {"triad_ratio": ratio, "seconds": each * size * 1e-9}
    return {"method": compressor.name, "params": described["params"], "op": op, "size": size, **figures}


def reasons(*rows):
    return [miss.reason for miss in misses(rows)]


@pytest.mark.parametrize(
    ("compressor", "goal"),
    [(TwoBit(), 0.6), (QSGD(), 0.6), (OneBit(), 0.6), (PowerSGD(), 0.5), (Strom(), 0.5), (TopK(), 0.4)],
)
def test_each_kind_of_method_has_its_goal(compressor, goal):
    assert least_ratio(compressor) == goal
    assert reasons(row(compressor, ratio=goal)) == []
    assert reasons(row(compressor, ratio=goal - 0.01)) == [f"{goal - 0.01:.2f} of the triad, goal {goal:.2f}"]


def test_every_registered_method_has_a_goal():
    goals = {least_ratio(registry.build("compressors", name)) for name in registry.names("compressors")}
    assert goals == {0.6, 0.5, 0.4}


def test_ten_nanoseconds_are_for_an_element_of_one_payload():
    assert nanoseconds(row(TwoBit(), each=7.5)) == pytest.approx(7.5)
    assert reasons(row(TwoBit(), each=10.1)) == ["10.1 ns an element, goal 10"]
    assert reasons(row(TwoBit(), "decode8", each=79.0)) == []
    assert reasons(row(TwoBit(), "decode8", each=88.0)) == ["11.0 ns an element, goal 10"]
    assert reasons(row(TwoBit(), ratio=0.1, each=20.0)) == [
        "0.10 of the triad, goal 0.60",
        "20.0 ns an element, goal 10",
    ]


def test_a_factorisation_may_take_its_time():
    assert reasons(row(Atomo(), each=500.0)) == []


def test_the_largest_size_that_was_measured_counts():
    small, large = row(TwoBit(), ratio=0.1), row(TwoBit(), size=4000)
    skipped = {**row(TwoBit(), size=16000), "skipped": "too slow"}
    del skipped["seconds"]
    assert judged([large, small, skipped]) == [large]
    assert judged([small, row(TwoBit(0.25)), row(TwoBit(), op=STEPS[1].name)]) == [
        small,
        row(TwoBit(0.25)),
        row(TwoBit(), op=STEPS[1].name),
    ]
    assert misses([skipped]) == []
