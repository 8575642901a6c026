"""MovieLens' table, written by the generator and by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gradwire.errors import ConfigError
from gradwire_lab.experiments.data import interactions, load, movielens
from gradwire_lab.experiments.tasks.recommendation import Recommendation

HEADER = "userId,movieId,rating,timestamp\n"


def write(folder: Path, rows: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "ratings.csv").write_text(HEADER + "".join(rows))
    return folder


def ratings(data: interactions.Interactions) -> Iterator[str]:
    """The rows of generated choices, with the position among a user's choices as the time."""
    for user in range(data.users):
        items = [*data.train[data.train[:, 0] == user, 1].tolist(), int(data.held_out[user])]
        yield from (f"{user + 1},{item + 1},4.0,{when}\n" for when, item in enumerate(items))


def test_what_was_generated_comes_back(tmp_path: Path) -> None:
    data = interactions.generate(users=50, items=300)
    found = load(write(tmp_path, list(ratings(data))), ("movielens",))
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
        (["1,2,3.0,4\n", "nan,3,4.0,1\n"], r"'nan,3,4.0,1' in line 3"),
        (["inf,3,4.0,1\n"], r"'inf,3,4.0,1' in line 2"),
        (["1,inf,4.0,1\n"], r"'1,inf,4.0,1' in line 2"),
        (["1e14,3,4.0,1\n"], r"'1e14,3,4.0,1' in line 2"),
        (["1,2147483648,4.0,1\n"], r"'1,2147483648,4.0,1' in line 2"),
        (["1.5,3,4.0,1\n"], r"'1.5,3,4.0,1' in line 2"),
        (["1,3.5,4.0,1\n"], r"'1,3.5,4.0,1' in line 2"),
        (["1,30,nan,1\n"], r"'1,30,nan,1' in line 2"),
        (["1,30,4.0,nan\n"], r"'1,30,4.0,nan' in line 2"),
        (["1,30,4.0,1e300\n"], r"'1,30,4.0,1e300' in line 2"),
        (["1,2,3.0,4\n"], "1 ratings of users with fewer"),
        ([], "no row"),
    ],
)
def test_a_wrong_row_is_quoted(tmp_path: Path, rows: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"ratings\.csv must be .*, found {said}"):
        movielens.load(write(tmp_path, rows))


def test_ids_may_be_large_and_times_before_1970(tmp_path: Path) -> None:
    rows = [f"2147483647,{2147483647 - film},3.5,{film - 30}\n" for film in range(20)]
    data = movielens.load(write(tmp_path, rows))
    assert (data.users, data.items, data.held_out.tolist()) == (1, 20, [19])


def test_a_task_needs_films_that_nobody_chose(tmp_path: Path) -> None:
    def rows(users: int, films: int) -> list[str]:
        own = [(user, film) for user in range(users) for film in range(20)]
        others = [(users + film // 20, film) for film in range(films)]
        return [f"{user + 1},{film + 1},4.0,{when}\n" for when, (user, film) in enumerate([*own, *others])]

    write(tmp_path / "few", rows(40, 100))
    said = "movielens must leave each user 100 items .* found 80 for a user who chose 20 of 100"
    with pytest.raises(ConfigError, match=said):
        Recommendation(folder=tmp_path / "few")
    write(tmp_path / "enough", rows(40, 120))
    assert Recommendation(folder=tmp_path / "enough").contest().shape == (46, 101)


def test_a_wrong_header_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("movieId,title\n1,Toy Story\n")
    with pytest.raises(ConfigError, match=r"must be a table that begins with 'userId,.*', found 'movieId,title'"):
        load(tmp_path, ("movielens",))
