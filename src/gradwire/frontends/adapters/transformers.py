"""Callback for Hugging Face Transformers: the hook under a ``Trainer``.

Why:
    The Trainer wraps the model when ``train`` begins, and tells callbacks neither the wrapped model nor the checkpoint
    from which it resumes. So the callback holds the trainer, and is given the checkpoint as ``train`` is, for one
    ``train``. Callbacks do not learn of a checkpoint that is made on SIGTERM either, nor of the folder of a trial. So
    the callback wraps the function of the Trainer that makes every checkpoint.

Failure modes:
    On SIGTERM the Trainer may save between a backward pass and the optimizer's step. A run that resumes makes that step
    again, and adds its gradients to what was not sent of them the first time. Where the ranks saved at different places
    of a step, loading is an error on all of them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gradwire._extras import needs
from gradwire.engine.checkpoint import OnResize, check_on_resize
from gradwire.errors import ConfigError, require
from gradwire.frontends.adapters._files import load_rank, save_rank
from gradwire.frontends.adapters._wrapped import Attached, attach, exchanged
from gradwire.frontends.setup import uncompiled

with needs("huggingface"):
    from accelerate.utils import broadcast_object_list
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

__all__ = ["GradwireTrainerCallback", "compress_trainer"]


class GradwireTrainerCallback(TrainerCallback):
    """A callback that attaches the hook when training begins, and keeps the residuals beside each checkpoint.

    Made by ``compress_trainer``. Before a further ``train`` that resumes, set ``resume_from_checkpoint``.
    """

    def __init__(
        self,
        trainer: Trainer,
        compressor: Any,
        resume_from_checkpoint: str | os.PathLike[str] | bool | None,
        on_resize: OnResize,
        options: dict[str, Any],
    ) -> None:
        self.trainer, self.compressor, self.options = trainer, compressor, options
        self.resume_from_checkpoint = resume_from_checkpoint
        check_on_resize(on_resize)
        self.on_resize: OnResize = on_resize
        self.state: Attached | None = None
        self._model: nn.Module | None = None
        self._files: list[Path] = []
        self._deleted: list[int] = []
        trainer._save_checkpoint = partial(self._save, trainer._save_checkpoint)

    def metrics(self) -> dict[str, Any]:
        """Return the bytes that went over the wire, as the dashboards' writers ask for it.

        Raises:
            ConfigError: training has not begun.
        """
        return self._attached().metrics()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Attach the hook, now that the model is wrapped, unless an earlier ``train`` did, and continue from the
        checkpoint.
        """
        model = uncompiled(self.trainer.model_wrapped)
        ways = "wrapped into DistributedDataParallel, or sharded by FSDP2"
        allowed = f"{ways}: start with torchrun on 2 or more processes"
        require(exchanged(model), "model", allowed, type(model).__name__)
        self._check(state.global_step)
        if model is not self._model:
            self._attach(model)
        if state.global_step > 0:
            self._go_on(args.output_dir, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Wait for the files of all ranks, and delete this rank's files of checkpoints that the Trainer has deleted."""
        if self.state is not None and not args.save_only_model:
            # The Trainer may delete a checkpoint as soon as it was saved: not while somebody still writes into it.
            self.trainer.accelerator.wait_for_everyone()
            if args.save_total_limit is not None:
                self._delete_old()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep the residuals for another ``train``, which continues with them or is given a checkpoint of its own."""
        self.resume_from_checkpoint = None

    def _save(self, save_checkpoint: Callable[..., None], model: Any, trial: Any, *more: Any, **options: Any) -> None:
        """Make a checkpoint, and write this rank's file beside it, unless it cannot be resumed from anyway."""
        trainer = self.trainer
        if self not in trainer.callback_handler.callbacks:
            # It was removed, and nobody would wait for its files or delete them.
            save_checkpoint(model, trial, *more, **options)
            return
        limited = trainer.args.save_total_limit is not None
        before = [number for number, file in enumerate(self._files) if file.exists()] if limited else []
        save_checkpoint(model, trial, *more, **options)
        # The Trainer deletes old checkpoints where it saves a new one. A file that goes at another time was moved by
        # somebody who may want to resume from it.
        self._deleted = [number for number in before if not self._files[number].exists()]
        if self.state is not None and not trainer.args.save_only_model:
            step = trainer.state.global_step
            folder = Path(trainer._get_output_dir(trial), f"{PREFIX_CHECKPOINT_DIR}-{step}")
            file = save_rank(self.state, folder, step)
            if limited:
                self._files.append(file)

    def _delete_old(self) -> None:
        """Delete this rank's files of checkpoints that the first process has just deleted.

        The Trainer deletes checkpoints only where it saves, and other hosts may have file systems of their own.
        """
        # All ranks wrote files for the same checkpoints, so a number is the same checkpoint on all of them.
        deleted = broadcast_object_list([self._deleted])[0]
        for number in reversed(deleted):
            self._files.pop(number).unlink(missing_ok=True)

    def _attached(self) -> Attached:
        if self.state is None:
            raise ConfigError("the callback of compress_trainer has no state before trainer.train has begun")
        return self.state

    def _check(self, step: int) -> None:
        """Refuse a checkpoint that only the Trainer or only gradwire has."""
        given = self.resume_from_checkpoint
        told = "what trainer.train is given, or False for residuals of zero"
        require((given is not None) == (step > 0) or given is False, "resume_from_checkpoint", told, given)

    def _attach(self, model: nn.Module) -> None:
        if self.state is not None:
            self.state.close()
        scaler = self.trainer.accelerator.scaler
        self.state = attach(model, self.compressor, {"scaler": scaler, **self.options})
        self._model = model

    def _go_on(self, output: str, step: int) -> None:
        """Load the residuals of the checkpoint that the Trainer has loaded."""
        given, attached = self.resume_from_checkpoint, self._attached()
        if given is False:
            # Residuals of an earlier train() do not belong to the parameters of the checkpoint.
            attached.load_state_dict({**attached.state_dict(), "world": 0, "ranks": {}}, on_resize="reset")
            return
        folder = get_last_checkpoint(output) if given is True else given
        assert folder is not None  # The Trainer has gone on from it.
        load_rank(attached, folder, self.on_resize, step)


def compress_trainer(
    trainer: Trainer,
    compressor: Any = "auto",
    *,
    resume_from_checkpoint: str | os.PathLike[str] | bool | None = None,
    on_resize: OnResize = "error",
    **options: Any,
) -> GradwireTrainerCallback:
    """Exchange the gradients of ``trainer.train()`` compressed. All processes must call it, before ``train``.

    Args:
        trainer: a ``transformers.Trainer``, or one of a class made from it.
        compressor: "auto", which measures and decides within ``budget``; or a registered name, a compressor, or a
            recipe of ``from_params``.
        resume_from_checkpoint: the same as for ``trainer.train``; False goes on from its checkpoint, but with residuals
            of zero. It is for one ``train``: set ``callback.resume_from_checkpoint`` before another that resumes.
        on_resize: treatment of a checkpoint of another number of processes, as in ``load_state_dict``.
        options: further arguments of ``compress_ddp``; under ``fsdp`` of ``compress_fsdp``.

    Returns:
        The callback that was added; ``callback.metrics()`` tells what went over the wire.

    Raises:
        ConfigError: an option is wrong, the model is not wrapped, or a checkpoint lacks the residuals of a process;
            raised when training begins.
        GroupError: processes were given different options; raised when training begins.
    """
    callback = GradwireTrainerCallback(trainer, compressor, resume_from_checkpoint, on_resize, options)
    trainer.add_callback(callback)
    return callback


def __getattr__(name: str) -> Any:
    """Lead the name that the callback had before to the one it has, until version 0.2."""
    if name != "GradwireCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is {__name__}.GradwireTrainerCallback now", DeprecationWarning, stacklevel=2)
    return GradwireTrainerCallback
