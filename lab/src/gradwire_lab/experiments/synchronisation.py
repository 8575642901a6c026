"""Synchronisation of a run's workers: compressed gradients, an optimizer that exchanges, or a hook of torch.

Invariants:
    With each of them the loop accumulates gradients in ``model``, steps ``optimizer``, and finds in ``metrics`` what
    was sent. Parameters have the same bits on all workers after ``finish``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.engine.exchange import Exchange
from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.fsdp import compress_fsdp
from gradwire.metrics import Metrics
from gradwire.optim.exchanged import Exchanged
from gradwire.optim.local.diloco import DiLoCo
from gradwire_lab.experiments.exchanging_optimizer import build_optimizer
from gradwire_lab.experiments.recipe import Recipe
from gradwire_lab.experiments.sharding import count_gathers, rows_of, shard, with_rows
from gradwire_lab.experiments.torchhooks import TorchHook, ring_bytes
from gradwire_lab.experiments.training_method import Method

__all__ = [
    "CORRECTED",
    "CompressedGradients",
    "ExchangingOptimizer",
    "HookOfTorch",
    "ShardedGradients",
    "Synchronisation",
    "synchronised",
    "wrapped",
]

CORRECTED = "variance_correction"
"""The option of ``compress_ddp`` that takes the optimizer, and here true or false."""

_ONE_BUCKET_MB = 1 << 20


class Synchronisation(ABC):
    """The interface between the backward passes of the workers and their equal parameters.

    Attributes:
        optimizer: optimizer that makes the steps, and that a schedule changes.
        counters: counters of the bytes that are sent.
        exchange: ours; None: torch's.
    """

    optimizer: Optimizer
    counters: Metrics
    exchange: Exchange | None

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Return figures: at least ``bytes_sent``, ``dense_bytes`` and ``nonfinite_steps`` since this process began."""

    @abstractmethod
    def common(self) -> dict[str, Any]:
        """Return the state that is saved once, the same on all workers."""

    @abstractmethod
    def own(self) -> dict[str, Any]:
        """Return the state of this worker alone."""

    @abstractmethod
    def load(self, common: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Continue from the states ``common`` and ``own``; the parameters are restored already."""

    def kept(self) -> dict[str, Any]:
        """The tensors kept from step to step beside the optimizer's own state."""
        return {} if self.exchange is None else self.exchange.state_dict()

    def finish(self) -> None:
        """Synchronise the parameters of all workers after the last step. All must call it."""
        return

    def close(self) -> None:
        """Stop taking part."""
        return


class CompressedGradients(Synchronisation):
    """Synchronisation by DDP with a hook of ours.

    Args:
        model: wrapped.
        method: method with options for ``compress_ddp``; its ``variance_correction`` is true or false.
        recipe: builds the optimizer.
    """

    exchange: Exchange

    def __init__(self, model: DistributedDataParallel, method: Method, recipe: Recipe) -> None:
        self.optimizer = recipe.build(model.parameters())
        options = {name: value for name, value in method.options.items() if name != CORRECTED}
        if method.options.get(CORRECTED):
            options[CORRECTED] = self.optimizer
        self.state = compress_ddp(model, method.auto or method.compressor, **options)
        self.exchange, self.counters = self.state.exchange, self.state.exchange.counters

    def metrics(self) -> dict[str, Any]:
        return self.state.metrics()

    def common(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def own(self) -> dict[str, Any]:
        return self.state.state_dict()

    def load(self, common: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(dict(common))
        self.state.load_state_dict(own)

    def close(self) -> None:
        self.state.close()


class ShardedGradients(Synchronisation):
    """FSDP2 with a reduce-scatter of ours, and with compressed weights where the method says so.

    The bytes are those of gradients and weights together.

    Args:
        model: model after ``fully_shard``.
        method: method with options for ``compress_fsdp``; its ``variance_correction`` is true or false.
        recipe: builds the optimizer.
    """

    exchange: Exchange

    def __init__(self, model: nn.Module, method: Method, recipe: Recipe) -> None:
        self.optimizer = recipe.build(model.parameters())
        options = {name: value for name, value in method.options.items() if name != CORRECTED}
        if method.options.get(CORRECTED):
            options[CORRECTED] = self.optimizer
        self.state = compress_fsdp(model, method.auto or method.compressor, weights=method.weights, **options)
        self.exchange, self.counters = self.state.exchange, self.state.exchange.counters
        self._gathered = count_gathers(model) if method.weights is None else None

    def metrics(self) -> dict[str, Any]:
        told = self.state.metrics()
        apart = None if self._gathered is None else self._gathered.as_dict()
        counted = ("bytes_sent", "dense_bytes")
        return told | {
            name: told[name] + (told[f"weights_{name}"] if apart is None else apart[name]) for name in counted
        }

    def kept(self) -> dict[str, Any]:
        # A checkpoint has this worker's rows of the estimates of weights; what it needs in memory is all of them.
        return {**self.exchange.state_dict(), "weights": self.state.estimates()}

    def common(self) -> dict[str, Any]:
        return {}

    def own(self) -> dict[str, Any]:
        return {"optimizer": rows_of(self.optimizer), "gradwire": self.state.state_dict()}

    def load(self, common: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(with_rows(self.optimizer, own["optimizer"]))
        self.state.load_state_dict(own["gradwire"])

    def close(self) -> None:
        self.state.close()


class ExchangingOptimizer(Synchronisation):
    """Synchronisation by an optimizer of ``gradwire.optim``; gradients stay each worker's own.

    An uncompressed exchange would send every gradient in every step, and ``dense_bytes`` counts that, however rarely
    the optimizer exchanges.

    Args:
        model: not wrapped.
        method: method with the optimizer, and options as for ``compress_ddp``.
        recipe: recipe of the task.
    """

    optimizer: Exchanged
    exchange: Exchange

    def __init__(self, model: nn.Module, method: Method, recipe: Recipe) -> None:
        params = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        self._params = [param for _, param in params]
        self.optimizer = build_optimizer(method.optimizer or {}, recipe, params, method.compressor, method.options)
        self.exchange, self.counters = self.optimizer.exchange, self.optimizer.exchange.counters
        self._steps = 0
        self.optimizer.register_step_post_hook(self._count)

    def _count(self, *_: object) -> None:
        self._steps += 1

    def metrics(self) -> dict[str, Any]:
        dense = ring_bytes(sum(param.nbytes for param in self._params))
        return {**self.optimizer.metrics(), "dense_bytes": self._steps * dense}

    @property
    def in_step(self) -> bool:
        """Return whether all workers hold the same parameters now."""
        return bool(getattr(self.optimizer, "in_step", True))

    def common(self) -> dict[str, Any]:
        return {}

    def own(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "params": [param.detach() for param in self._params]}

    @torch.no_grad()
    def load(self, common: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        # Between two exchanges each worker has parameters of its own.
        for param, saved in zip(self._params, own["params"], strict=True):
            param.copy_(saved)
        self.optimizer.load_state_dict(own["optimizer"])

    @torch.no_grad()
    def finish(self) -> None:
        """Exchange the changes since the last round; of fragments take what all have in common, because one exchange
        more than without fragments would be no comparison.
        """
        if isinstance(self.optimizer, DiLoCo) and self.optimizer.streams is not None:
            with self.optimizer.agreed_parameters():
                agreed = [param.clone() for param in self._params]
            for param, value in zip(self._params, agreed, strict=True):
                param.copy_(value)
            return
        for name in ("synchronize", "finish"):
            if not self.in_step:
                getattr(self.optimizer, name, lambda: None)()


class HookOfTorch(Synchronisation):
    """Synchronisation by DDP with a hook of torch's, or none.

    Args:
        model: wrapped.
        method: method with the hook.
        recipe: builds the optimizer.
    """

    def __init__(self, model: DistributedDataParallel, method: Method, recipe: Recipe) -> None:
        self.optimizer, self.exchange = recipe.build(model.parameters()), None
        self.hook = TorchHook(model, method.hook or {})
        self.counters = self.hook.counters

    def metrics(self) -> dict[str, Any]:
        return {**self.counters.as_dict(), "nonfinite_steps": 0}

    def common(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def own(self) -> dict[str, Any]:
        return self.hook.state_dict()

    def load(self, common: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(dict(common))
        self.hook.load_state_dict(own)

    def kept(self) -> dict[str, Any]:
        return self.hook.state_dict()


def wrapped(model: nn.Module, method: Method) -> nn.Module:
    """The model through which batches go: wrapped in DDP or in shards, unless the optimizer exchanges.

    Without DDP nobody makes the workers' buffers alike: each keeps its own, and worker 0's are measured.
    """
    if method.optimizer is not None:
        return model
    if method.parallel == "fsdp2":
        return shard(model, next(model.parameters()).device)
    one_bucket = method.hook is not None and method.hook.get("name") == "powersgd"
    return DistributedDataParallel(model, bucket_cap_mb=_ONE_BUCKET_MB if one_bucket else None)


def synchronised(model: nn.Module, method: Method, recipe: Recipe) -> Synchronisation:
    """Make the synchronisation of a method. All workers must call it.

    Args:
        model: model that ``wrapped`` has made.
        method: method of the run.
        recipe: recipe of the task.

    Raises:
        ConfigError, GroupError: ``compress_ddp``, ``compress_fsdp`` or the optimizer refuses the method.
    """
    if isinstance(model, FSDPModule):
        return ShardedGradients(model, method, recipe)
    if not isinstance(model, DistributedDataParallel):
        return ExchangingOptimizer(model, method, recipe)
    kind = CompressedGradients if method.hook is None else HookOfTorch
    return kind(model, method, recipe)
