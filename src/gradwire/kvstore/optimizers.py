"""Optimizers that live where the weights live: named, with numbers, and nothing else that would have to travel.

``set_optimizer("sgd", learning_rate=0.1, momentum=0.9)`` sends exactly that. The arithmetic is torch's; the names are
MXNet's and torch's, whichever the caller is used to.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.errors import ConfigError, is_float32, nearest, require
from gradwire.kvstore.keys import StoreKey

__all__ = ["OptimizerConfig", "Updater", "optimizer_names"]

TORCH: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD, "nag": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad, "adadelta": torch.optim.Adadelta, "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam, "radam": torch.optim.RAdam, "rmsprop": torch.optim.RMSprop,
}  # fmt: skip
"""Names and what they are made of."""

TEST = "test"
"""MXNet's optimizer for tests: weight += rescale_grad * grad."""

RENAMED = {"learning_rate": "lr", "wd": "weight_decay", "epsilon": "eps", "gamma1": "alpha"}
"""MXNet's names of torch's arguments."""

BETAS = {"beta1": 0, "beta2": 1}

LEFT_OUT = {"self", "params", "foreach", "capturable", "differentiable", "fused", "betas"}
"""Arguments of torch's optimizers that are no numbers, or say how and not what to compute."""

FIXED = {"nag": {"nesterov": True}}
"""What a name implies."""


