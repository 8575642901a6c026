"""Hugging Face Accelerate: the hook on what ``accelerator.prepare`` returned.

Law: Accelerate knows a closed list of hooks, builds their state itself and never saves it; so the hook is attached
after ``prepare``, and the residuals travel with ``save_state`` and ``load_state``, one file for each model and rank,
numbered as Accelerate numbers the models that it saves.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import ConfigError, require
from gradwire.integrations._files import load_rank, save_rank
from gradwire.integrations._setup import uncompiled
from gradwire.integrations.ddp import GradwireState, compress_ddp
from gradwire.saved import OnResize

__all__ = ["compress"]

log = logging.getLogger("gradwire")


def compress(
    accelerator: Any, model: nn.Module, compressor: Any = "twobit", *, on_resize: OnResize = "error", **options: Any
) -> GradwireState:
    """Exchange the gradients of a prepared model compressed; ``accelerator.save_state`` saves the residuals too.

    All processes must call it, for each model that is to be compressed. The accelerator's gradient scaler is followed
    by itself.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        model: what ``accelerator.prepare`` returned, compiled or not.
        compressor: a registered name, a compressor, or a recipe of ``from_params``.
        on_resize: for a checkpoint of another number of processes, as in ``load_state_dict``.
        options: as for ``compress_ddp``.

    Returns:
        The hook's state; ``state.metrics()`` tells what went over the wire.

    Raises:
        ConfigError: a wrong option, a model that Accelerate did not wrap, or a hook that it registered already.
        GroupError: processes were given different options.
    """
    wrapped = uncompiled(model)
    told = f"{type(model).__name__} of {accelerator.distributed_type}, {accelerator.num_processes} processes"
    if not isinstance(wrapped, DistributedDataParallel):
        raise ConfigError(f"model must be what accelerator.prepare wrapped into DistributedDataParallel, got {told!r}")
    hook = getattr(getattr(accelerator, "ddp_handler", None), "comm_hook", None)
    registered = hook is not None and getattr(hook, "value", hook) != "no"
    require(not registered, "comm_hook of DistributedDataParallelKwargs", "left out with gradwire", hook)
    state = compress_ddp(wrapped, compressor, **{"scaler": accelerator.scaler, **options})

    def save(models: Sequence[nn.Module], _weights: Any, folder: str | os.PathLike[str]) -> None:
        for number in places(wrapped, models):
            save_rank(state, folder, model=number)

    def load(models: Sequence[nn.Module], folder: str | os.PathLike[str]) -> None:
        for number in places(wrapped, models):
            load_rank(state, folder, on_resize, model=number)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return state


def places(model: DistributedDataParallel, models: Sequence[nn.Module]) -> list[int]:
    """The number of the model among those that Accelerate saves; none, with a warning, if it does not save it."""
    # Accelerate lists what it was given; a model that was prepared a second time is listed as it came out.
    found = [number for number, each in enumerate(models) if each is model.module or uncompiled(each) is model][:1]
    if not found:
        log.warning("residuals of a model are neither saved nor loaded, because Accelerate does not save the model: it "
                    "was prepared by another Accelerator, or free_memory() has let go of it")  # fmt: skip
    return found
