"""MovieLens-20M: ratings of films, read from its table."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from gradwire_lab.experiments.data.base import Interactions, refuse

__all__ = ["holds", "load"]

LOOKS = "ratings.csv"

_HEADER = "userId,movieId,rating,timestamp"
_LEAST = 20
_IDS = 2**31
_TIMES = 2**53
"""Bound up to which a number that is read as a float is exact."""

_ROWS = 1_000_000

Column = npt.NDArray[np.int64]


def holds(folder: Path) -> bool:
    """Return whether the table is in this folder, or in the one that its archive makes."""
    return _table(folder).is_file()


def load(folder: Path) -> Interactions:
    """Load the ratings, each of which counts as a choice whatever its stars; each user's latest one is held out.

    Users with fewer than 20 ratings are dropped, users and films are numbered in the order of their first appearance,
    and a film that a user rated twice counts once.

    Raises:
        ConfigError: the header or a row is not of the form, a number in it cannot be, or nobody has 20 ratings.

    Source:
        F. Harper, J. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 2015.
    """
    path = _table(folder)
    user, item, when = _columns(path)
    each = _numbered(user)
    keep = np.bincount(each)[each] >= _LEAST
    if not keep.any():
        refuse(path, f"{len(user)} ratings of users with fewer", f"a table in which users have {_LEAST} ratings")
    user, item, when = _numbered(user[keep]), _numbered(item[keep]), when[keep]
    _, first = np.unique(user * (item.max() + 1) + item, return_index=True)
    user, item, when = user[first], item[first], when[first]
    order = np.lexsort((np.arange(len(when)), when, user))
    user, item = user[order], item[order]
    last = np.append(user[1:] != user[:-1], True)
    train = torch.from_numpy(np.stack([user[~last], item[~last]], 1))
    held_out = torch.from_numpy(item[last])
    return Interactions("movielens", len(held_out), int(item.max()) + 1, train, held_out)


def _table(folder: Path) -> Path:
    below = folder / "ml-20m" / "ratings.csv"
    return below if below.is_file() else folder / "ratings.csv"


def _columns(path: Path) -> tuple[Column, Column, Column]:
    """Read users, films and seconds in pieces, because the table has half a gigabyte of text."""
    pieces: list[tuple[Column, Column, Column]] = []
    with path.open(encoding="ascii", errors="replace", newline="") as file:
        header = file.readline().strip()
        if header != _HEADER:
            refuse(path, repr(header[:80]), f"a table that begins with {_HEADER!r}")
        done = 1
        while lines := file.readlines(_ROWS * 24):
            pieces.append(_piece(path, lines, done))
            done += len(lines)
    if not pieces:
        refuse(path, "no row", "a table with a row for each rating")
    user, item, when = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return user, item, when


def _piece(path: Path, lines: list[str], done: int) -> tuple[Column, Column, Column]:
    try:
        table = np.loadtxt(io.StringIO("".join(lines)), delimiter=",", ndmin=2, comments=None)
    except ValueError:
        table = np.empty((0, 0))
    if table.shape != (len(lines), 4) or not lines[-1].endswith("\n"):
        number = next((n for n, line in enumerate(lines) if not _is_row(line)), len(lines) - 1)
        refuse(
            path, f"{lines[number][:80]!r} in line {done + number + 1}", f"rows of {_HEADER}, each with its line end"
        )
    wrong = np.flatnonzero(~_good(table))
    if len(wrong):
        line = lines[wrong[0]].strip()
        refuse(
            path,
            f"{line[:80]!r} in line {done + wrong[0] + 1}",
            f"ratings of 0.5 to 5 at a time in seconds, of films and by users with whole numbers from 1 to {_IDS - 1}",
        )
    user, item, when = (table[:, place].astype(np.int64) for place in (0, 1, 3))
    return user, item, when


def _good(table: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Select the valid rows; every comparison is one that NaN fails."""
    ids, stars, when = table[:, :2], table[:, 2], table[:, 3]
    known = ((ids >= 1) & (ids < _IDS) & (ids == np.floor(ids))).all(1)
    good: npt.NDArray[np.bool_] = known & (stars >= 0.5) & (stars <= 5) & (np.abs(when) < _TIMES)
    return good


def _is_row(line: str) -> bool:
    try:
        return len([float(part) for part in line.split(",")]) == 4 and line.endswith("\n")
    except ValueError:
        return False


def _numbered(values: Column) -> Column:
    """Number values from 0 on in the order of first appearance."""
    _, first, places = np.unique(values, return_index=True, return_inverse=True)
    ranks = np.empty(len(first), np.int64)
    ranks[np.argsort(first)] = np.arange(len(first))
    numbered: Column = ranks[places]
    return numbered
