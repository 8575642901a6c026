"""Callback for PyTorch Lightning.

Invariants:
    * The hook is attached in ``on_fit_start``: Lightning wraps the model in ``strategy.setup`` and trains right after
      that place.
    * What callbacks keep is written by rank 0 alone, so it holds the residuals of all ranks.
    * A strategy that shards loads a checkpoint after ``on_fit_start``, and all others before it. Any of them may be
      given one in the middle of a fit, as by ``LearningRateFinder``.

Why:
    Lightning's own ``ddp_comm_hook`` is left out silently wherever gradients are not on CUDA; this hook runs on any
    device.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from torch import nn

from gradwire._extras import needs
from gradwire.engine.checkpoint import OnResize, check_on_resize
from gradwire.errors import ConfigError, require
from gradwire.frontends.adapters._figures import Measured, MetricsWriter
from gradwire.frontends.adapters._gather import gathered
from gradwire.frontends.adapters._wrapped import Attached, attach, exchanged
from gradwire.notices import log

with needs("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

__all__ = ["GradwireCallback"]


KEY = "gradwire"


class GradwireCallback(Callback):
    """A callback that compresses the gradients of ``trainer.fit``, and keeps the residuals in Lightning's checkpoints.

    The strategy must be DDP (``"ddp"``, ``"ddp_spawn"``, a ``DDPStrategy`` without a hook of its own), or a
    ``ModelParallelStrategy`` whose module calls ``fully_shard`` in ``configure_model``. The precision plugin's scaler
    is followed by itself. A second ``fit`` goes on with the residuals of the first, in strategies whose processes
    outlive it.

    Lightning's loggers get the figures of ``TensorBoardWriter`` below ``gradwire/``, every ``log_every_n_steps``.

    Args:
        compressor: "auto", which measures and decides within ``budget``; or a registered name, a compressor, or a
            recipe of ``from_params``.
        on_resize: treatment of a checkpoint of another number of ranks, as in ``load_state_dict``.
        options: further arguments of ``compress_ddp``; for a module that is sharded, of ``compress_fsdp``.

    Raises:
        ConfigError: an option is wrong, the hook would not run under the strategy, or there is a second callback of
            this kind; raised when ``fit`` begins.
        GroupError: ranks were given different options; raised when ``fit`` begins.
    """

    def __init__(self, compressor: Any = "auto", *, on_resize: OnResize = "error", **options: Any) -> None:
        super().__init__()
        self.compressor, self.options = compressor, options
        check_on_resize(on_resize)
        self.on_resize: OnResize = on_resize
        self.state: Attached | None = None
        self._model: weakref.ref[nn.Module] | None = None
        self._waiting: dict[str, Any] | None = None
        self._resumes = False
        self._writer: LoggerWriter | None = None
        self._logged = 0

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle what the callback was made with: a copy begins anew, in a trainer of its own."""
        return {**vars(self), "state": None, "_model": None, "_waiting": None, "_writer": None, "_resumes": False}

    def metrics(self) -> dict[str, Any]:
        """Return the bytes that went over the wire since this ``fit`` began, as the dashboards' writers ask for it.

        Raises:
            ConfigError: ``fit`` has not begun.
        """
        if self.state is None:
            raise ConfigError("GradwireCallback has no state before trainer.fit has begun")
        return self.state.metrics()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a strategy that would not run the hook, before anything is set up."""
        if stage == "fit":
            check_strategy(trainer)
            ours = [each for each in trainer.callbacks if isinstance(each, GradwireCallback)]
            require(
                len(ours) == 1,
                "callbacks",
                "with one GradwireCallback, whose overrides= gives parameters methods of their own",
                f"{len(ours)} of them",
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the hook, now that the model is wrapped, and continue from the checkpoint or from the last fit."""
        model = trainer.strategy.model
        allowed = "one that wraps the model into DistributedDataParallel, or a module that configure_model has sharded"
        require(exchanged(model), "strategy", allowed, type(model).__name__)
        if self.state is not None:
            if not self._resumes:
                # Each fit wraps the model anew; the residuals of the last one go on in the state of this one.
                self._waiting = self.state.state_dict()
            self.state.close()
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.state = attach(model, self.compressor, {"scaler": scaler, **self.options})
        self._model = weakref.ref(model)
        if self._waiting is not None:
            self.state.load_state_dict(self._waiting, on_resize=self.on_resize)
        self._waiting, self._resumes = None, False
        writes = trainer.is_global_zero and trainer.loggers and trainer.log_every_n_steps > 0
        self._writer = LoggerWriter(self.state, trainer) if writes else None
        self._logged = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Write the bytes that went over the wire to Lightning's loggers at intervals."""
        if self._writer is not None and trainer.global_step != self._logged:
            self._logged = trainer.global_step
            self._writer.step()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the states of all ranks to the file that rank 0 writes."""
        if self.state is not None:
            # Lightning calls this on all ranks, though one writes the file, so they can bring their states together
            # here.
            checkpoint[KEY] = gathered(self.state)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Load the saved states into the model that trains, or keep them until there is one."""
        if trainer.state.fn != "fit":
            return
        self._waiting, self._resumes = checkpoint.get(KEY), True
        if self._waiting is None:
            log.warning("the checkpoint was saved without GradwireCallback: residuals start from zero")
        attached = self._model is not None and self._model() is trainer.strategy.model
        if self.state is not None and attached:
            # Residuals from before the checkpoint do not belong to its parameters.
            nothing = {**self.state.state_dict(), "world": 0, "ranks": {}}
            self.state.load_state_dict(self._waiting or nothing, on_resize=self.on_resize if self._waiting else "reset")
            self._waiting, self._resumes = None, False


class LoggerWriter(MetricsWriter):
    """A writer of rows to the loggers of a trainer, as often as it writes its own."""

    def __init__(self, state: Measured, trainer: Trainer) -> None:
        super().__init__(state, trainer.log_every_n_steps)
        self.trainer = trainer

    def write(self, row: Mapping[str, float], step: int) -> None:
        named = {f"gradwire/{name}": value for name, value in row.items()}
        for logger in self.trainer.loggers:
            logger.log_metrics(named, self.trainer.global_step)


def check_strategy(trainer: Trainer) -> None:
    """Refuse a strategy that would train without any compression.

    Raises:
        ConfigError: a strategy that is neither DDP nor ModelParallelStrategy, or DDP with a hook of its own.
    """
    strategy = trainer.strategy
    package = type(trainer).__module__.partition(".")[0]
    allowed = "of lightning.pytorch, which is another package than pytorch_lightning: import Trainer from there"
    require(package != "pytorch_lightning", "Trainer", allowed, f"one of {package}")
    known = isinstance(strategy, DDPStrategy | ModelParallelStrategy)
    require(known, "strategy", "DDP, such as strategy='ddp', or a ModelParallelStrategy", type(strategy).__name__)
    hook = getattr(strategy, "_ddp_comm_hook", None)
    require(hook is None, "ddp_comm_hook", "None with GradwireCallback, which attaches its own", hook)
