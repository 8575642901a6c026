"""Files with an exchange's state beside a framework's checkpoint, one for each rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from gradwire.engine.checkpoint import OnResize, merge_states
from gradwire.errors import require
from gradwire.frontends.state_units import ExchangeState
from gradwire.transport.handshake import agree

__all__ = ["load_rank", "save_rank"]


def save_rank(state: ExchangeState, folder: str | os.PathLike[str], step: int = 0, model: int = 0) -> Path:
    """Write this rank's file, and return where it is. All ranks should call it, between steps.

    Args:
        state: state that ``compress_ddp`` or another entry point returned.
        folder: the checkpoint's, the same on all ranks.
        step: number that ``load_rank`` must be given again, such as the framework's own step.
        model: number of the model among those of one checkpoint.
    """
    # Any rank may be the first, and before the framework's own checkpoint.
    Path(folder).mkdir(parents=True, exist_ok=True)
    file = Path(folder, name_of(state.exchange.channel.rank, model))
    torch.save({"state": state.state_dict(), "told": step}, file)
    return file


def load_rank(
    state: ExchangeState, folder: str | os.PathLike[str], on_resize: OnResize = "error", step: int = 0, model: int = 0
) -> None:
    """Continue from the files of ``save_rank``. All ranks must call it; an error on one of them is raised on all.

    Args:
        state: state of the model that goes on.
        folder: the checkpoint's.
        on_resize: treatment of another number of ranks, as in ``load_state_dict``; "reshard" reads the files of all
            ranks, "reset" that of rank 0.
        step: number given to ``save_rank``.
        model: number of the model that was given to ``save_rank``.

    Raises:
        ConfigError: a file is not there, or is of another step.
    """
    exchange, kept = state.exchange, []

    def describe() -> str:
        kept.append(read(Path(folder), exchange.channel.rank, on_resize, step, model))
        return "{}"

    # No rank may read a file that another rank is still writing.
    agree(exchange.channel, "load_rank", lambda: "{}", exchange.device)
    agree(exchange.channel, "read", describe, exchange.device)
    state.load_state_dict(kept[0], on_resize)


def read(folder: Path, rank: int, on_resize: OnResize, step: int, model: int) -> dict[str, Any]:
    """Read the state of one rank, or the merged states of all."""
    first = read_one(folder / name_of(rank if on_resize == "error" else 0, model), step)
    # The folder may have files of an earlier run on more ranks: how many there are is not how many were saved.
    rest = range(1, first["world"]) if on_resize == "reshard" else ()
    return merge_states([first, *(read_one(folder / name_of(each, model), step) for each in rest)])


def read_one(file: Path, step: int) -> dict[str, Any]:
    require(file.is_file(), "checkpoint", f"a folder with {file.name}, which is written beside it", str(file.parent))
    saved = torch.load(file, map_location="cpu", weights_only=True)
    require(saved["told"] == step, f"step of {file.name}", str(step), saved["told"])
    state: dict[str, Any] = saved["state"]
    return state


def name_of(rank: int, model: int) -> str:
    return f"gradwire-{rank}.pt" if model == 0 else f"gradwire_{model}-{rank}.pt"
