"""Correction of Adam's learning rate for gradients that carry a code's noise.

    p = p - factor lr m / (sqrt(v) + eps),  factor = |what arrives| / |the exact mean|

Invariants:
    * The rates in ``param_groups`` are larger only while the optimizer's own step runs, so schedulers never see it.
    * Decoupled decay, as AdamW's, is part of that step and is multiplied, too.

Why:
    The second moment v of what arrives is factor^2 times as large as that of the exact mean, while its mean m is the
    same. With the correction a step is as long as without compression, and a learning rate that was found without
    compression can be kept.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim import Optimizer

from gradwire.engine.adaptive import is_adaptive, noise_only
from gradwire.engine.exchange import Exchange
from gradwire.engine.methods import Methods
from gradwire.errors import ConfigError, require
from gradwire.notices import tell

__all__ = ["VarianceCorrection", "check_noise"]


_SAID = 1.1
"""The factor from which on the log says once what is done."""


class VarianceCorrection:
    """A correction that multiplies the learning rates of an optimizer by the measured factor, during each of its steps.

    Args:
        exchange: exchange that averages the gradients; it measures from now on.
        optimizer: optimizer that trains with them.

    Raises:
        ConfigError: a method whose error is not noise.
    """

    def __init__(self, exchange: Exchange, optimizer: Optimizer) -> None:
        self._exchange, self._optimizer = weakref.ref(exchange), weakref.ref(optimizer)
        exchange.measure_noise()
        self._rates: list[Any] | None = None
        self._said = False
        # The hooks are methods of this object and not of the state, which the optimizer may outlive and must not keep.
        self._hooks = [optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after)]

    @staticmethod
    def check(optimizer: Optimizer | None) -> None:
        """Refuse an optimizer whose steps do not become shorter by noise.

        Raises:
            ConfigError: the optimizer is one of torch's that does not divide by a mean of squares.
        """
        if optimizer is None:
            return
        others = type(optimizer).__module__.startswith("torch.optim") and not is_adaptive(optimizer)
        require(
            not others,
            "variance_correction",
            "an optimizer that divides by a mean of squares, as Adam does",
            type(optimizer).__name__,
        )

    def close(self) -> None:
        """Stop the correction; not to be called within a step of the optimizer."""
        for hook in self._hooks:
            hook.remove()
        optimizer = self._optimizer()
        if optimizer is not None:
            self._restore(optimizer)  # The last step may have raised.

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        self._restore(optimizer)  # The step before may have raised.
        exchange = self._exchange()
        factor = exchange.second_moment.factor if exchange is not None and exchange.second_moment is not None else 1.0
        if factor == 1.0 or exchange is None:
            return
        if factor >= _SAID and not self._said and exchange.channel.rank == 0:
            tell(
                "%s steps with %.3g times its learning rates, because the noise of the code makes gradients as much "
                "longer; the factor follows the noise (docs/adaptive.md)",
                type(optimizer).__name__,
                factor,
                quiet=exchange.quiet,
            )
            self._said = True
        # The objects themselves are put back, because a rate may be a tensor that a scheduler holds, too.
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        self._restore(optimizer)

    def _restore(self, optimizer: Optimizer) -> None:
        # Once only: a second call must not put an old rate over what a scheduler has set since.
        rates, self._rates = self._rates, None
        if rates is not None:
            for group, rate in zip(optimizer.param_groups, rates, strict=False):
                group["lr"] = rate


def check_noise(methods: Methods) -> None:
    """Refuse a method whose error is not noise around the right mean.

    Raises:
        ConfigError: the method keeps back what it does not send, or is wrong on average.
    """
    for method in methods.named():
        if not noise_only(method, methods.memory_for(method)):
            raise ConfigError(
                "variance_correction must be None with a method that is wrong on average or keeps back what it does "
                f"not send, got {method.name!r} with memory {methods.memory_for(method).name!r}; it is for codes such "
                "as 'qsgd' with memory='none'"
            )
