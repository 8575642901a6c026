"""Metrics of an exchange as TensorBoard scalars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire.frontends.adapters._figures import Measured, MetricsWriter

__all__ = ["TensorBoardWriter"]


class TensorBoardWriter(MetricsWriter):
    """A writer of bytes, ratio, residual norm, times and non-finite steps, below ``gradwire/``.

    Every rank has figures of its own; most people want those of rank 0.

    Args:
        state: state that ``compress_ddp`` or another entry point returned.
        writer: a ``torch.utils.tensorboard.SummaryWriter`` (``pip install 'gradwire[tensorboard]'``), or what has its
            ``add_scalar``.
        every: steps from one row to the next, >= 1. A row waits for the device, so fewer rows cost less.

    Raises:
        ConfigError: ``every`` is out of range.
    """

    def __init__(self, state: Measured, writer: Any, every: int = 100) -> None:
        super().__init__(state, every)
        self.writer = writer

    def write(self, row: Mapping[str, float], step: int) -> None:
        for name, value in row.items():
            self.writer.add_scalar(f"gradwire/{name}", value, step)
