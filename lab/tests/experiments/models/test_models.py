"""Every model of the folder: its published size, tensor by tensor, and that it is a network that can be trained."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gradwire.errors import ConfigError
from gradwire_lab.experiments import models

FILE = Path(__file__).with_name("shapes.txt")

PUBLISHED = {
    "resnet20": (269_467, 51),
    "densenet40_k12": (357_491, 158),
    "resnet9": (6_573_120, 25),
    "vgg16_cifar": (14_982_987, 30),
    "resnet50": (25_559_081, 161),
    "vgg19": (143_671_337, 38),
    "ncf": (31_832_577, 10),
    "lstm": (19_775_200, 7),
    "unet": (1_850_305, 46),
    "gpt": (86_039_040, 148),
    "nanogpt": (11_139_072, 76),
    "gpt2": (124_439_808, 148),
    "vit": (86_567_656, 152),
}

SMALL = {
    "resnet20": (19_026, 21),
    "densenet40_k12": (16_178, 50),
    "resnet9": (103_800, 25),
    "vgg16_cifar": (113_530, 18),
    "ncf": (37_737, 10),
    "lstm": (341_224, 7),
    "unet": (116_017, 46),
    "gpt": (4_780_288, 76),
    "nanogpt": (10_709_376, 76),
}


def listed() -> dict[str, list[tuple[int, ...]]]:
    found: dict[str, list[tuple[int, ...]]] = {}
    for line in FILE.read_text().splitlines():
        if line.startswith("["):
            shapes = found[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            shapes += [tuple(int(side) for side in shape.split("x")) for shape in line.split()]
    return found


SHAPES = listed()


def example(name: str) -> Tensor:
    """Two examples for the small variant."""
    data = models.find(name).DATA
    if data in ("Penn Treebank", "text", "bytes of text"):
        return torch.randint(97 if data == "bytes of text" else 1000, (2, 12))
    if data == "MovieLens-20M":
        return torch.stack([torch.randint(1000, (2,)), torch.randint(500, (2,))], 1)
    return torch.randn(2, 1, 64, 64) if data == "DAGM2007" else torch.randn(2, 1, 8, 8)


@pytest.mark.parametrize("name", models.names())
def test_the_size_is_the_published_one(name: str) -> None:
    found = models.facts(name)
    assert (found.parameters, found.tensors) == PUBLISHED[name]


@pytest.mark.parametrize("name", SMALL)
def test_the_small_one_has_the_size_that_its_baselines_were_measured_with(name: str) -> None:
    found = models.facts(name, small=True)
    assert (found.parameters, found.tensors) == SMALL[name]


@pytest.mark.parametrize("name", SHAPES)
def test_every_tensor_has_its_shape(name: str) -> None:
    """The number of each kind of layer; the order of a block's norms and convolutions is the file's own choice."""
    found = list(models.facts(name).shapes.values())
    assert Counter(found) == Counter(SHAPES[name])
    assert [shape for shape in found if len(shape) > 1] == [shape for shape in SHAPES[name] if len(shape) > 1]


def test_the_list_is_of_the_nine() -> None:
    assert len(SHAPES) == 9
    assert {
        name: (sum(map(math.prod, shapes)), len(shapes)) for name, shapes in SHAPES.items()
    }.items() <= PUBLISHED.items()


@pytest.mark.parametrize("name", models.names())
def test_every_parameter_of_the_small_one_gets_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    model, x = models.build(name, small=True), example(name)
    out = model(x)
    assert out.isfinite().all()
    (out * torch.randn_like(out)).sum().backward()
    without = [key for key, param in models.trained(model).items() if param.grad is None or not param.grad.any()]
    assert not without
    assert len(models.trained(model)) == models.facts(name, small=True).tensors


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("resnet20", (2, 3, 32, 32), (2, 11)),
        ("densenet40_k12", (2, 3, 32, 32), (2, 11)),
        ("resnet9", (2, 3, 32, 32), (2, 10)),
        ("vgg16_cifar", (2, 3, 32, 32), (2, 11)),
        ("resnet50", (2, 3, 224, 224), (2, 1001)),
        ("vgg19", (2, 3, 224, 224), (2, 1001)),
        ("unet", (2, 1, 512, 512), (2, 1, 512, 512)),
        ("vit", (2, 3, 224, 224), (2, 1000)),
        ("gpt", (2, 1024), (2, 1024, 256)),
        ("nanogpt", (2, 1024), (2, 1024, 256)),
        ("gpt2", (2, 1024), (2, 1024, 50_257)),
        ("lstm", (20, 35), (20, 35, 10_000)),
        ("ncf", (7, 2), (7,)),
    ],
)
def test_the_full_size_takes_what_it_is_made_for(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    dtype = torch.int64 if name in ("gpt", "gpt2", "lstm", "nanogpt", "ncf") else torch.float32
    out = models.build(name, device="meta")(torch.zeros(shape, dtype=dtype, device="meta"))
    assert tuple(out.shape) == wanted


@pytest.mark.parametrize("name", models.names())
def test_the_same_seed_makes_the_same_model(name: str) -> None:
    made = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        made.append(torch.cat([param.detach().flatten() for param in models.build(name, small=True).parameters()]))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("ResNet-20", "resnet20"),
        ("DenseNet40-K12", "densenet40_k12"),
        ("U-Net", "unet"),
        ("GPT-2", "gpt2"),
        ("nanoGPT", "nanogpt"),
    ],
)
def test_the_papers_name_will_do(given: str, name: str) -> None:
    assert models.facts(given).name == name


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown model 'resnet21': did you mean 'resnet20'"):
        models.find("resnet21")