@dataclass(frozen=True)
class OptimizerConfig:
    """An optimizer as it travels: a name and numbers.

    Args:
        name: one of ``optimizer_names()``.
        numbers: its parameters by MXNet's names or torch's; besides those, ``rescale_grad`` multiplies every gradient
            (default 1) and ``clip_gradient`` then limits each element to [-c, c] (default: no limit).

    Raises:
        ConfigError: an unknown name or parameter, or a value that is no number.

    Example:
        >>> OptimizerConfig("sgd", {"learning_rate": 0.1, "momentum": 0.9}).torch_arguments()
        {'lr': 0.1, 'momentum': 0.9}
    """

    name: str
    numbers: Mapping[str, float | bool | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = isinstance(self.name, str) and self.name in optimizer_names()
        if not known:
            raise ConfigError(f"unknown optimizer {self.name!r}: {nearest(self.name, optimizer_names())}")
        allowed = self._allowed()
        for name, value in self.numbers.items():
            if name not in allowed:
                raise ConfigError(f"optimizer {self.name!r} has no parameter {name!r}: {nearest(name, allowed)}")
            require(self._is_right(name, value), f"{name} of optimizer {self.name!r}", "a finite number", value)
        self._try()

    @property
    def rescale_grad(self) -> float:
        return float(self.numbers.get("rescale_grad", 1.0) or 0.0)

    @property
    def clip_gradient(self) -> float | None:
        return self.numbers.get("clip_gradient")

    def replace(self, **numbers: float) -> OptimizerConfig:
        """The same with some numbers changed, whichever of two names they were given by before."""
        new = {RENAMED.get(name, name) for name in numbers}
        kept = {name: value for name, value in self.numbers.items() if RENAMED.get(name, name) not in new}
        return dataclasses.replace(self, numbers={**kept, **numbers})

    def torch_arguments(self) -> dict[str, Any]:
        """For the constructor of torch's optimizer."""
        numbers = {n: value for n, value in self.numbers.items() if n not in ("rescale_grad", "clip_gradient")}
        arguments: dict[str, Any] = {RENAMED.get(n, n): value for n, value in numbers.items() if n not in BETAS}
        if any(n in numbers for n in BETAS):
            betas = list(inspect.signature(TORCH[self.name]).parameters["betas"].default)
            for n, i in BETAS.items():
                betas[i] = numbers.get(n, betas[i])
            arguments["betas"] = tuple(betas)
        return {**FIXED.get(self.name, {}), **arguments}

    def check_state(self, key: StoreKey, state: Mapping[str, Any], value: Tensor) -> None:
        """Refuse what this optimizer cannot go on from.

        Args:
            key: whose state, for the error.
            state: tensors and numbers by name; empty before the first step.
            value: of the key.

        Raises:
            ConfigError: something is missing, is not known, or has another shape or type.
        """
        got = {name: torch.as_tensor(each) for name, each in state.items() if each is not None}
        wanted = {name: torch.empty(value.shape if each.dim() else (), dtype=value.dtype if each.dim() else each.dtype,
                                    device="meta") for name, each in self._kept().items()}  # fmt: skip
        if got and described(got) != described(wanted):
            raise ConfigError(
                f"the states of key {key!r} for {self.name!r} must be {described(wanted)}, got {described(got)}"
            )

    def _allowed(self) -> set[str]:
        common = {"rescale_grad", "clip_gradient"}
        if self.name == TEST:
            return common
        theirs = set(inspect.signature(TORCH[self.name]).parameters)
        renamed = {ours for ours, name in RENAMED.items() if name in theirs}
        return common | (theirs - LEFT_OUT) | renamed | (set(BETAS) if "betas" in theirs else set())

    def _try(self) -> None:
        if self.name == TEST:
            return
        try:
            TORCH[self.name]([nn.Parameter(torch.zeros(1))], **self.torch_arguments())
        except (TypeError, ValueError) as error:
            raise ConfigError(f"optimizer {self.name!r} refuses {dict(self.numbers)}: {error}") from error

    def _kept(self) -> dict[str, Tensor]:
        """What there is after a step of one element."""
        if self.name == TEST:
            return {}
        param = nn.Parameter(torch.zeros(1))
        param.grad = torch.ones(1)
        optimizer = TORCH[self.name]([param], **self.torch_arguments())
        optimizer.step()
        return {name: torch.as_tensor(each) for name, each in optimizer.state[param].items() if each is not None}

    def _is_right(self, name: str, value: Any) -> bool:
        """Whether a value is of the kind that the parameter's own default is."""
        if name in BETAS or name == "rescale_grad" or self.name == TEST:
            default: Any = 0.0
        else:
            known = inspect.signature(TORCH[self.name]).parameters.get(RENAMED.get(name, name))
            default = None if known is None else known.default
        if isinstance(value, bool) or isinstance(default, bool):
            return isinstance(value, bool) and isinstance(default, bool)
        return is_float32(value) or (value is None and default is None)


def optimizer_names() -> list[str]:
    """All that ``set_optimizer`` knows."""
    return [*TORCH, TEST]


class Updater:
    """Applies an optimizer to the weights of a store; its state is kept by key.

    Args:
        config: the optimizer.
    """

    def __init__(self, config: OptimizerConfig) -> None:
        self.config, self._arguments = config, config.torch_arguments()
        self._optimizers: dict[StoreKey, torch.optim.Optimizer] = {}
        self._waiting: dict[StoreKey, dict[str, Any]] = {}

    def __call__(self, key: StoreKey, merged: Tensor, stored: Tensor) -> None:
        """Change ``stored`` by the summed gradient ``merged``, which is used up."""
        config = self.config
        if config.rescale_grad != 1.0:
            merged.mul_(config.rescale_grad)
        if config.clip_gradient is not None:
            merged.clamp_(-config.clip_gradient, config.clip_gradient)
        if config.name == TEST:
            stored.add_(merged)
            return
        optimizer = self._optimizer(key, stored)
        optimizer.param_groups[0].update(self._arguments)
        (param,) = optimizer.param_groups[0]["params"]
        # A store may keep the value in other memory than it did.
        param.data = stored
        param.grad = merged.to(stored.dtype)
        optimizer.step()
        param.grad = None

    def use(self, config: OptimizerConfig) -> None:
        """Go on with other numbers, and the same state.

        Raises:
            ConfigError: another optimizer, whose state would mean something else.
        """
        if config.name != self.config.name:
            raise ConfigError(
                f"{config.name!r} cannot go on from the states of {self.config.name!r}, the optimizer here"
            )
        self.config, self._arguments = config, config.torch_arguments()

    def with_config(self, config: OptimizerConfig) -> Updater:
        """One that shares this one's state, for steps from which on the numbers are others."""
        other = Updater(self.config)
        other._optimizers, other._waiting = self._optimizers, self._waiting
        other.use(config)
        return other

    def state_dict(self) -> dict[StoreKey, dict[str, Any]]:
        """By key: tensors and numbers that the optimizer keeps; the tensors are those in use."""
        states: dict[StoreKey, dict[str, Any]] = dict(self._waiting)
        for key, optimizer in self._optimizers.items():
            (param,) = optimizer.param_groups[0]["params"]
            states[key] = dict(optimizer.state[param])
        return states

    def load_state_dict(self, states: Mapping[StoreKey, Mapping[str, Any]]) -> None:
        """Go on from what ``state_dict`` gave, for keys that are there already and for those that will be.

        Raises:
            ConfigError: it is of another optimizer, or of tensors of another shape.
        """
        for key in states.keys() & self._optimizers.keys():
            (param,) = self._optimizers[key].param_groups[0]["params"]
            self.config.check_state(key, states[key], param)
        self._waiting.clear()
        self._waiting.update({key: {n: copied(value) for n, value in state.items()} for key, state in states.items()})
        for key, optimizer in self._optimizers.items():
            (param,) = optimizer.param_groups[0]["params"]
            optimizer.state[param] = self._waiting.pop(key, {})

    def _optimizer(self, key: StoreKey, stored: Tensor) -> torch.optim.Optimizer:
        if key not in self._optimizers:
            param = nn.Parameter(stored)
            self._optimizers[key] = TORCH[self.config.name]([param], **self._arguments)
            if key in self._waiting:
                self.config.check_state(key, self._waiting[key], stored)
                self._optimizers[key].state[param] = self._waiting.pop(key)
        return self._optimizers[key]


def described(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Type and shape of each tensor.

    >>> described({"step": torch.tensor(1.0)})
    {'step': 'float32 ()'}
    """
    return {name: f"{str(each.dtype)[6:]} {tuple(each.shape)}" for name, each in sorted(state.items())}


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
