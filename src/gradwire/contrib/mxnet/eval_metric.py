"""Metrics of outputs by MXNet's names, over torch tensors.

A metric is updated batch by batch. ``get`` says the mean over all samples since ``reset_local``, which a progress line
calls, and ``get_global_name_value`` that since ``reset``, which an epoch calls.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from gradwire.errors import ConfigError, is_int, nearest, require

__all__ = ["EvalMetric", "Measure", "create"]

Measure: TypeAlias = "str | EvalMetric | Callable[[Tensor, Tensor], float] | Sequence[Any]"
"""A metric's name, one that was made, a function of labels and outputs, or several of them."""


class EvalMetric(ABC):
    """The interface of a metric, as ``Module`` uses it.

    Args:
        name: name under which the metric is reported.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Reset the metric."""

    @abstractmethod
    def reset_local(self) -> None:
        """Reset the values of ``get_name_value``, and keep the global ones."""

    @abstractmethod
    def update(self, labels: Sequence[Tensor], preds: Sequence[Tensor]) -> None:
        """Measure a batch.

        Args:
            labels: right answers, one tensor for each output.
            preds: the outputs.

        Raises:
            ConfigError: another number of labels than of outputs.
        """

    @abstractmethod
    def get_name_value(self) -> list[tuple[str, float]]:
        """Return names and values since ``reset_local``."""

    @abstractmethod
    def get_global_name_value(self) -> list[tuple[str, float]]:
        """Return names and values since ``reset``."""


class Mean(EvalMetric):
    """A metric that is the mean of some value over samples."""

    def reset(self) -> None:
        self._before, self._count_before = 0.0, 0
        self.total, self.count = 0.0, 0

    def reset_local(self) -> None:
        self._before, self._count_before = self._before + self.total, self._count_before + self.count
        self.total, self.count = 0.0, 0

    @torch.no_grad()
    def update(self, labels: Sequence[Tensor], preds: Sequence[Tensor]) -> None:
        require(len(labels) == len(preds), "labels", f"{len(preds)} tensors, one for each output", len(labels))
        for label, pred in zip(labels, preds, strict=True):
            total, count = self._measure(label.to(pred.device), pred)
            self.total += total
            self.count += count

    def get(self) -> tuple[str, float]:
        """Return name and value; the value is nan before the first batch."""
        return self.name, self._mean(self.total, self.count)

    def get_name_value(self) -> list[tuple[str, float]]:
        return [self.get()]

    def get_global_name_value(self) -> list[tuple[str, float]]:
        return [(self.name, self._mean(self._before + self.total, self._count_before + self.count))]

    def _mean(self, total: float, count: int) -> float:
        return total / count if count else math.nan

    @abstractmethod
    def _measure(self, label: Tensor, pred: Tensor) -> tuple[float, int]:
        """Compute the sum over a batch, and the number of its terms."""


class Accuracy(Mean):
    """The share of labels that are among the ``top_k`` largest outputs along the second dimension, as in MXNet; outputs
    of the labels' shape are the answers themselves.
    """

    def __init__(self, top_k: int = 1) -> None:
        require(is_int(top_k, 1), "top_k", "an integer >= 1", top_k)
        super().__init__("accuracy" if top_k == 1 else f"top_k_accuracy_{top_k}")
        self.top_k = top_k

    def _measure(self, label: Tensor, pred: Tensor) -> tuple[float, int]:
        if self.top_k == 1 and pred.shape == label.shape:
            return float((pred.int() == label.int()).sum()), label.numel()
        fits = pred.dim() > 1 and label.numel() * pred.shape[1] == pred.numel()
        allowed = f"a label for each place of outputs of shape {tuple(pred.shape)} without their second dimension"
        require(fits, "labels", allowed, tuple(label.shape))
        best = pred.topk(min(self.top_k, pred.shape[1]), 1).indices
        return float((best == label.reshape(best[:, :1].shape)).sum()), label.numel()


