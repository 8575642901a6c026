"""Ranks of one machine: a group that cannot be connected is made anew, and what fails is told at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.testing import processes
from gradwire.testing.processes import RankFailedError, run_ranks


class _LosesConnections:
    """In the first ``times`` processes that unpickle it, a connection is lost while the group is made."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder, self.times = folder, times

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for count in range(self.times):
            try:
                (self.folder / str(count)).touch(exist_ok=False)
            except FileExistsError:
                continue
            dist.init_process_group = _lost
            return


def _lost(*_: Any, **__: Any) -> None:
    raise RuntimeError("connectFullMesh failed")


def _sum(rank: int, _: _LosesConnections) -> float:
    value = torch.tensor(float(rank + 1))
    dist.all_reduce(value)
    return value.item()


def test_a_group_that_loses_a_connection_is_made_anew(tmp_path: Path) -> None:
    assert run_ranks(2, _sum, _LosesConnections(tmp_path, 1)) == [3.0, 3.0]
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_group_that_can_never_be_connected_is_told_without_waiting_for_the_other_ranks(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(RankFailedError, match="connectFullMesh failed"):
        run_ranks(2, _sum, _LosesConnections(tmp_path, 1000), timeout=300.0)
    assert time.monotonic() - began < 100
    assert processes.CONNECTS <= len(list(tmp_path.iterdir())) <= 2 * processes.CONNECTS


def _die(rank: int, how: int) -> None:
    if rank == 1:
        signal.raise_signal(how)


def _leave(rank: int) -> None:
    os._exit(3)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT])
def test_a_rank_that_dies_is_told_with_its_signal_and_where_it_was(how: signal.Signals) -> None:
    with pytest.raises(RankFailedError, match=f"died without a word: {how.name}") as failed:
        run_ranks(2, _die, how)
    assert [*failed.value.errors] == [1]
    assert ("in _die" in failed.value.errors[1]) == (how == signal.SIGABRT)


def test_a_rank_that_exits_is_told_with_its_exit_code() -> None:
    with pytest.raises(RankFailedError, match="died without a word: exit code 3"):
        run_ranks(1, _leave)
