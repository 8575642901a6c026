"""Cases that ``tests/cases.py`` runs, and the way in which it fails."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import covering, pairwise, together


@given(st.lists(st.integers(1, 5), max_size=5))
def test_every_pair_of_values_meets(sizes):
    rows = covering(sizes)
    assert rows == covering(sizes)
    assert all(0 <= index < size for row in rows for index, size in zip(row, sizes, strict=True))
    for a, b in itertools.combinations(range(len(sizes)), 2):
        assert {(row[a], row[b]) for row in rows} == set(itertools.product(range(sizes[a]), range(sizes[b])))


@pytest.mark.parametrize(("sizes", "most"), [((), 1), ((7,), 7), ((11, 4), 44), ((11, 4, 3, 2), 50), ((3, 3, 3), 9)])
def test_rows_are_few(sizes, most):
    assert len(covering(sizes)) <= most


@pytest.fixture
def seen():
    return []


def fresh():
    """A test that fails for one pair of values, and is skipped for another value."""

    def case(seen, a, b, c):
        seen.append((a, b, c))
        if b == "y":
            pytest.skip("y is left out")
        assert (a, c) != (2, True)

    return case


ROWS = [("x", True), pytest.param("x", False, id="named"), ("y", False)]


@pytest.mark.parametrize("decorate", [together, pairwise])
def test_all_cases_run_and_each_failure_is_named(seen, decorate):
    marked = pytest.mark.parametrize("a", [1, 2, 3])(pytest.mark.parametrize(("b", "c"), ROWS)(fresh()))
    with pytest.raises(BaseExceptionGroup, match=r"1 of 9 cases fail: a=2, b=x, c=True") as failed:
        decorate(marked)(seen=seen)
    assert sorted(seen) == [(a, *rest) for a in (1, 2, 3) for rest in (("x", False), ("x", True), ("y", False))]
    assert failed.value.exceptions[0].__notes__ == ["The case is: a=2, b=x, c=True"]


@pairwise
@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("e", [3, 4], ids=["three", "four"])
def test_fixtures_stay_arguments(seen, d, e):
    seen.append((d, e))
    assert len(seen) <= 4


def test_one_case_can_be_run_by_its_name(seen, monkeypatch):
    monkeypatch.setenv("CASES", "a=2, named")
    marked = pytest.mark.parametrize("a", [1, 2, 3])(pytest.mark.parametrize(("b", "c"), ROWS)(fresh()))
    together(marked)(seen=seen)
    assert seen == [(2, "x", False)]
    monkeypatch.setenv("CASES", "a=4")
    with pytest.raises(pytest.skip.Exception, match="the name of no case matches CASES=a=4"):
        together(marked)(seen=seen)


def test_where_every_case_is_skipped_the_test_is(seen):
    with pytest.raises(pytest.skip.Exception, match="y is left out"):
        together(pytest.mark.parametrize(("b", "c"), ROWS[2:])(fresh()))(seen=seen, a=1)
