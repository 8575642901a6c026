"""MovieLens' table, written by the generator and by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradwire.bench.data import interactions, load, movielens
from gradwire.bench.tasks.recommendation import Recommendation
from gradwire.errors import ConfigError

HEADER = "userId,movieId,rating,timestamp\n"


def write(folder: Path, rows: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "ratings.csv").write_text(HEADER + "".join(rows))
    return folder


def test_what_was_generated_comes_back(tmp_path: Path) -> None:
    data = interactions.generate(users=50, items=60)
    interactions.write(data, tmp_path)
    found = load(tmp_path, ("movielens",))
    assert (found.name, found.users, len(found.train)) == ("movielens", 50, len(data.train))
    places = {int(item): place for place, item in enumerate(appearance(data))}
    renamed = torch.tensor([[user, places[item]] for user, item in data.train.tolist()])
    assert torch.equal(found.train, renamed)
    assert found.held_out.tolist() == [places[item] for item in data.held_out.tolist()]
    task = Recommendation(folder=tmp_path)
    assert (task.model_name, task.sizes()) == ("ncf", {"users": 50, "items": found.items})


def appearance(data: interactions.Interactions) -> list[int]:
    """The items in the order in which the table names them."""
    rows = [(user, when, item) for when, (user, item) in enumerate(data.train.tolist())]
    rows += [(user, len(rows), item) for user, item in enumerate(data.held_out.tolist())]
    return list(dict.fromkeys(item for _, _, item in sorted(rows)))


def test_rare_users_are_dropped_and_the_latest_choice_is_held_out(tmp_path: Path) -> None:
    rows = [f"7,{100 + film},3.5,{1000 - film}\n" for film in range(20)]
    rows += ["8,500,4.0,5\n", *(f"9,{100 + film},0.5,{film}\n" for film in range(20)), "9,100,5.0,99\n"]
    data = movielens.load(write(tmp_path, rows))
    assert (data.users, data.items) == (2, 20)
    assert data.held_out.tolist() == [0, 19]
    assert len(data.train) == 2 * 19
    assert data.train[:2].tolist() == [[0, 19], [0, 18]]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["1,2,3.0,4\n", "1,2,3\n"], r"'1,2,3\\n' in line 3"),
        (["1,2,3.0,4\n", "1,two,3.0,5\n"], r"'1,two,3.0,5\\n' in line 3"),
        (["1,2,3.0,4\n", "1,3,3.0,12"], r"'1,3,3.0,12' in line 3"),
        (["1,2,9.0,4\n"], r"'1,2,9.0,4' in line 2"),
        (["0,2,3.0,4\n"], r"'0,2,3.0,4' in line 2"),
        (["1,2,3.0,4\n"], "1 ratings of users with fewer"),
        ([], "no row"),
    ],
)
def test_a_wrong_row_is_quoted(tmp_path: Path, rows: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"ratings\.csv must be .*, found {said}"):
        movielens.load(write(tmp_path, rows))


def test_a_wrong_header_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("movieId,title\n1,Toy Story\n")
    with pytest.raises(ConfigError, match=r"must be a table that begins with 'userId,.*', found 'movieId,title'"):
        load(tmp_path, ("movielens",))
