"""Optimizers that run on the servers: a name and numbers, so that no code travels.

``set_optimizer("sgd", learning_rate=0.1, momentum=0.9)`` sends exactly that. The arithmetic is torch's; the names are
MXNet's and torch's, whichever the caller is used to.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.engine.adaptive import is_adaptive_class
from gradwire.errors import ConfigError, as_python, is_float32, is_number, nearest, require
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.lr_scheduler import LRScheduler, scheduler_of

__all__ = ["OptimizerConfig", "Updater", "updates_of"]


class SignumOptimizer(torch.optim.Optimizer):
    """Signum, which steps by the signs of a momentum; with ``momentum=0`` signSGD.

        m = momentum m + (1 - momentum) (g + weight_decay w);  w = (1 - lr wd_lh) w - lr sign(m)
        momentum = 0:                                          w = (1 - lr weight_decay) w - lr sign(g)

    Args:
        params: parameters, as for torch's optimizers.
        lr: the learning rate, >= 0.
        momentum: weight of the old momentum, in [0, 1).
        weight_decay: added to the gradient, >= 0.
        wd_lh: decay of the weights themselves, >= 0; only with a momentum, as in MXNet.

    Raises:
        ConfigError: a number outside its range, which is named.

    Source: Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: Compressed Optimisation for Non-Convex Problems",
    ICML 2018; ``mx.optimizer.Signum`` of MXNet 1.9.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        wd_lh: float = 0.0,
    ) -> None:
        for name, value in {"lr": lr, "weight_decay": weight_decay, "wd_lh": wd_lh}.items():
            require(is_number(value) and 0 <= value < math.inf, f"{name} of Signum", "a finite number >= 0", value)
        require(is_number(momentum) and 0 <= momentum < 1, "momentum of Signum", "in [0, 1)", momentum)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "wd_lh": wd_lh})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters by their gradients; ``closure`` computes the loss anew, as for all optimizers."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, group)
        return loss

    def _update(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
        if not momentum:
            param.mul_(1 - lr * decay).sub_(grad.sign(), alpha=lr)
            return
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(param)
        buffer = state["momentum_buffer"]
        buffer.mul_(momentum).add_(grad.add(param, alpha=decay), alpha=1 - momentum)
        param.mul_(1 - lr * group["wd_lh"]).sub_(buffer.sign(), alpha=lr)


@dataclass(frozen=True)
class OptimizerRow:
    """Meaning of an optimizer's name.

    Args:
        torch_class: class of torch's that computes the step; None: the gradient is added as it is, by a rate if given.
        lazy: the rows that a row-sparse gradient does not name can be left alone; in MXNet it is these, too.
        fixed: arguments that the name implies.
    """

    torch_class: type[torch.optim.Optimizer] | None
    lazy: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)


OPTIMIZERS = {
    "sgd": OptimizerRow(torch.optim.SGD, lazy=True),
    "nag": OptimizerRow(torch.optim.SGD, fixed={"nesterov": True}),
    "adam": OptimizerRow(torch.optim.Adam, lazy=True),
    "adamw": OptimizerRow(torch.optim.AdamW),
    "adagrad": OptimizerRow(torch.optim.Adagrad),
    "adadelta": OptimizerRow(torch.optim.Adadelta),
    "adamax": OptimizerRow(torch.optim.Adamax),
    "nadam": OptimizerRow(torch.optim.NAdam),
    "radam": OptimizerRow(torch.optim.RAdam),
    "rmsprop": OptimizerRow(torch.optim.RMSprop),
    "signum": OptimizerRow(SignumOptimizer),
    # MXNet's optimizer for tests: weight += rescale_grad * grad; with a learning rate, as MXNet 2 has it,
    # weight -= learning_rate * rescale_grad * grad.
    "test": OptimizerRow(None),
}
"""Names and what they stand for."""

HALVES = (torch.float16, torch.bfloat16)
"""Types of weights for which ``multi_precision`` means something."""

OURS = {"rescale_grad", "clip_gradient", "multi_precision", "lazy_update", "lr_scheduler"}
"""Parameters that are not those of torch's optimizers."""

RENAMED = {"learning_rate": "lr", "wd": "weight_decay", "epsilon": "eps", "gamma1": "alpha"}
"""MXNet's names of torch's arguments."""

