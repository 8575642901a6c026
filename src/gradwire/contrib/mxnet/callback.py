"""Functions that ``Module.fit`` calls after batches and epochs: MXNet's callbacks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn

from gradwire.contrib.mxnet.eval_metric import EvalMetric
from gradwire.contrib.mxnet.params_files import save_symbol
from gradwire.errors import is_int, require

__all__ = ["BatchEndParam", "EpochEnd", "Speedometer", "do_checkpoint"]

EpochEnd: TypeAlias = Callable[[int, nn.Module, Mapping[str, Tensor], Mapping[str, Tensor]], None]
"""``callback(epoch, symbol, arg_params, aux_params)``."""


class BatchEndParam(NamedTuple):
    """Arguments of a callback after a batch.

    Args:
        epoch: number of the epoch, from 0, or from where training went on.
        nbatch: number of the batch in this epoch, from 0.
        eval_metric: metric with this batch in it.
        locals: "module" and "data_batch".
    """

    epoch: int
    nbatch: int
    eval_metric: EvalMetric
    locals: Mapping[str, Any]


class Speedometer:
    """A callback that logs speed and metrics at intervals.

    Args:
        batch_size: samples of a batch of this worker.
        frequent: batches from one line to the next.
        auto_reset: true: each line has the metrics of its own batches; false: of all of the epoch.
    """

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        require(is_int(batch_size, 1), "batch_size", "an integer >= 1", batch_size)
        require(is_int(frequent, 1), "frequent", "an integer >= 1", frequent)
        self.batch_size, self.frequent, self.auto_reset = batch_size, frequent, auto_reset
        self._since, self._last = time.monotonic(), -1

    def __call__(self, param: BatchEndParam) -> None:
        """Count a batch, and log if it is time to."""
        if param.nbatch <= self._last or self._last < 0:
            # The first batch of an epoch also waits for the data: the clock starts after it.
            self._since, self._last = time.monotonic(), param.nbatch
        elif (param.nbatch + 1) % self.frequent == 0:
            self._say(param)

    def _say(self, param: BatchEndParam) -> None:
        now = time.monotonic()
        speed = (param.nbatch - self._last) * self.batch_size / max(now - self._since, 1e-9)
        told = "".join(f"\t{name}={value:f}" for name, value in param.eval_metric.get_name_value())
        text = "Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec%s"
        logging.getLogger().info(text, param.epoch, self._last + 1, param.nbatch, speed, told)
        self._since, self._last = now, param.nbatch
        if self.auto_reset:
            param.eval_metric.reset_local()


def do_checkpoint(prefix: str, period: int = 1) -> EpochEnd:
    """Make a callback that writes ``PREFIX-0001.safetensors`` after the first epoch, and so on.

    Args:
        prefix: prefix of the files.
        period: epochs from one to the next, >= 1.
    """
    require(is_int(period, 1), "period", "an integer >= 1", period)

    def callback(epoch: int, symbol: nn.Module, *_: Any) -> None:
        if (epoch + 1) % period == 0:
            save_symbol(symbol, prefix, epoch + 1)

    return callback
