"""Segmentation of defects on textured surfaces: by default generated ones, with a small U-Net."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gradwire_lab.experiments.data.base import Surfaces, Tensors
from gradwire_lab.experiments.data.surfaces import generate
from gradwire_lab.experiments.tasks.base import Task, pieces, shuffled

__all__ = ["Segmentation"]

_SMOOTH = 1e-5
_DICE_BELOW = 0.3


class Segmentation(Task):
    """Mean IoU of the marked pixels over defective images. A folder may hold DAGM2007.

    The Dice coefficient over all test images, those without a defect among them, is measured too: the survey's program
    reports it under the name of IoU. An image without a defect counts 1 if nothing is marked, and nearly 0 else.

    Example:
        >>> task = Segmentation()
        >>> task.data.name, task.model_name, task.steps(epochs=20)
        ('generated surfaces', 'unet_small', 300)
    """

    name = "segmentation"
    measure = "IoU"
    MODELS = ("unet",)
    DATA = ("dagm2007",)
    data: Surfaces

    def embedded(self) -> Surfaces:
        return generate()

    def baselines(self) -> dict[str, float]:
        """The IoU of marking everything; marking nothing is 0."""
        masks = self.data.test.targets
        return {"everything": overlaps(torch.ones_like(masks), masks)[self.measure]}

    def largest_batch(self) -> int:
        return len(self.data.train)

    def _shares(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        return shuffled(Reflected(self.data.train), self.recipe.batch, self.generator(epoch), rank, world, augment=True)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The Dice loss once it is small, and until then the cross entropy of each pixel, whose gradient never
        vanishes.
        """
        probability = output.sigmoid()
        dice = 1 - (2 * (probability * target).sum() + 1) / (probability.sum() + target.sum() + 1)
        return dice if dice.item() < _DICE_BELOW else F.binary_cross_entropy_with_logits(output, target)

    @torch.no_grad()
    def measures(self, model: nn.Module) -> dict[str, float]:
        model.eval()
        marked = torch.cat([_marked(model(x), y) for x, y in pieces(self.data.test, 16)])
        return overlaps(marked, self.data.test.targets)


class Reflected:
    """Examples of which half are reflected."""

    def __init__(self, examples: Tensors) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x, y = self.examples.batch(indices)
        if draws is None:
            return x, y
        mirrored = (draws[:, 2] < 0.5)[:, None, None, None]
        return torch.where(mirrored, x.flip(3), x), torch.where(mirrored, y.flip(3), y)


def _marked(output: Tensor, masks: Tensor) -> Tensor:
    """The mask of logits above 0; a pixel that is NaN counts as wrong, or flawless images would count as recognised."""
    return torch.where(output.isnan(), 1 - masks, (output > 0).float())


def overlaps(marked: Tensor, masks: Tensor) -> dict[str, float]:
    """The overlap of the marked pixels with the masks; both are 0 or 1, shape ``(n, 1, h, w)``.

    Example:
        >>> mask, half = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([1.0, 0.0, 0.0, 0.0])
        >>> {name: round(value, 3) for name, value in overlaps(half.view(1, 1, 2, 2), mask.view(1, 1, 2, 2)).items()}
        {'IoU': 0.5, 'Dice': 0.667, 'Dice with clean images': 0.667}
    """
    both, sizes = (marked * masks).sum((1, 2, 3)), marked.sum((1, 2, 3)) + masks.sum((1, 2, 3))
    dice, iou = (2 * both + _SMOOTH) / (sizes + _SMOOTH), (both + _SMOOTH) / (sizes - both + _SMOOTH)
    defective = masks.sum((1, 2, 3)) > 0
    return {
        "IoU": float(iou[defective].mean()),
        "Dice": float(dice[defective].mean()),
        "Dice with clean images": float(dice.mean()),
    }
