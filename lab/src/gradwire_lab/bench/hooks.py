"""Torch's own communication hooks, called on flat gradients without a DDP model, to be measured beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from gradwire.engine.plan import Named
from gradwire.errors import require

__all__ = ["HOOKS", "HookRunner"]

HOOKS = ("bf16", "fp16", "powersgd")
"""The hooks that can be measured."""

_CASTS: dict[str, Any] = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}


class HookRunner:
    """A runner that averages flat gradients with one of torch's hooks, one bucket after the other.

    Args:
        config: name of the hook under "name", one of ``HOOKS``; of powersgd ``rank``.
        group: the ranks.

    Raises:
        ConfigError: another name.
    """

    def __init__(self, config: Mapping[str, Any], group: dist.ProcessGroup) -> None:
        require(config.get("name") in HOOKS, "hook", f"one of {', '.join(HOOKS)}", config.get("name"))
        self._group, self._cast = group, _CASTS.get(config["name"])
        self._state: Any = None
        if self._cast is None:
            # Two is the fewest dense steps that torch allows; they warm up.
            self._state = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=config.get("rank", 4), start_powerSGD_iter=2
            )

    def step(self, buckets: Sequence[tuple[Tensor, Sequence[Named]]]) -> None:
        """Replace each flat gradient by its mean over the ranks.

        Args:
            buckets: flat float32, with the names and shapes of what lies in it end to end.
        """
        for index, (flat, params) in enumerate(buckets):
            bucket: Any = _FlatBucket(flat, params, index, last=index == len(buckets) - 1)
            if self._cast is not None:
                done = self._cast(self._group, bucket)
            else:
                done = powerSGD_hook.powerSGD_hook(self._state, bucket)
            done.wait()


class _FlatBucket:
    """The attributes of torch's ``GradBucket`` that a hook uses; only DDP can make a real one."""

    def __init__(self, flat: Tensor, params: Sequence[Named], index: int, *, last: bool) -> None:
        self._flat, self._params, self._index, self._last = flat, params, index, last

    def buffer(self) -> Tensor:
        return self._flat

    def gradients(self) -> list[Tensor]:
        shapes = [shape for _, shape in self._params]
        parts = torch.split(self._flat, [torch.Size(shape).numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last
