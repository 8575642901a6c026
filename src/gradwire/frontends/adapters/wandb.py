"""Metrics of an exchange in the history of a Weights & Biases run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire._extras import needs
from gradwire.frontends.adapters._figures import Measured, MetricsWriter

with needs("wandb"):
    import wandb

__all__ = ["WandbWriter"]


class WandbWriter(MetricsWriter):
    """A writer of bytes, ratio, residual norm, times and non-finite steps, below ``gradwire/``, over ``gradwire/step``.

    It has an axis of its own, because a run's step counts the calls of ``log`` and must not go back.

    Args:
        state: state that ``compress_ddp`` or another entry point returned.
        run: run that ``wandb.init`` returned; None is the current one.
        every: steps from one row to the next, >= 1. A row waits for the device, so fewer rows cost less.

    Raises:
        ConfigError: ``every`` is out of range.
        wandb.Error: there is no run.
    """

    def __init__(self, state: Measured, run: Any = None, every: int = 100) -> None:
        super().__init__(state, every)
        self.run = run or wandb
        self.run.define_metric("gradwire/step")
        self.run.define_metric("gradwire/*", step_metric="gradwire/step")

    def write(self, row: Mapping[str, float], step: int) -> None:
        self.run.log({"gradwire/step": step, **{f"gradwire/{name}": value for name, value in row.items()}})
