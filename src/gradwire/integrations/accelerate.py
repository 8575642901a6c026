"""Hugging Face Accelerate: the hook on what ``accelerator.prepare`` returned.

Law: Accelerate knows a closed list of hooks, builds their state itself and never saves it; so the hook is attached
after ``prepare``, and the residuals travel with ``save_state`` and ``load_state``, one file for each rank.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import require
from gradwire.integrations._files import load_rank, save_rank
from gradwire.integrations.ddp import GradwireState, compress_ddp
from gradwire.saved import OnResize

__all__ = ["compress"]


def compress(
    accelerator: Any, model: nn.Module, compressor: Any = "twobit", *, on_resize: OnResize = "error", **options: Any
) -> GradwireState:
    """Exchange the gradients of a prepared model compressed; ``accelerator.save_state`` saves the residuals too.

    All processes must call it. The accelerator's gradient scaler is followed by itself.

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
    wrapped = getattr(model, "_orig_mod", model)
    told = f"{type(model).__name__} of {accelerator.distributed_type}, {accelerator.num_processes} processes"
    ddp = isinstance(wrapped, DistributedDataParallel)
    require(ddp, "model", "what accelerator.prepare wrapped into DistributedDataParallel", told)
    hook = getattr(getattr(accelerator, "ddp_handler", None), "comm_hook", None)
    registered = hook is not None and getattr(hook, "value", hook) != "no"
    require(not registered, "comm_hook of DistributedDataParallelKwargs", "left out with gradwire", hook)
    state = compress_ddp(wrapped, compressor, **{"scaler": accelerator.scaler, **options})

    accelerator.register_save_state_pre_hook(lambda _models, _weights, folder: save_rank(state, folder))
    accelerator.register_load_state_pre_hook(lambda _models, folder: load_rank(state, folder, on_resize))
    return state
