"""Hugging Face Accelerate: the hook on what ``accelerator.prepare`` returned.

Invariants:
    * The hook is attached after ``prepare``, on DDP or on what FSDP2 has sharded. Residuals travel with ``save_state``
      and ``load_state``, one file for each model and rank, numbered as Accelerate numbers the models that it saves.
    * From the import of this module on, ``load_state`` notes the folder, so that a state that is made afterwards
      continues with the files there.

Why:
    * Accelerate knows a closed list of hooks, builds their state itself and never saves it.
    * A checkpoint that was loaded before there was a state could not be given to it.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire._extras import needs
from gradwire.engine.checkpoint import OnResize, check_on_resize
from gradwire.errors import ConfigError, require
from gradwire.frontends.adapters._files import load_rank, save_rank
from gradwire.frontends.adapters._wrapped import Attached, attach, exchanged
from gradwire.frontends.setup import uncompiled
from gradwire.notices import log

with needs("huggingface"):
    from accelerate import Accelerator

__all__ = ["compress"]


def compress(
    accelerator: Any, model: nn.Module, compressor: Any = "auto", *, on_resize: OnResize = "error", **options: Any
) -> Attached:
    """Exchange the gradients of a prepared model compressed; ``accelerator.save_state`` saves the residuals too.

    Call it before ``accelerator.load_state`` or after: the residuals of the checkpoint are taken in either case. All
    processes must call it, for each model that is to be compressed. The accelerator's gradient scaler is followed
    by itself.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        model: model that ``accelerator.prepare`` returned, wrapped into DDP or sharded by FSDP2, compiled or not.
        compressor: "auto", which measures and decides within ``budget``; or a registered name, a compressor, or a
            recipe of ``from_params``.
        on_resize: treatment of a checkpoint of another number of processes, as in ``load_state_dict``.
        options: further arguments of ``compress_ddp``; for a model that FSDP2 has sharded, of ``compress_fsdp``.

    Returns:
        The hook's state; ``state.metrics()`` tells what went over the wire.

    Raises:
        ConfigError: a wrong option, a model that Accelerate did not wrap, or a hook that it registered already.
        GroupError: processes were given different options.
    """
    check_on_resize(on_resize)
    wrapped = uncompiled(model)
    told = f"{type(model).__name__} of {accelerator.distributed_type}, {accelerator.num_processes} processes"
    if not exchanged(wrapped):
        allowed = "what accelerator.prepare wrapped into DistributedDataParallel, or sharded with fsdp_version=2"
        raise ConfigError(f"model must be {allowed}, got {told!r}")
    hook = getattr(getattr(accelerator, "ddp_handler", None), "comm_hook", None)
    registered = hook is not None and getattr(hook, "value", hook) != "no"
    require(not registered, "comm_hook of DistributedDataParallelKwargs", "left out with gradwire", hook)
    state = attach(wrapped, compressor, {"scaler": accelerator.scaler, **options})

    def save(models: Sequence[nn.Module], _weights: Any, folder: str | os.PathLike[str]) -> None:
        for number in places(wrapped, models):
            save_rank(state, folder, model=number)

    def load(models: Sequence[nn.Module], folder: str | os.PathLike[str]) -> None:
        for number in places(wrapped, loaded_into(accelerator, models)):
            load_rank(state, folder, on_resize, model=number)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    loaded = _loaded.get(accelerator)
    number = loaded.number_of(wrapped) if loaded is not None else None
    _compressed.add(wrapped)
    if loaded is not None and number is not None:
        catch_up(state, loaded.folder, number, on_resize)
    return state


class Loaded:
    """A checkpoint that an accelerator has loaded.

    Args:
        models: models that the checkpoint was loaded into, as Accelerate lists them; those that had a state then have
            their residuals.
    """

    def __init__(self, models: Sequence[nn.Module], folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._models = {
            number: weakref.ref(model)
            for number, model in enumerate(models)
            if not any(is_of(model, each) for each in _compressed)
        }

    def number_of(self, model: nn.Module) -> int | None:
        """The number of a model; None if no checkpoint was loaded into it."""
        found = ((number, ref()) for number, ref in self._models.items())
        return next((number for number, each in found if each is not None and is_of(each, model)), None)


_loaded: weakref.WeakKeyDictionary[Any, Loaded] = weakref.WeakKeyDictionary()
_compressed: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def noting(load_state: Callable[..., None]) -> Callable[..., None]:
    """Make ``Accelerator.load_state`` note each checkpoint that it loads."""

    @functools.wraps(load_state)
    def load(self: Any, *arguments: Any, **options: Any) -> None:
        notes: list[Loaded] = []

        def note(models: Sequence[nn.Module], folder: str | os.PathLike[str]) -> None:
            notes.append(Loaded(loaded_into(self, models), folder))

        handle = self.register_load_state_pre_hook(note)
        try:
            load_state(self, *arguments, **options)
        finally:
            # The hook is for this call alone, also if it raised.
            handle.remove()
        # Only now: where ``load_state`` raised there is nothing that a later state should continue from.
        for each in notes:
            _loaded[self] = each

    return load


Accelerator.load_state = noting(Accelerator.load_state)


def catch_up(state: Attached, folder: Path, number: int, on_resize: OnResize) -> None:
    """Load the residuals of a checkpoint that was loaded before. All ranks must call it."""
    channel = state.exchange.channel
    there = any(folder.glob("gradwire*.pt"))
    anywhere = torch.tensor([there], dtype=torch.uint8, device=state.exchange.device)
    # Ranks of several machines may not see the same files, and all must make the call below, or none.
    channel.all_reduce(anywhere, "max")
    if bool(anywhere):
        load_rank(state, folder, on_resize, model=number)
    elif channel.rank == 0:
        log.warning("the checkpoint in %s was saved without gradwire: residuals start from zero", folder)


def loaded_into(accelerator: Any, models: Sequence[nn.Module]) -> Sequence[nn.Module]:
    """The models of a checkpoint in the order in which they were saved.

    Accelerate names none to the hooks of ``load_state`` where FSDP has loaded them before.
    """
    return models or accelerator._models


def is_of(listed: nn.Module, model: nn.Module) -> bool:
    """Return whether an entry of Accelerate's list is this model."""
    given = model.module if isinstance(model, DistributedDataParallel) else model
    return listed is given or uncompiled(listed) is model


def places(model: nn.Module, models: Sequence[nn.Module]) -> list[int]:
    """The numbers of the model among those that Accelerate saves; none, with a warning, if it does not save it."""
    # Accelerate lists what it was given; a model that was prepared a second time is listed as it came out.
    found = [number for number, each in enumerate(models) if is_of(each, model)][:1]
    if not found:
        log.warning(
            "residuals of a model are neither saved nor loaded, because Accelerate does not save the model: it "
            "was prepared by another Accelerator, or free_memory() has let go of it"
        )
    return found
