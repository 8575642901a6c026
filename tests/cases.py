"""Many cases in one test: rows in which all pairs of values meet, and failures that name their case.

A test that is parametrized over several things runs for every combination. Defects that only one combination of three
values shows are rare, while their number is the product of all; so ``@pairwise`` lets every *pair* of values meet at
least once. ``@together`` keeps every combination. Both stand above the ``parametrize`` marks and make one test of
them: collecting a test, and reporting it, costs more than running a small case.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Column = list[tuple[str, dict[str, Any]]]
"""The choices of one ``parametrize`` mark: the name of each, and its arguments."""


def covering(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Choose rows with an index below ``sizes[c]`` in column c, so that every two values of two columns meet in a row.

    Greedy: a row begins with a pair that is still missing, and each further column takes the value that meets most
    values for the first time. The same sizes give the same rows.
    """
    if len(sizes) < 2:
        return list(itertools.product(*map(range, sizes)))
    values = [[(column, value) for value in range(size)] for column, size in enumerate(sizes)]
    missing = dict.fromkeys(pair for a, b in itertools.combinations(values, 2) for pair in itertools.product(a, b))
    rows: list[tuple[int, ...]] = []
    while missing:
        row = dict(next(iter(missing)))
        for column, size in enumerate(sizes):
            if column not in row:
                turn = len(rows)
                row[column] = max(
                    range(size),
                    key=lambda value: (_met(missing, row, (column, value)), -((value - turn) % size)),
                )
        rows.append(tuple(row[column] for column in range(len(sizes))))
        for pair in itertools.combinations(enumerate(rows[-1]), 2):
            missing.pop(pair, None)
    return rows


def _met(missing: dict[Any, None], row: dict[int, int], new: tuple[int, int]) -> int:
    """Count the missing pairs that ``new`` makes with what ``row`` has."""
    return sum(tuple(sorted((new, old))) in missing for old in row.items())


def run_all(cases: Iterable[tuple[str, Callable[[], None]]]) -> None:
    """Run all named cases, whichever fail, and then raise what failed, with the names; skip if every case was.

    With the environment variable ``CASES``, a regular expression, only those of which it finds the name.
    """
    wanted = os.environ.get("CASES", "")
    names: list[str] = []
    failed: list[BaseException] = []
    skipped: list[pytest.skip.Exception] = []
    count = 0
    for name, case in cases:
        if not re.search(wanted, name):
            continue
        count += 1
        try:
            case()
        except pytest.skip.Exception as reason:
            skipped.append(reason)
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"The case is: {name}")
            names.append(name)
            failed.append(error)
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {count} cases fail: {'; '.join(names)}", failed)
    if count and len(skipped) == count:
        raise skipped[0]
    if wanted and not count:
        pytest.skip(f"the name of no case matches CASES={wanted}")


def together(test: Callable[..., None]) -> Callable[..., None]:
    """Run all combinations of the parametrized arguments as one test."""
    return _merged(test, lambda sizes: itertools.product(*map(range, sizes)))


def pairwise(test: Callable[..., None]) -> Callable[..., None]:
    """Run as one test so many combinations of the parametrized arguments that every pair of values is among them."""
    return _merged(test, covering)


def _merged(
    test: Callable[..., None], choose: Callable[[Sequence[int]], Iterable[tuple[int, ...]]]
) -> Callable[..., None]:
    marks = getattr(test, "pytestmark", [])
    columns = [_column(*mark.args, **mark.kwargs) for mark in reversed(marks) if mark.name == "parametrize"]
    arguments = {argument for column in columns for _, given in column for argument in given}
    signature = inspect.signature(test)

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        rows = choose([len(column) for column in columns])
        chosen = ([column[index] for column, index in zip(columns, row, strict=True)] for row in rows)
        run_all(
            (", ".join(name for name, _ in row), functools.partial(test, **fixtures, **_united(row))) for row in chosen
        )

    run.pytestmark = [mark for mark in marks if mark.name != "parametrize"]  # type: ignore[attr-defined]
    kept = [each for each in signature.parameters.values() if each.name not in arguments]
    run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return run


def _united(chosen: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    return {key: value for _, given in chosen for key, value in given.items()}


def _column(argnames: str | Sequence[str], argvalues: Iterable[Any], ids: Any = None) -> Column:
    keys = [name.strip() for name in argnames.split(",")] if isinstance(argnames, str) else list(argnames)
    single = isinstance(argnames, str) and len(keys) == 1
    given_ids = list(ids) if ids is not None and not callable(ids) else None
    column: Column = []
    for index, value in enumerate(argvalues):
        name = given_ids[index] if given_ids else None
        if isinstance(value, type(pytest.param())):
            assert not value.marks, "marks of a single case have no meaning in a test of many"
            name, values = value.id or name, value.values
        else:
            values = (value,) if single else tuple(value)
        if name is None and callable(ids):
            name = "-".join(str(ids(each)) for each in values)
        column.append((name or ", ".join(map(_shown, keys, values)), dict(zip(keys, values, strict=True))))
    return column


def _shown(key: str, value: object) -> str:
    text = value.__name__ if inspect.isroutine(value) or inspect.isclass(value) else str(value)
    return f"{key}={text if len(text) <= 80 else text[:80] + '...'}"
