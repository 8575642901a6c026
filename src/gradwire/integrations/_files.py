"""A state beside a framework's checkpoint: one file for each rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from gradwire.comm._agree import agree
from gradwire.errors import require
from gradwire.integrations._state import ExchangeState
from gradwire.saved import OnResize, merge_states

__all__ = ["load_rank", "save_rank"]


def save_rank(state: ExchangeState, folder: str | os.PathLike[str], told: int = 0) -> None:
    """Write this rank's file. All ranks should call it, between steps.

    Args:
        state: what ``compress_ddp`` and the others return.
        folder: the checkpoint's, the same on all ranks.
        told: a number that ``load_rank`` must be given again, such as the framework's own step.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save({"state": state.state_dict(), "told": told}, Path(folder, name_of(state.exchange.channel.rank)))


def load_rank(
    state: ExchangeState, folder: str | os.PathLike[str], on_resize: OnResize = "error", told: int = 0
) -> None:
    """Continue from the files of ``save_rank``. All ranks must call it; what one of them misses, all of them hear of.

    Args:
        state: of the model that goes on.
        folder: the checkpoint's.
        on_resize: as in ``load_state_dict``; "reshard" reads the files of all ranks, "reset" that of rank 0.
        told: as given to ``save_rank``.

    Raises:
        ConfigError: a file is not there, or is of another step.
    """
    exchange, kept = state.exchange, []

    def describe() -> str:
        kept.append(read(Path(folder), exchange.channel.rank, on_resize, told))
        return "{}"

    agree(exchange.channel, describe, exchange.device)
    state.load_state_dict(kept[0], on_resize)


def read(folder: Path, rank: int, on_resize: OnResize, told: int) -> dict[str, Any]:
    """The state of one rank, or the merged states of all."""
    own = folder / name_of(0 if on_resize == "reset" else rank)
    files = sorted(folder.glob(name_of("*"))) if on_resize == "reshard" else [own]
    present = bool(files) and all(file.is_file() for file in files)
    require(present, "checkpoint", f"a folder with {own.name}, which is written beside it", str(folder))
    saved = [torch.load(file, map_location="cpu", weights_only=True) for file in files]
    for each in saved:
        require(each["told"] == told, f"step of {own.name}", str(told), each["told"])
    return merge_states(each["state"] for each in saved)


def name_of(rank: int | str) -> str:
    return f"gradwire-{rank}.pt"
