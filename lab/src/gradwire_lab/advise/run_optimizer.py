"""The optimizer of the run that is asked about: whether it bears what a residual sends late."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.adaptive import is_adaptive, keeps_much
from gradwire.errors import require
from gradwire.memory.base import default_memory
from gradwire.optim.local.muon_adamw import MuonAdamW
from gradwire_lab.experiments import models
from gradwire_lab.experiments.recipe import OPTIMIZERS, Recipe

__all__ = ["NAMES", "RunOptimizer"]

NAMES = tuple(sorted(OPTIMIZERS))
"""The optimizers that ``--optimizer`` may name."""

MOST_NOISE = 1.0
"""The variance, in units of the squared gradient, that unbiased methods may add: AdamW trained as well with 0.57, and
half a percent worse with 1.35 (docs/adaptive.md)."""

NUMEL = 2**20
"""Elements of a tensor for which that variance is asked."""


@dataclass(frozen=True)
class RunOptimizer:
    """An optimizer, and whence it is known.

    Args:
        name: name of the optimizer, or of its class.
        adaptive: true: it divides gradients by the size of earlier ones; None: nobody knows.
        source: the origin of the name, in words.
    """

    name: str
    adaptive: bool | None
    source: str

    @classmethod
    def named(cls, name: str, source: str) -> RunOptimizer:
        """Make the one that ``--optimizer`` names.

        Raises:
            ConfigError: there is no such name.
        """
        require(name in NAMES, "--optimizer", f"one of {', '.join(NAMES)}", name)
        made = Recipe(optimizer=name).build([("0.weight", torch.zeros(1, 1, requires_grad=True))])
        return cls(name, is_adaptive(made) or isinstance(made, MuonAdamW), source)

    @classmethod
    def of_model(cls, model: str, *, small: bool = False) -> RunOptimizer:
        """Find the one with which a model is usually trained.

        >>> RunOptimizer.of_model("gpt2").name, RunOptimizer.of_model("resnet50").adaptive
        ('adamw', False)
        """
        module = models.find(model)
        recipe: Recipe = module.RECIPE_SMALL if small else module.RECIPE
        return cls.named(recipe.optimizer, f"the optimizer of the recipe of {model}")

    def refusal(self, compressor: Compressor) -> str:
        """Say why a method does not suit the optimizer; empty: it does.

        >>> from gradwire.compressors.sparse.topk import TopK
        >>> [RunOptimizer.named(name, "").refusal(TopK()) == "" for name in ("sgd", "adamw")]
        [True, False]
        """
        memory = registry.build("memory", default_memory(compressor))
        kept = keeps_much(compressor, memory) is not None
        quiet = not kept and capabilities.omega(compressor, NUMEL) <= MOST_NOISE
        if not self.adaptive or capabilities.fine(compressor) or quiet:
            return ""
        why = "training ends worse with what a residual sends late" if kept else "it is not known how training ends"
        return f"{why} under {self.name} ({self.source}; docs/adaptive.md); --optimizer sgd counts them"
