"""Optimizers of ``gradwire.optim`` by name, for runs in which the optimizer exchanges gradients instead of a hook of
DDP.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, Verbatim, nearest, require
from gradwire.optim.exchanged import Exchanged
from gradwire.optim.local.compressed_step import CompressedStep
from gradwire.optim.local.diloco import DiLoCo
from gradwire.optim.local.local_steps import LocalSteps
from gradwire.optim.local.qsparse_local import QsparseLocal
from gradwire.optim.micro_adam import MicroAdam
from gradwire.optim.onebit_adam import OneBitAdam
from gradwire.optim.zeroone_adam import ZeroOneAdam
from gradwire_lab.experiments.dense_start import DenseStart
from gradwire_lab.experiments.recipe import Recipe

__all__ = ["OPTIMIZERS", "build_optimizer", "check_exchanging"]

OPTIMIZERS: dict[str, type[Exchanged]] = {
    "compressed_step": CompressedStep,
    "dense_start": DenseStart,
    "diloco": DiLoCo,
    "micro_adam": MicroAdam,
    "onebit_adam": OneBitAdam,
    "qsparse_local": QsparseLocal,
    "zeroone_adam": ZeroOneAdam,
}

_OTHERS = (
    "inner",
    "params",
    "lr",
    "betas",
    "eps",
    "weight_decay",
    "decoupled",
    "compressor",
    "process_group",
    "meeting",
    "options",
)
"""Arguments that the task's recipe, the method or the run gives."""


def check_exchanging(config: Mapping[str, Any], recipe: Recipe) -> None:
    """Refuse an unknown optimizer, an unknown parameter of it or one out of range, or a recipe that it cannot follow.

    Args:
        config: name of the optimizer under "name", and parameters.
        recipe: recipe of the task.

    Raises:
        ConfigError

    Example:
        >>> check_exchanging({"name": "compressed_step", "every": 4}, Recipe(optimizer="adamw"))
        >>> check_exchanging({"name": "onebit_adam", "freeze_step": 4}, Recipe(optimizer="sgd"))
        Traceback (most recent call last):
        gradwire.errors.ConfigError: recipe.optimizer must be adam or adamw with onebit_adam, got 'sgd'
    """
    name = config.get("name")
    if name not in OPTIMIZERS:
        raise ConfigError(f"no optimizer {name!r} of gradwire: {nearest(str(name), OPTIMIZERS)}")
    known = _parameters(name)
    for given in config:
        if given != "name" and given not in known:
            raise ConfigError(f"{given!r} is no parameter of {name}: {nearest(given, known)}")
    for missing in (each for each, needed in known.items() if needed and each not in config):
        require(False, f"{name}.{missing}", "given", Verbatim("nothing"))
    OPTIMIZERS[name].check_parameters(config)
    if not issubclass(OPTIMIZERS[name], LocalSteps):
        require(
            recipe.optimizer in ("adam", "adamw"), "recipe.optimizer", f"adam or adamw with {name}", recipe.optimizer
        )
        coupled = recipe.optimizer == "adam" and recipe.weight_decay > 0
        takes = "decoupled" in inspect.signature(OPTIMIZERS[name]).parameters
        require(takes or not coupled, "recipe.optimizer", f"adamw with {name}, whose decay is decoupled", "adam")


def build_optimizer(
    config: Mapping[str, Any],
    recipe: Recipe,
    params: Sequence[tuple[str, nn.Parameter]],
    compressor: Compressor,
    options: Mapping[str, Any],
) -> Exchanged:
    """Build an optimizer that exchanges, with the learning rate, betas and decay of a recipe. All workers must call it.

    Args:
        config: name and parameters of the optimizer, as for ``check_exchanging``.
        recipe: recipe of the task; an optimizer that takes local steps gets the recipe's own optimizer inside.
        params: names and parameters of the model.
        compressor: compressor of what is exchanged.
        options: further arguments, as for ``compress_ddp``.

    Raises:
        ConfigError, GroupError: the optimizer refuses the arguments, or the ranks differ.
    """
    check_exchanging(config, recipe)
    kind: Any = OPTIMIZERS[config["name"]]
    own = {name: value for name, value in config.items() if name != "name"}
    made: Exchanged
    if issubclass(kind, LocalSteps):
        made = kind(recipe.build(params), compressor, **own, **options)
        return made
    if "decoupled" in inspect.signature(kind).parameters:
        own["decoupled"] = recipe.optimizer == "adamw"
    betas = float(recipe.betas[0]), float(recipe.betas[1])
    made = kind(params, recipe.lr, betas, weight_decay=recipe.weight_decay, compressor=compressor, **own, **options)
    return made


def _parameters(name: str) -> dict[str, bool]:
    """The parameters that a run may give, and whether each is required."""
    kind = OPTIMIZERS[name]
    bases = [each for each in reversed(kind.__mro__) if each in OPTIMIZERS.values()]
    found = {name: each for base in bases for name, each in inspect.signature(base).parameters.items()}
    # The recipe's rate is the inner optimizer's where there is one; DiLoCo's own is that of the outer step.
    outer = {"lr"} if issubclass(kind, LocalSteps) else set()
    return {each.name: each.default is each.empty for each in found.values() if each.name not in set(_OTHERS) - outer}
