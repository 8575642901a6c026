"""Image classification: by default of scanned digits, with a small ResNet-20 that reaches 98 to 99
% after ten epochs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gradwire_lab.experiments.data.base import Images, Tensors
from gradwire_lab.experiments.data.digits import load_digits
from gradwire_lab.experiments.tasks.base import Task, pieces, shuffled

__all__ = ["Classification"]


class Classification(Task):
    """Top-1 accuracy on the test images. A folder may hold CIFAR-10 or ImageNet.

    Example:
        >>> task = Classification("vit")
        >>> task.data.name, task.model_name, task.steps(epochs=10)
        ('digits', 'vit_small', 220)
    """

    name = "classification"
    measure = "test accuracy"
    MODELS = ("resnet20", "densenet40_k12", "resnet9", "vgg16_cifar", "resnet50", "vgg19", "vit")
    DATA = ("cifar10", "imagenet")
    data: Images

    def embedded(self) -> Images:
        digits = load_digits()
        train, test = Tensors(digits.train_images, digits.train_labels), Tensors(digits.test_images, digits.test_labels)
        return Images("digits", train, test, classes=10)

    def baselines(self) -> dict[str, float]:
        """The accuracy of guessing."""
        return {"chance": 1 / self.data.classes}

    def largest_batch(self) -> int:
        return len(self.data.train)

    def _shares(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        return shuffled(self.data.train, self.recipe.batch, self.generator(epoch), rank, world, augment=not self.small)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target + self._first_class)

    @torch.no_grad()
    def measures(self, model: nn.Module) -> dict[str, float]:
        model.eval()
        right = torch.cat([_right(model(x), y + self._first_class) for x, y in pieces(self.data.test)])
        return {self.measure: float(right.float().mean())}

    @property
    def _first_class(self) -> int:
        """The index of the logit of class 0: TensorFlow's ImageNet networks have one for the background before it."""
        return 0 if self.small else getattr(self.module, "FIRST_CLASS", 0)


def _right(output: Tensor, classes: Tensor) -> Tensor:
    """Return whether the largest logit is that of the class; NaN, which ``argmax`` takes for the
    largest, never counts.
    """
    return (output.argmax(1) == classes) & ~output.isnan().any(1)
