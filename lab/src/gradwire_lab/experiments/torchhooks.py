"""Communication hooks of torch, counted and saved as ours are, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import ConfigError, is_int, nearest, require
from gradwire.metrics import Metrics

__all__ = ["PREFIX", "TorchHook", "check_hook", "ring_bytes"]

PREFIX = "torch_"
"""Prefix of the name of a hook where a method is written: ``torch_powersgd:rank=4``."""

_HOOKS: dict[str, dict[str, int]] = {"bf16": {}, "ddp": {}, "fp16": {}, "powersgd": {"rank": 4, "start": 2}}
"""The parameters of each, and their defaults."""

_CASTS: dict[str, Any] = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
_SAVED = ("iter", "next_stats_report", "total_numel_before_compression", "total_numel_after_compression")
_KEPT = ("error_dict", "p_memory_dict", "q_memory_dict")

_Hook = Callable[[Any, Any], Future[Tensor]]


def check_hook(config: Mapping[str, Any]) -> None:
    """Refuse an unknown hook of torch, or an unknown parameter of it.

    Args:
        config: name of the hook under "name": ddp, for no hook at all, bf16, fp16 or powersgd; of powersgd ``rank``,
            >= 1, and ``start``, the first step that is compressed, >= 2.

    Raises:
        ConfigError

    Example:
        >>> check_hook({"name": "powersgd", "rank": 4})
        >>> check_hook({"name": "powersgd", "rank": 0})
        Traceback (most recent call last):
        gradwire.errors.ConfigError: torch_powersgd.rank must be an integer >= 1, got 0
    """
    name = config.get("name")
    if name not in _HOOKS:
        raise ConfigError(f"no hook {name!r} of torch: {nearest(str(name), _HOOKS)}")
    for given, value in config.items():
        if given == "name":
            continue
        if given not in _HOOKS[name]:
            raise ConfigError(f"{given!r} is no parameter of torch's {name}: {nearest(given, _HOOKS[name])}")
        least = 2 if given == "start" else 1
        require(is_int(value, least), f"torch_{name}.{given}", f"an integer >= {least}", value)


def ring_bytes(nbytes: int) -> int:
    """The bytes that a worker of the default group sends when a ring all-reduces so many bytes.

    >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    >>> ring_bytes(1000)
    0
    >>> dist.destroy_process_group()
    """
    world = dist.get_world_size()
    return 2 * (world - 1) * nbytes // world


class TorchHook:
    """A hook of torch on a model, with a count of the bytes that it hands to collectives.

    Args:
        model: model with a single bucket for powersgd: torch's waits for collectives in callbacks, which from two
            buckets on hangs on Gloo.
        config: name and parameters of the hook, as for ``check_hook``.

    Raises:
        ConfigError: the hook or a parameter is unknown, as for ``check_hook``.
    """

    def __init__(self, model: DistributedDataParallel, config: Mapping[str, Any]) -> None:
        check_hook(config)
        self.counters = Metrics()
        self._name = config["name"]
        chosen = {**_HOOKS[self._name], **config}
        self._state: powerSGD_hook.PowerSGDState | None = None
        if self._name == "powersgd":
            self._state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=chosen["rank"], start_powerSGD_iter=chosen["start"]
            )
        # torch reads the annotations of a hook, and takes none that are written as texts.
        model.register_comm_hook(self._state, lambda state, bucket: self._hook(state, bucket))

    def _hook(self, state: Any, bucket: Any) -> Future[Tensor]:
        dense = ring_bytes(bucket.buffer().nbytes)
        self.counters.dense_bytes += dense
        if self._name in _CASTS:
            self.counters.bytes_sent += ring_bytes(2 * bucket.buffer().numel())
            return _CASTS[self._name](None, bucket)  # type: ignore[no-any-return]
        if self._state is None or self._state.iter < self._state.start_powerSGD_iter:
            self.counters.bytes_sent += dense
        before = 0 if self._state is None else self._state.total_numel_after_compression
        hook: _Hook = default_hooks.allreduce_hook if self._state is None else powerSGD_hook.powerSGD_hook
        future = hook(dist.group.WORLD if self._state is None else state, bucket)
        if self._state is not None:
            numel = self._state.total_numel_after_compression - before
            self.counters.bytes_sent += ring_bytes(numel * bucket.buffer().element_size())
        return future

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run continues from, as plain values and tensors."""
        state = self._state
        if state is None:
            return {}
        kind, keys, *rest = state.rng.get_state()
        return {
            **{name: getattr(state, name) for name in _SAVED},
            **{name: dict(getattr(state, name)) for name in _KEPT},
            "rng": [kind, [int(key) for key in keys], *rest],
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a state that ``state_dict`` returned."""
        state = self._state
        if state is None:
            return
        for name in (*_SAVED, *_KEPT):
            setattr(state, name, saved[name])
        kind, keys, *rest = saved["rng"]
        state.rng.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
