"""Ranks that are one worker of a meeting, on meshes of one and two dimensions, over real Gloo processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from gradwire.errors import ConfigError, GroupError
from gradwire.optim.local._crew import ALONE, Crew
from gradwire.optim.local._islands import Island
from gradwire.testing.processes import run_ranks

pytestmark = pytest.mark.timeout(120)


def crew_of(mesh: DeviceMesh) -> Crew:
    model = fully_shard(nn.Linear(8, 8), mesh=mesh)
    island = Island(None)
    island.check(dict(model.named_parameters()))
    island.set_up(lambda: None, lambda: _Described(), {}, None, 1, 60.0)
    return island.crew


class _Described:
    """An exchange of which an island asks nothing but a description."""

    def describe(self, *_: Any, **facts: Any) -> str:
        return "{}"

    @property
    def channel(self) -> Any:
        return self

    rank, world = 0, 1


def said(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except (ConfigError, GroupError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def _asked(rank: int, shape: tuple[int, ...]) -> dict[str, Any]:
    if shape:
        names = ("replicate", "shard") if len(shape) == 2 else ("shard",)
        crew = crew_of(init_device_mesh("cpu", shape, mesh_dim_names=names))
    else:
        # A mesh whose first rank is the last of the group.
        crew = crew_of(DeviceMesh("cpu", [3, 1, 2, 0], mesh_dim_names=("shard",)))

    def fail() -> None:
        raise GroupError("nobody is there")

    def fail_here() -> str:
        if rank == 2:
            raise RuntimeError("no memory")
        return "well"

    return {
        "first": crew.first,
        "led": crew.lead(lambda: rank),
        "nested": crew.lead(lambda: crew.lead(lambda: rank)),
        "error": said(lambda: crew.lead(fail)),
        "together": said(lambda: crew.together(fail_here)),
        "anywhere": [crew.anywhere(rank == each) for each in range(-1, 4)],
        "total": crew.total(rank + 0.5),
        "alike": said(lambda: crew.compare("state", 7)),
        "differs": said(lambda: crew.compare("state", 7 + (rank == 1))),
        "place": crew.place,
    }


@pytest.mark.parametrize(
    ("shape", "first", "places"),
    [
        ((4,), 0, ["/0", "/1", "/2", "/3"]),
        ((2, 2), 0, ["/0.0", "/0.1", "/1.0", "/1.1"]),
        ((), 3, ["/3", "/1", "/2", "/0"]),
    ],
)
def test_all_hear_what_the_first_hears(shape: tuple[int, ...], first: int, places: list[str]) -> None:
    results = run_ranks(4, _asked, shape)
    for rank, told in enumerate(results):
        assert told["first"] == (rank == first)
        assert told["led"] == told["nested"] == first
        assert told["error"] == "GroupError: nobody is there"
        failed = "RuntimeError: no memory" if rank == 2 else "GroupError: another rank of this worker failed: its own"
        assert str(told["together"]).startswith(failed)
        assert told["anywhere"] == [False, True, True, True, True]
        assert told["total"] == 8.0
        assert told["alike"] is None
        differs = "ConfigError: state must be on all ranks of a worker that of the first, 7, got 8"
        assert str(told["differs"]).startswith(differs if rank == 1 else "GroupError: another rank of this worker")
    assert [told["place"] for told in results] == places


def test_a_worker_of_one_rank_asks_nobody() -> None:
    assert ALONE.lead(lambda: 5) == 5
    assert ALONE.together(lambda: 6) == 6
    assert ALONE.total(7.5) == 7.5
    assert [ALONE.anywhere(so) for so in (True, False)] == [True, False]
    with torch.device("meta"):
        assert not ALONE.anywhere(False)
