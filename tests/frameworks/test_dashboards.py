"""The dashboards show what the exchange counted: read back from their own files."""

from __future__ import annotations

import json
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.engine.exchange import Exchange
from gradwire.engine.settings import compressor
from gradwire.errors import ConfigError
from gradwire.frontends.adapters._figures import COUNTED
from gradwire.frontends.ddp import compress_ddp
from gradwire.testing.processes import run_ranks
from tests.integrations.jobs import batch, model_of

STEPS, EVERY = 7, 2
PHASES = ("encode", "communicate", "decode")


def _train(rank: int, folder: str) -> dict[str, Any]:
    """Seven steps, the fourth with a NaN; rank 0 writes to both dashboards, and what it counted is returned."""
    model = DistributedDataParallel(model_of())
    state = compress_ddp(model, "topk", ratio=0.05)
    writers, close = _writers(state, folder) if rank == 0 else ([], [])
    readings, wrote = [state.metrics()], []
    for step in range(STEPS):
        x, y = batch(step, rank)
        model.zero_grad()
        nn.functional.cross_entropy(model(x * torch.nan if step == 3 else x), y).backward()
        readings.append(state.metrics())
        wrote.append([writer.step() for writer in writers])
    for each in close:
        each()
    return {"readings": readings, "wrote": wrote}


def without_tensorflow() -> None:
    """TensorBoard would import it for its file system alone, for seconds; this module's presence says not to."""
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))


def _writers(state: Any, folder: str) -> Any:
    without_tensorflow()
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    from gradwire.frontends.adapters.tensorboard import TensorBoardWriter
    from gradwire.frontends.adapters.wandb import WandbWriter

    quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    run, board = wandb.init(mode="offline", dir=folder, settings=quiet), SummaryWriter(folder)
    writers = [TensorBoardWriter(state, board, every=EVERY), WandbWriter(state, every=EVERY)]
    return writers, [board.close, run.finish]


Rows = dict[int, dict[str, float]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("logs")
    told: dict[str, Any] = run_ranks(2, _train, str(folder))[0]
    return {**told, "tensorboard": board_rows(folder), "wandb": run_rows(folder)}


def board_rows(folder: Path) -> Rows:
    without_tensorflow()
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    rows: Rows = {}
    (file,) = folder.glob("events.out.tfevents.*")
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            (number,) = value.tensor.float_val
            rows.setdefault(event.step, {})[value.tag.removeprefix("gradwire/")] = number
    return rows


def run_rows(folder: Path) -> Rows:
    from wandb.proto.wandb_internal_pb2 import Record

    rows: Rows = {}
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    for record in map(Record.FromString, logged(file.read_bytes())):
        row = {"".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        if row:
            named = {name.removeprefix("gradwire/"): value for name, value in row.items() if name[0] != "_"}
            rows[named.pop("step")] = named
    return rows


def logged(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log after a header of 7 bytes: in blocks of 32 KB, in parts where one is too short."""
    at, record = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield record
            record = b""


@pytest.mark.parametrize("dashboard", ["tensorboard", "wandb"])
def test_rows_are_what_was_counted(dashboard: str, trained: dict[str, Any]) -> None:
    readings, rows = trained["readings"], trained[dashboard]
    assert sorted(rows) == [2, 4, 6]
    for step, row in rows.items():
        before, now = readings[step - EVERY], readings[step]
        wanted = {f"{name}_per_step": (now[name] - before[name]) / EVERY for name in COUNTED}
        wanted["ratio"] = (now["dense_bytes"] - before["dense_bytes"]) / (now["bytes_sent"] - before["bytes_sent"])
        wanted |= {
            f"seconds_per_step/{phase}": (now[f"{phase}_seconds"] - before[f"{phase}_seconds"]) / EVERY
            for phase in PHASES
        }
        wanted |= {name: now[name] for name in ("residual_norm", "nonfinite_steps")}
        assert row == pytest.approx(wanted, rel=1e-6)
        assert row["ratio"] > 5
        assert row["residual_norm"] > 0
        assert row["nonfinite_steps"] == (0 if step == 2 else 1)


def test_only_every_nth_step_is_written(trained: dict[str, Any]) -> None:
    assert trained["wrote"] == [[step % EVERY == 0] * 2 for step in range(1, STEPS + 1)]


class Nowhere:
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...


def test_a_state_that_exchanges_nothing_is_said_and_every_is_checked(caplog: pytest.LogCaptureFixture) -> None:
    from gradwire.frontends.adapters.tensorboard import TensorBoardWriter

    idle = Exchange(compressor("twobit"))
    TensorBoardWriter(idle, Nowhere(), every=1).step()
    assert "no gradient was exchanged in the last 1 steps" in caplog.text
    with pytest.raises(ConfigError, match=r"every must be an integer >= 1, got 0"):
        TensorBoardWriter(idle, Nowhere(), every=0)
