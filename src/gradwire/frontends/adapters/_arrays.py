"""Gradients of other frameworks: arrays in host memory, seen through DLPack.

Invariants:
    * The core gets what it gets from torch: names, shapes and flat float32 buckets in the same order. So the bytes and
      the bits are those of ``compress_optimizer``.
    * Arrays of other frameworks are only read. What goes back is a copy of a bucket's part, or a view that must be
      copied before the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.engine.adaptive import KERAS
from gradwire.errors import ConfigError, Verbatim, is_float32, require
from gradwire.frontends._buckets import BucketState, buckets_of
from gradwire.frontends.ownership import Caller
from gradwire.frontends.setup import prepare_named, share_start
from gradwire.frontends.state_units import Units

__all__ = ["ArrayState", "Spec", "share_arrays"]

CPU = torch.device("cpu")


class Spec(NamedTuple):
    """A parameter's shape, and its dtype by name, as frameworks write it: ``"float32"``."""

    shape: tuple[int, ...]
    dtype: str


class ArrayState(BucketState):
    """The state of an exchange of gradients that are not torch's.

    Args:
        specs: the parameters, by name, in the same order on all ranks.
        compressor: a registered name, a compressor, or a recipe of ``from_params``.
        options: ``bucket_mb`` (25), and those of ``compress_ddp`` but for the scaler and ``lr_correction``.
        group: the ranks; None is the default group.
        scaler: scaler of the loss, which tells its scale as a ``torch.amp.GradScaler`` does; None: the loss is not
            scaled.
        adaptive: name of the optimizer, if it divides by a mean of squares; None: it does not, or is not known.
        corrected: true: the steps are multiplied by ``factor``.
        untrained: further arrays, which are only copied at the start, and must be the same ones on all ranks.

    Raises:
        ConfigError: a wrong option, or a parameter that is not a 16- or 32-bit float.
        GroupError: ranks were given different options or parameters.
    """

    def __init__(
        self,
        specs: Mapping[str, Spec],
        compressor: Any,
        options: Mapping[str, Any],
        group: dist.ProcessGroup | None = None,
        scaler: Any = None,
        adaptive: str | None = None,
        *,
        corrected: bool = False,
        untrained: Sequence[Spec] = (),
    ) -> None:
        super().__init__()
        rest = dict(options)
        bucket_mb = rest.pop("bucket_mb", 25.0)

        def select() -> dict[str, nn.Parameter]:
            require(is_float32(bucket_mb) and bucket_mb > 0, "bucket_mb", "a number > 0", bucket_mb)
            require(bool(specs), "parameters", "at least one", Verbatim("none"))
            return {name: without_data(name, spec) for name, spec in specs.items()}

        prepared = prepare_named(
            select,
            CPU,
            compressor,
            rest,
            group,
            Caller("gradwire"),
            bucket_mb=bucket_mb,
            variance_correction=corrected,
            untrained=list(untrained),
            **Units.facts(scaler, None),
        )
        self.exchange, params = prepared.exchange, prepared.params
        if corrected:
            self.measure_noise()
        self.buckets = buckets_of(prepared, bucket_mb)
        shapes = {id(param): (name, tuple(param.shape)) for name, param in params.items()}
        known = shapes if adaptive else {}
        self._follow_training(Units(scaler, None, {}), known, adaptive, corrected=corrected, remedies=KERAS)
        self.sizes = {name: param.numel() for name, param in params.items()}
        self._names = list(params)

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: a copy would have no thread and no process group."""
        raise ConfigError(
            "the state of an exchange cannot be copied or pickled: save state.state_dict(), and load it into the "
            "state of another exchange that all processes make"
        )

    @property
    def factor(self) -> float:
        """The factor by which a step that divides by a mean of squares is too short; 1 if it is not measured."""
        moment = self.exchange.second_moment
        return 1.0 if moment is None else moment.factor

    def measure_noise(self) -> None:
        """Measure ``factor`` from now on. All ranks must call it, before the first step.

        Raises:
            ConfigError: a method whose error is not noise.
        """
        self.check_correction()
        self.exchange.measure_noise()
        # It sends a sample of its own, for which all ranks must wait.
        self.exchange.protocol.compare(variance_correction=True)

    def exchange_arrays(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Average each gradient over the ranks; all ranks must call it.

        Args:
            grads: gradients in the order of the parameters, on CPU; None counts as zero if another process has a
                gradient.

        Returns:
            Views that the next step overwrites, in the parameters' dtypes; None where no process had a gradient.

        Raises:
            GroupError: a rank did not answer in time.
        """
        by_name = dict(zip(self._names, grads, strict=True))
        self.average(lambda bucket: [by_name[name] for name, _ in bucket.named])
        means = {
            name: None if unused else view.to(param.dtype)
            for bucket in self.buckets
            for (name, _), view, param, unused in zip(
                bucket.named, bucket.views, bucket.params, bucket.unused, strict=True
            )
        }
        for bucket in self.buckets:
            self.note_overflow(bucket)
        return [means[name] for name in self._names]


def without_data(name: str, spec: Spec) -> nn.Parameter:
    """Make a torch parameter that takes no memory."""
    allowed = ("float32", "float16", "bfloat16")
    require(spec.dtype in allowed, f"dtype of {name}", "float32, float16 or bfloat16", spec.dtype)
    return nn.Parameter(torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta"), requires_grad=False)


def share_arrays(arrays: Sequence[Any], group: dist.ProcessGroup | None) -> list[np.ndarray]:
    """Copy the first rank's arrays to all. All ranks must call it, with arrays of the same shapes and dtypes."""
    own = [np.array(array) for array in arrays]
    tensors = [torch.from_numpy(array.reshape(-1).view(np.uint8)) for array in own]
    share_start(tensors, group)
    return [tensor.numpy().view(array.dtype).reshape(array.shape) for tensor, array in zip(tensors, own, strict=True)]