class CrossEntropy(Mean):
    """The cross-entropy of outputs before the softmax, computed as by torch's loss."""

    def __init__(self) -> None:
        super().__init__("cross-entropy")

    def _measure(self, label: Tensor, pred: Tensor) -> tuple[float, int]:
        return float(functional.cross_entropy(pred, label, reduction="sum")), pred.numel() // pred.shape[1]


class Error(Mean):
    """The mean over samples of |label - output|^power, averaged within a sample; with ``root`` its square root."""

    def __init__(self, name: str, power: int, root: bool = False) -> None:
        super().__init__(name)
        self.power, self.root = power, root

    def _mean(self, total: float, count: int) -> float:
        mean = super()._mean(total, count)
        return math.sqrt(mean) if self.root else mean

    def _measure(self, label: Tensor, pred: Tensor) -> tuple[float, int]:
        difference = (label.reshape(pred.shape) - pred).abs().pow(self.power)
        total = difference.flatten(1).mean(1).sum() if difference.dim() > 1 else difference.sum()
        return float(total), len(label)


class Custom(Mean):
    """The mean of a function over batches, weighted by their samples."""

    def __init__(self, function: Callable[[Tensor, Tensor], float]) -> None:
        super().__init__(getattr(function, "__name__", "custom"))
        self.function = function

    def _measure(self, label: Tensor, pred: Tensor) -> tuple[float, int]:
        return float(self.function(label, pred)) * len(label), len(label)


class Composite(EvalMetric):
    """Several metrics as one."""

    def __init__(self, metrics: Sequence[EvalMetric]) -> None:
        self.metrics = list(metrics)
        super().__init__("composite")

    def reset(self) -> None:
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        for metric in self.metrics:
            metric.reset_local()

    def update(self, labels: Sequence[Tensor], preds: Sequence[Tensor]) -> None:
        for metric in self.metrics:
            metric.update(labels, preds)

    def get_name_value(self) -> list[tuple[str, float]]:
        return [pair for metric in self.metrics for pair in metric.get_name_value()]

    def get_global_name_value(self) -> list[tuple[str, float]]:
        return [pair for metric in self.metrics for pair in metric.get_global_name_value()]


KNOWN: dict[str, Callable[..., EvalMetric]] = {
    "acc": Accuracy,
    "accuracy": Accuracy,
    "top_k_accuracy": Accuracy,
    "ce": CrossEntropy,
    "cross-entropy": CrossEntropy,
    "mae": lambda: Error("mae", 1),
    "mse": lambda: Error("mse", 2),
    "rmse": lambda: Error("rmse", 2, root=True),
}


def create(metric: Measure, **options: Any) -> EvalMetric:
    """Create a metric by its name.

    Args:
        metric: "acc", "top_k_accuracy", "ce" (cross-entropy of outputs before the softmax), "mae", "mse", "rmse"; a
            function of a label and an output; an ``EvalMetric``; or a list of any of these.
        options: options of the metric, such as ``top_k=5``; only with a name.

    Raises:
        ConfigError: an unknown name or option, or options without a name.

    Example:
        >>> metric = create("acc")
        >>> metric.update([torch.tensor([1, 0])], [torch.tensor([[0.1, 0.9], [0.2, 0.8]])])
        >>> metric.get()
        ('accuracy', 0.5)
    """
    if isinstance(metric, str):
        if metric not in KNOWN:
            raise ConfigError(f"unknown eval_metric {metric!r}: {nearest(metric, KNOWN)}")
        try:
            return KNOWN[metric](**options)
        except TypeError:
            raise ConfigError(f"eval_metric {metric!r} has no option {', '.join(options)}") from None
    require(not options, "options", "left out unless eval_metric is a name", options)
    if isinstance(metric, EvalMetric):
        return metric
    if callable(metric):
        return Custom(metric)
    require(isinstance(metric, Sequence), "eval_metric", "a name, a function, or a list of them", metric)
    return Composite([create(each) for each in metric])