BETAS = {"beta1": 0, "beta2": 1}

LEFT_OUT = {"self", "params", "foreach", "capturable", "differentiable", "fused", "betas"}
"""Arguments of torch's optimizers that are no numbers, or say how and not what to compute."""

MASTER, COUNT = "master", "num_update"
"""Names in a state: the float32 weights beside 16-bit ones, and how many updates a scheduler has seen."""

LIMITS = {
    "rescale_grad": (0.0, math.inf, "a finite number >= 0"),
    "dampening": (0.0, 1.0, "a number in [0, 1]"),
    "alpha": (0.0, 1.0, "a number in [0, 1]"),
    "gamma1": (0.0, 1.0, "a number in [0, 1]"),
}
"""The smallest and the largest value of parameters that torch and MXNet do not check, and the same in words."""


@dataclass(frozen=True)
class OptimizerConfig:
    """An optimizer in the form in which it travels: a name and numbers.

    Args:
        name: one of ``OPTIMIZERS``: "sgd", "nag", "adam", "adamw", "adagrad", "adadelta", "adamax", "nadam", "radam",
            "rmsprop", "signum" or "test".
        numbers: parameters by MXNet's names or torch's; besides those, ``rescale_grad`` >= 0 multiplies every gradient
            (default 1; that of "test" may be negative) and ``clip_gradient`` > 0 then limits each element to [-c, c]
            (default: no limit); ``multi_precision=True`` keeps weights of 16 bits and their states in float32 beside
            them; ``lazy_update=True`` of "sgd" and "adam" leaves the rows alone that a row-sparse gradient does not
            name; ``lr_scheduler`` is one of ``gradwire.contrib.mxnet.lr_scheduler``, whose rate takes the place of the
            learning rate in the n-th update of each key. "signum" is MXNet's, with ``wd_lh``.

    Raises:
        ConfigError: an unknown name or parameter, or a value of another kind.

    Example:
        >>> OptimizerConfig("sgd", {"learning_rate": 0.1, "momentum": 0.9}).torch_arguments()
        {'lr': 0.1, 'momentum': 0.9}
    """

    name: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = list(OPTIMIZERS)
        if not isinstance(self.name, str) or self.name not in names:
            raise ConfigError(f"unknown optimizer {self.name!r}: {nearest(self.name, names)}")
        # They travel, and are saved, as Python's own numbers.
        object.__setattr__(self, "numbers", {name: as_python(value) for name, value in self.numbers.items()})
        allowed, given = self._allowed(), dict[str, str]()
        for name, value in self.numbers.items():
            other = given.setdefault(RENAMED.get(name, name), name)
            if other != name:
                raise ConfigError(f"{name} and {other} of optimizer {self.name!r} are one parameter: give one of them")
            if name not in allowed:
                raise ConfigError(f"optimizer {self.name!r} has no parameter {name!r}: {nearest(name, allowed)}")
            if name != "lr_scheduler":
                self._check(name, value)
        if self.numbers.get("lr_scheduler") is not None:
            # The configuration keeps the form that travels: a scheduler object may be changed later by its owner.
            told = scheduler_of(self.numbers["lr_scheduler"], self.learning_rate).to_config()
            object.__setattr__(self, "numbers", {**self.numbers, "lr_scheduler": told})
        self._try()

    @property
    def row(self) -> OptimizerRow:
        """Return the row of the name."""
        return OPTIMIZERS[self.name]

    @property
    def learning_rate(self) -> float | None:
        """The learning rate that was given, under either of its names."""
        value = self.numbers.get("learning_rate", self.numbers.get("lr"))
        return None if value is None else float(value)

    @property
    def adaptive(self) -> bool:
        """Return whether the optimizer divides gradients by the size of recent ones."""
        made_of = self.row.torch_class
        return made_of is not None and is_adaptive_class(made_of)

    @property
    def scheduler(self) -> LRScheduler | None:
        """The scheduler whose rates replace the learning rate."""
        told = self.numbers.get("lr_scheduler")
        return None if told is None else scheduler_of(told)

    def is_wide(self, dtype: torch.dtype) -> bool:
        """Return whether weights of a dtype have float32 copies."""
        return bool(self.numbers.get("multi_precision")) and dtype in HALVES

    @property
    def lazy(self) -> bool:
        """Return whether rows that a row-sparse gradient does not name are left alone."""
        return bool(self.numbers.get("lazy_update"))

    @property
    def rescale_grad(self) -> float:
        return float(self.numbers.get("rescale_grad", 1.0) or 0.0)

    @property
    def clip_gradient(self) -> float | None:
        return self.numbers.get("clip_gradient")

    def replace(self, **numbers: float) -> OptimizerConfig:
        """Return the same optimizer with some numbers changed, under whichever of two names they were given before."""
        new = {RENAMED.get(name, name) for name in numbers}
        kept = {name: value for name, value in self.numbers.items() if RENAMED.get(name, name) not in new}
        return dataclasses.replace(self, numbers={**kept, **numbers})

    def torch_arguments(self) -> dict[str, Any]:
        """The arguments for the constructor of torch's optimizer."""
        numbers = {n: value for n, value in self.numbers.items() if n not in OURS}
        arguments: dict[str, Any] = {RENAMED.get(n, n): value for n, value in numbers.items() if n not in BETAS}
        if any(n in numbers for n in BETAS):
            betas = list(self._parameters()["betas"].default)
            for n, i in BETAS.items():
                betas[i] = numbers.get(n, betas[i])
            arguments["betas"] = tuple(betas)
        return {**self.row.fixed, **arguments}

    def check_value(self, key: StoreKey, dtype: torch.dtype) -> None:
        """Refuse to update a value of a dtype that the arithmetic of the optimizer does not have.

        Raises:
            ConfigError: the optimizer is torch's, and the dtype is not floating-point.
        """
        fits = self.row.torch_class is None or dtype.is_floating_point
        require(fits, f"the dtype of key {key!r}, which optimizer {self.name!r} updates,", "floating-point", dtype)

    def check_state(self, key: StoreKey, state: Mapping[str, Any], value: Tensor) -> None:
        """Refuse a state that this optimizer cannot continue from.

        Args:
            key: key that the state belongs to, for the error.
            state: tensors and numbers by name; empty before the first step.
            value: value of the key.

        Raises:
            ConfigError: an entry is missing, is not known, or has another shape or type.
        """
        got = {name: torch.as_tensor(each, device="cpu") for name, each in state.items() if each is not None}
        count, wide = got.pop(COUNT, torch.tensor(0, device="cpu")), self.is_wide(value.dtype)
        counts = count.dtype == torch.int64 and not count.dim() and int(count) >= 0
        require(counts, f"{COUNT} of key {key!r}", "an integer >= 0", count)
        dtype = torch.float32 if wide else value.dtype
        wanted = {
            name: torch.empty(
                value.shape if each.dim() else (), dtype=dtype if each.dim() else each.dtype, device="meta"
            )
            for name, each in self._kept().items()
        }
        if wide:
            wanted[MASTER] = torch.empty(value.shape, dtype=dtype, device="meta")
        if got and described(got) != described(wanted):
            raise ConfigError(
                f"the states of key {key!r} for {self.name!r} must be {described(wanted)}, got {described(got)}"
            )

    def _allowed(self) -> set[str]:
        common = OURS - (set() if self.row.lazy else {"lazy_update"})
        if self.row.torch_class is None:
            return {"rescale_grad", "clip_gradient", "learning_rate", "lr"}
        theirs = set(self._parameters())
        renamed = {ours for ours, name in RENAMED.items() if name in theirs}
        return common | (theirs - LEFT_OUT) | renamed | (set(BETAS) if "betas" in theirs else set())

    def _try(self) -> None:
        if self.row.torch_class is None:
            return
        try:
            self.row.torch_class(
                [nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"))], **self.torch_arguments()
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"optimizer {self.name!r} refuses {dict(self.numbers)}: {error}") from error

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of torch's class, which are none where there is no such class."""
        return inspect.signature(self.row.torch_class).parameters if self.row.torch_class else {}

    def _kept(self) -> dict[str, Tensor]:
        """The state after a step on one element."""
        if self.row.torch_class is None:
            return {}
        param = nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"))
        param.grad = torch.ones(1, dtype=torch.float32, device="cpu")
        optimizer = self.row.torch_class([param], **self.torch_arguments())
        optimizer.step()
        return {
            name: torch.as_tensor(each, device="cpu")
            for name, each in optimizer.state[param].items()
            if each is not None
        }

    def _check(self, name: str, value: Any) -> None:
        """Refuse a value of another type than the parameter's default has.

        Raises:
            ConfigError: the value has another type.
        """
        if name in ("multi_precision", "lazy_update"):
            default: Any = False
        elif name in BETAS or name == "rescale_grad" or self.row.torch_class is None:
            default = 0.0
        else:
            known = self._parameters().get(RENAMED.get(name, name))
            default = None if known is None else known.default
        if isinstance(default, bool):
            right, allowed = isinstance(value, bool), "True or False"
        else:
            right, allowed = is_float32(value) or (value is None and default is None), "a finite number"
        if name == "clip_gradient":
            # Limits of 0 or less would make one number of all gradients.
            right, allowed = right and (value is None or value > 0), "a finite number > 0, or None"
        elif name in LIMITS and self.row.torch_class is not None:
            # Values that torch takes, with which weights go up the gradient or become NaN.
            lowest, highest, words = LIMITS[name]
            right, allowed = right and lowest <= value <= highest, words
        require(right, f"{name} of optimizer {self.name!r}", allowed, value)


class Updater:
    """An updater that applies an optimizer to the weights of a store, with a state for each key.

    Args:
        config: the optimizer.
    """

    def __init__(self, config: OptimizerConfig) -> None:
        self.config, self._arguments, self._scheduler = config, config.torch_arguments(), config.scheduler
        self._optimizers: dict[StoreKey, torch.optim.Optimizer] = {}
        self._waiting: dict[StoreKey, dict[str, Any]] = {}
        self._made: dict[StoreKey, int] = {}
        """Updates of each key."""
        self._wide: set[StoreKey] = set()
        """Keys whose parameter is the float32 one beside the value."""

    def __call__(self, key: StoreKey, merged: Tensor, stored: Tensor, rows: Tensor | None = None) -> None:
        """Update ``stored`` by the summed gradient ``merged``, which may be overwritten.

        Args:
            key: key of the store.
            merged: float32 or wider, of the value's shape.
            stored: the value.
            rows: int64, those that a row-sparse gradient names; None: it is dense.
        """
        config = self.config
        if config.rescale_grad != 1.0:
            merged.mul_(config.rescale_grad)
        if config.clip_gradient is not None:
            merged.clamp_(-config.clip_gradient, config.clip_gradient)
        made_of = config.row.torch_class
        if made_of is None:
            rate = config.learning_rate
            stored.add_(merged if rate is None else merged.mul_(-rate))
            return
        optimizer = self._optimizer(key, stored, made_of)
        # In each step, because ``use`` and ``with_config`` may have changed numbers under the same states.
        optimizer.param_groups[0].update(self._arguments)
        self._made[key] = self._made.get(key, 0) + 1
        if self._scheduler is not None:
            optimizer.param_groups[0]["lr"] = self._scheduler(self._made[key])
        (param,) = optimizer.param_groups[0]["params"]
        wide = key in self._wide
        if not wide:
            # A store may keep the value in other memory than it did.
            param.data = stored
        grad = merged.to(param.dtype)
        if rows is None or not config.lazy:
            param.grad = grad
            optimizer.step()
            param.grad = None
        else:
            step_rows(optimizer, param, grad, rows)
        if wide:
            stored.copy_(param.data)

    def use(self, config: OptimizerConfig) -> None:
        """Use other numbers from now on, with the same state.

        Raises:
            ConfigError: another optimizer, whose state would mean something else.
        """
        if config.name != self.config.name:
            raise ConfigError(
                f"{config.name!r} cannot go on from the states of {self.config.name!r}, the optimizer here"
            )
        both = [bool(each.numbers.get("multi_precision")) for each in (config, self.config)]
        require(both[0] is both[1], "multi_precision", f"{both[1]}, as the states that there are", both[0])
        self.config, self._arguments, self._scheduler = config, config.torch_arguments(), config.scheduler

    def with_config(self, config: OptimizerConfig) -> Updater:
        """Return an updater that shares this one's state, for steps from which on the numbers are others."""
        other = Updater(self.config)
        other._optimizers, other._waiting = self._optimizers, self._waiting
        other._made, other._wide = self._made, self._wide
        other.use(config)
        return other

    def state_dict(self) -> dict[StoreKey, dict[str, Any]]:
        """Return the tensors and numbers that the optimizer keeps, by key; the tensors are not copies."""
        states: dict[StoreKey, dict[str, Any]] = dict(self._waiting)
        for key, optimizer in self._optimizers.items():
            (param,) = optimizer.param_groups[0]["params"]
            states[key] = dict(optimizer.state[param])
            # Also where no scheduler reads it: one may be set later.
            states[key][COUNT] = torch.tensor(self._made.get(key, 0), device="cpu")
            if key in self._wide:
                states[key][MASTER] = param.data
        return states

    def load_state_dict(self, states: Mapping[StoreKey, Mapping[str, Any]]) -> None:
        """Continue from a ``state_dict``, for keys that exist already and for those that will.

        Raises:
            ConfigError: the states belong to another optimizer, or to tensors of another shape.
        """
        # All are checked before one is replaced, so that an error leaves the states as they were.
        for key in states.keys() & self._optimizers.keys():
            (param,) = self._optimizers[key].param_groups[0]["params"]
            like = param.to("meta", torch.float16) if key in self._wide else param
            self.config.check_state(key, states[key], like)
        self._waiting.clear()
        self._waiting.update({key: {n: copied(value) for n, value in state.items()} for key, state in states.items()})
        self._made.clear()
        for key, optimizer in self._optimizers.items():
            (param,) = optimizer.param_groups[0]["params"]
            self._restore(key, optimizer, param)

    def _optimizer(self, key: StoreKey, stored: Tensor, made_of: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
        if key not in self._optimizers:
            wide = self.config.is_wide(stored.dtype)
            self._wide |= {key} if wide else set()
            param = nn.Parameter(stored.float() if wide else stored)
            self._optimizers[key] = made_of([param], **self._arguments)
            if key in self._waiting:
                self.config.check_state(key, self._waiting[key], stored)
                self._restore(key, self._optimizers[key], param)
        return self._optimizers[key]

    def _restore(self, key: StoreKey, optimizer: torch.optim.Optimizer, param: Tensor) -> None:
        """Restore the state that waits for a key."""
        state = self._waiting.pop(key, {})
        self._made[key] = int(state.pop(COUNT, 0))
        if MASTER in state:
            param.data = state.pop(MASTER)
        optimizer.state[param] = state


def updates_of(states: Mapping[StoreKey, Mapping[str, Any]]) -> int:
    """Return the number of updates of the key of a ``state_dict`` that has had the most."""
    return max((int(state.get(COUNT, 0)) for state in states.values()), default=0)


def step_rows(optimizer: torch.optim.Optimizer, param: Tensor, grad: Tensor, rows: Tensor) -> None:
    """Update some rows of a parameter, and of its state; the others stay unchanged.

    Args:
        optimizer: optimizer of this parameter alone.
        param: parameter of any shape with rows.
        grad: gradient of the parameter's shape.
        rows: int64, each once.
    """
    group, whole = optimizer.param_groups[0], optimizer.state.pop(param, {})
    part = nn.Parameter(param.data[rows])
    part.grad = grad[rows]
    state = {n: each[rows] if of_rows(each, param) else each for n, each in whole.items()}
    if state:
        optimizer.state[part] = state
    group["params"] = [part]
    optimizer.step()
    param.data[rows] = part.data
    for name, each in optimizer.state.pop(part, {}).items():
        if of_rows(each, part):
            if name not in whole:
                whole[name] = torch.zeros_like(param.data)
            whole[name][rows] = each
        else:
            whole[name] = each
    group["params"] = [param]
    optimizer.state[param] = whole


def of_rows(value: Any, param: Tensor) -> bool:
    """Return whether a tensor of the state has an element for each one of the parameter."""
    return isinstance(value, Tensor) and value.shape == param.shape and value.dim() > 0


def described(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Describe dtype and shape of each tensor.

    >>> described({"step": torch.tensor(1.0)})
    {'step': 'float32 ()'}
    """
    return {name: f"{str(each.dtype)[6:]} {tuple(each.shape)}" for name, each in sorted(state.items())}


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
