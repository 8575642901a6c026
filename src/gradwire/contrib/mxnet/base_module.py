"""Training loop around a Module: epochs, scores, predictions, and callbacks."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gradwire.contrib.mxnet.callback import BatchEndParam, EpochEnd
from gradwire.contrib.mxnet.eval_metric import EvalMetric, Measure
from gradwire.contrib.mxnet.eval_metric import create as create_metric
from gradwire.errors import ConfigError, is_int, require
from gradwire.kvstore.protocol.store import KVStore
from gradwire.kvstore.protocol.updater import OptimizerConfig

__all__ = ["RATE", "BaseModule", "as_list", "gathered", "pieces", "sample_count"]

BatchEnd: TypeAlias = Callable[[BatchEndParam], None]

RATE = (("learning_rate", 0.01),)
"""MXNet's default of ``optimizer_params``."""


class BaseModule(ABC):
    """The interface of a model that can be trained batch by batch.

    Args:
        symbol: the torch module.
        device: device of its inputs.
        logger: logger for the lines of ``fit``.
    """

    def __init__(self, symbol: nn.Module, device: torch.device, logger: logging.Logger | None) -> None:
        self._symbol, self._device = symbol.to(device), device
        self._skip = 0
        """Batches that were trained before this worker was started again."""
        self.logger = logger or logging.getLogger()

    @property
    def symbol(self) -> nn.Module:
        """The torch module."""
        return self._symbol

    def fit(
        self,
        train_data: Iterable[Any],
        eval_data: Iterable[Any] | None = None,
        eval_metric: Measure = "acc",
        epoch_end_callback: EpochEnd | Sequence[EpochEnd] | None = None,
        batch_end_callback: BatchEnd | Sequence[BatchEnd] | None = None,
        kvstore: KVStore | str | None = "local",
        optimizer: str | OptimizerConfig = "sgd",
        optimizer_params: Any = RATE,
        eval_end_callback: BatchEnd | Sequence[BatchEnd] | None = None,
        eval_batch_end_callback: BatchEnd | Sequence[BatchEnd] | None = None,
        *,
        arg_params: Mapping[str, Tensor] | None = None,
        aux_params: Mapping[str, Tensor] | None = None,
        allow_missing: bool = False,
        begin_epoch: int = 0,
        num_epoch: int,
        validation_metric: Measure | None = None,
    ) -> None:
        """Train the module. A restarted worker skips the batches that were trained before it came.

        Args:
            train_data: batches, each (data, label); iterated over once in each epoch. A worker has its own share.
            eval_data: batches to score after each epoch.
            eval_metric: name of a metric, or several: see ``eval_metric.create``.
            epoch_end_callback: called with (epoch, symbol, arg_params, aux_params); one or several.
            batch_end_callback: called with a ``BatchEndParam``.
            kvstore: a store, its type, or None. "local" and "device" are left out on one context without compression.
            optimizer: optimizer, as for ``KVStore.set_optimizer``.
            optimizer_params: parameters of the optimizer; ``rescale_grad`` is 1 / samples of the first batch (of all
                workers in sync) if it is not there, and ``lr_scheduler`` a function from the number of the update, from
                1, to the rate.
            eval_end_callback: called after the score of an epoch.
            eval_batch_end_callback: called after each batch of it.
            arg_params: parameters to start from, by name.
            aux_params: buffers to start from, by name.
            allow_missing: true: some of these may be left out.
            begin_epoch: number of the first epoch, where training goes on.
            num_epoch: epochs end before this number.
            validation_metric: metric for ``eval_data``; None is ``eval_metric``.

        Raises:
            ConfigError: a bad argument, or data without batches.
        """
        require(is_int(num_epoch, 1), "num_epoch", "an integer >= 1", num_epoch)
        require(is_int(begin_epoch, 0), "begin_epoch", "an integer >= 0", begin_epoch)
        if arg_params is not None or aux_params is not None:
            self.set_params(arg_params or {}, aux_params or {}, allow_missing=allow_missing or arg_params is None)
        self.init_optimizer(kvstore, optimizer, optimizer_params)
        metric = create_metric(eval_metric)
        validation = metric if validation_metric is None else create_metric(validation_metric)
        for epoch in range(begin_epoch, num_epoch):
            started = time.monotonic()
            if not self._train(train_data, metric, epoch, as_list(batch_end_callback)):
                continue
            self._log(epoch, "Train-", metric.get_global_name_value())
            self.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.monotonic() - started)
            self._sync_buffers()
            for callback in as_list(epoch_end_callback):
                callback(epoch, self.symbol, *self.get_params())
            if eval_data is not None:
                scores = self.score(
                    eval_data,
                    validation,
                    batch_end_callback=eval_batch_end_callback,
                    score_end_callback=eval_end_callback,
                    epoch=epoch,
                )
                self._log(epoch, "Validation-", scores)

    def score(
        self,
        eval_data: Iterable[Any],
        eval_metric: Measure,
        num_batch: int | None = None,
        batch_end_callback: BatchEnd | Sequence[BatchEnd] | None = None,
        score_end_callback: BatchEnd | Sequence[BatchEnd] | None = None,
        epoch: int = 0,
    ) -> list[tuple[str, float]]:
        """Measure the quality of the outputs, without training.

        Args:
            eval_data: batches, each (data, label).
            eval_metric: metric, as for ``fit``.
            num_batch: use so many of them; None: all.
            batch_end_callback: called after each batch.
            score_end_callback: called at the end.
            epoch: number of the epoch, for the callbacks.

        Returns:
            Names and values.
        """
        metric = create_metric(eval_metric)
        metric.reset()
        last = 0
        for outputs, last, batch in self.iter_predict(eval_data, num_batch):
            metric.update(as_list(batch[1]), outputs)
            self._tell(as_list(batch_end_callback), epoch, last, metric, batch)
        self._tell(as_list(score_end_callback), epoch, last, metric, None)
        return metric.get_global_name_value()

    def predict(
        self,
        eval_data: Any,
        num_batch: int | None = None,
        merge_batches: bool = True,
        always_output_list: bool = False,
    ) -> Any:
        """Compute the outputs of all batches.

        Args:
            eval_data: a tensor, or batches of (data, label) or of data alone.
            num_batch: use so many of them; None: all.
            merge_batches: true: the outputs of the batches become one; false: a list by batch.
            always_output_list: true: the result is a list even where the module has one output.

        Raises:
            ConfigError: data without batches.
        """
        batches = [outputs for outputs, _, _ in self.iter_predict(eval_data, num_batch)]
        require(bool(batches), "eval_data", "at least one batch", "none")
        if not merge_batches:
            return batches
        merged = gathered(batches)
        return merged[0] if len(merged) == 1 and not always_output_list else merged

    @torch.no_grad()
    def iter_predict(self, eval_data: Any, num_batch: int | None = None) -> Iterator[tuple[list[Tensor], int, Any]]:
        """Yield (outputs, number of the batch, the batch) one by one, as ``predict`` computes them."""
        batches = [eval_data] if isinstance(eval_data, Tensor) else eval_data
        for number, batch in enumerate(batches):
            if number == num_batch:
                return
            self.symbol.eval()
            output = self.symbol(*(each.to(self._device) for each in input_of(batch)))
            yield as_list(output), number, batch

    @abstractmethod
    def init_optimizer(
        self,
        kvstore: KVStore | str | None = "local",
        optimizer: str | OptimizerConfig = "sgd",
        optimizer_params: Any = RATE,
        force_init: bool = False,
    ) -> None:
        """Prepare the optimizer, before the first update."""

    @abstractmethod
    def forward_backward(self, data_batch: Any) -> None:
        """Compute outputs and gradients of a batch."""

    @abstractmethod
    def update(self) -> None:
        """Update the weights with the gradients of the last batch."""

    @abstractmethod
    def update_metric(self, eval_metric: EvalMetric, labels: Any) -> None:
        """Update a metric with the outputs of the last batch."""

    @abstractmethod
    def get_params(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return copies of the parameters and of the buffers, by name."""

    @abstractmethod
    def set_params(
        self,
        arg_params: Mapping[str, Tensor],
        aux_params: Mapping[str, Tensor],
        allow_missing: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set the values of parameters and buffers."""

    @abstractmethod
    def _sync_buffers(self) -> None: ...

    def _train(self, data: Iterable[Any], metric: EvalMetric, epoch: int, callbacks: Sequence[BatchEnd]) -> bool:
        """Train an epoch; return whether any batch of it was left to train."""
        metric.reset()
        number, trained = -1, False
        for number, batch in enumerate(data):
            if self._skip:
                self._skip -= 1
                continue
            trained = True
            self.forward_backward(batch)
            self.update()
            self.update_metric(metric, batch[1])
            self._tell(callbacks, epoch, number, metric, batch)
        if number < 0:
            raise ConfigError(
                f"train_data must give a batch in every epoch, got none in epoch {epoch}: a generator ends for good, a "
                "list or a DataLoader begins again"
            )
        return trained

    def _tell(self, callbacks: Sequence[BatchEnd], epoch: int, number: int, metric: EvalMetric, batch: Any) -> None:
        for callback in callbacks:
            callback(BatchEndParam(epoch, number, metric, {"module": self, "data_batch": batch}))

    def _log(self, epoch: int, what: str, scores: Sequence[tuple[str, float]]) -> None:
        for name, value in scores:
            self.logger.info("Epoch[%d] %s%s=%f", epoch, what, name, value)


def as_list(value: Any) -> list[Any]:
    """Convert one object, several or None to a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, tuple | list) else [value]


def input_of(batch: Any) -> list[Tensor]:
    """The tensors with which a module is called, from (data, label) or from data alone."""
    return as_list(batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else batch)


def sample_count(data: Any) -> int:
    """The number of samples in a batch."""
    return len(as_list(data)[0])


def pieces(data: Any, count: int) -> list[list[Tensor]]:
    """Split a batch's tensors into ``count`` pieces along the first dimension, which differ by at most one sample.

    Raises:
        ConfigError: fewer samples than pieces, or something that is no tensor.
    """
    tensors = as_list(data)
    for tensor in tensors:
        require(isinstance(tensor, Tensor), "a batch", "tensors", type(tensor).__name__)
        require(len(tensor) >= count, "a batch", f"at least {count} samples, one for each context", len(tensor))
    return [list(piece) for piece in zip(*(tensor.tensor_split(count) for tensor in tensors), strict=True)]


def gathered(outputs: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Join the outputs of all pieces or batches, on the device of the first."""
    device = outputs[0][0].device
    return [torch.cat([each.to(device) for each in those]) for those in zip(*outputs, strict=True)]
