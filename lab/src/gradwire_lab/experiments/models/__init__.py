"""Models, one in each file, full size and as a small variant of the same family.

The folder is the list: ``gradwire_lab/experiments/models/<name>.py`` defines ``<name>()`` and ``<name>_small()``, each
of which makes the model, initialised from torch's global generator; ``DATA``, what the full size is trained on; and
how, ``RECIPE`` and ``RECIPE_SMALL``. Files that start with an underscore hold what several share.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gradwire.registry import names_in
from gradwire_lab.folders import load

__all__ = ["Facts", "build", "facts", "find", "names", "trained"]


@dataclass(frozen=True)
class Facts:
    """The tensors that are exchanged when a model is trained."""

    name: str
    data: str
    title: str
    shapes: dict[str, tuple[int, ...]]

    @property
    def parameters(self) -> int:
        """The number of trained elements."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    @property
    def tensors(self) -> int:
        """The number of trained tensors."""
        return len(self.shapes)

    @property
    def largest(self) -> int:
        """The number of elements of the largest tensor."""
        return max(torch.Size(shape).numel() for shape in self.shapes.values())


def names() -> tuple[str, ...]:
    """The names of all models.

    >>> "resnet20" in names()
    True
    """
    return names_in(__path__)


def find(name: str) -> ModuleType:
    """Import the module of a model; case, hyphens and underscores do not matter, so the name in a paper is accepted.

    Raises:
        ConfigError: no such file.

    Example:
        >>> find("VGG16-CIFAR").__name__
        'gradwire_lab.experiments.models.vgg16_cifar'
    """
    known = {_bare(each): each for each in names()}
    return load(__name__, "model", known.get(_bare(name), name), names())


def build(
    name: str, *, small: bool = False, device: torch.device | str = "cpu", sizes: Mapping[str, int] | None = None
) -> nn.Module:
    """Build a new model.

    Args:
        name: name of the model, one that ``find`` knows.
        small: the small variant.
        device: device on which the model is made; on ``meta`` it has shapes and no memory.
        sizes: sizes that follow from the data, for a model that has any: a vocabulary, users, items.

    Raises:
        ConfigError: no such model.
    """
    module = find(name)
    with torch.device(device):
        model: nn.Module = getattr(module, _function(module, small=small))(**(sizes or {}))
    return model


def facts(name: str, *, small: bool = False) -> Facts:
    """Count a model's tensors without allocating it.

    Raises:
        ConfigError: no such model.

    Example:
        >>> resnet20 = facts("resnet20")
        >>> resnet20.parameters, resnet20.tensors, resnet20.largest
        (269467, 51, 36864)
    """
    module = find(name)
    with _Unfilled():
        model = build(name, small=small, device="meta")
    shapes = {key: tuple(value.shape) for key, value in trained(model).items()}
    title = (module.__doc__ or "").partition("\n")[0].rstrip(".")
    return Facts(_function(module, small=small), module.DATA, title, shapes)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that have a gradient, by name; one that is used twice counts once."""
    return {name: param for name, param in model.named_parameters() if param.requires_grad}


class _Unfilled(TorchFunctionMode):
    """A mode that skips random initialisation: without memory, the first such call would load torch's compiler, for
    seconds.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        # The method, and the function of ``nn.init``.
        return given.get("tensor", *args[:1]) if func.__name__ == "normal_" else func(*args, **given)


def _function(module: ModuleType, *, small: bool) -> str:
    name = module.__name__.rpartition(".")[2]
    return f"{name}_small" if small else name


def _bare(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
