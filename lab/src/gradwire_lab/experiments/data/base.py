"""Forms of data that all sources share, and the errors about their files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradwire.errors import ConfigError

__all__ = [
    "CHARACTERS",
    "Examples",
    "Grey",
    "Images",
    "Interactions",
    "Surfaces",
    "Tensors",
    "Text",
    "file_of",
    "numbers",
    "refuse",
    "standardised",
    "vocabulary",
]


Grey = npt.NDArray[np.uint8]
"""Images or masks of shape ``(n, h, w)``."""


CHARACTERS = ("<other>", "\n", *map(chr, range(ord(" "), ord("~") + 1)))
"""The printable characters of ASCII and the line end: 97 with one for all others, whatever the text."""


class Examples(Protocol):
    """Inputs with their targets, selected by index."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the given indices.

        Args:
            indices: int64, shape ``(b,)``.
            draws: uniform in [0, 1), shape ``(b, 3)``: what augmentation needs of chance; None: no augmentation.
        """
        ...


@dataclass(frozen=True)
class Tensors:
    """Examples that are in memory, and are not augmented."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.inputs[indices], self.targets[indices]


@dataclass(frozen=True)
class Images:
    """Images float32 ``(b, channels, height, width)``, labels int64 from 0 on."""

    name: str
    train: Examples
    test: Examples
    classes: int


@dataclass(frozen=True)
class Text:
    """Three texts as int64 token numbers; ``words[0]`` stands for all tokens outside the vocabulary, if there are any.

    ``digest`` is of what was read: a perplexity means something beside one of the same text only.
    """

    name: str
    train: Tensor
    valid: Tensor
    test: Tensor
    words: tuple[str, ...]
    digest: str


@dataclass(frozen=True)
class Interactions:
    """Interactions: which user chose which item.

    Args:
        name: name of the data.
        users: number of users.
        items: number of items.
        train: int64 pairs, shape ``(n, 2)``.
        held_out: int64, shape ``(users,)``: each user's last item, which is not in ``train``.
    """

    name: str
    users: int
    items: int
    train: Tensor
    held_out: Tensor


@dataclass(frozen=True)
class Surfaces:
    """Grey images ``(n, 1, h, w)``, float32 and standardised, with masks of that shape: 1 where a defect is."""

    name: str
    train: Tensors
    test: Tensors


def standardised(name: str, train: tuple[Grey, Grey], test: tuple[Grey, Grey]) -> Surfaces:
    """Standardise images by the training set's mean and deviation; a mask is 1 where its image is above 127.

    Otherwise a network stays at "no defect" for hundreds of steps.
    """
    mean, std = float(train[0].mean()), float(train[0].std())

    def examples(images: Grey, masks: Grey) -> Tensors:
        inputs = (torch.from_numpy(images).float()[:, None] - mean) / max(std, 1.0)
        return Tensors(inputs, (torch.from_numpy(masks)[:, None] > 127).float())

    return Surfaces(name, examples(*train), examples(*test))


def vocabulary(tokens: Sequence[str], size: int, first: Sequence[str] = ()) -> tuple[str, ...]:
    """Build a vocabulary of ``size`` tokens: ``first``, then the most frequent tokens; equally frequent ones in order
    of spelling.

    >>> vocabulary("b a b c a b".split(), 3, ["<unk>"])
    ('<unk>', 'b', 'a')
    """
    counts = Counter(tokens)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (*first, *[word for word in ranked if word not in first][: size - len(first)])


def numbers(tokens: Sequence[str], words: Sequence[str]) -> Tensor:
    """Map tokens to their numbers in the vocabulary; 0 stands for a token outside it."""
    places = {word: place for place, word in enumerate(words)}
    return torch.tensor([places.get(token, 0) for token in tokens], dtype=torch.int64)


def file_of(folder: Path, name: str, expected: str) -> Path:
    """The path of a file that must exist.

    Raises:
        ConfigError: the file does not exist.
    """
    path = folder / name
    if not path.is_file():
        refuse(path, "no such file", expected)
    return path


def refuse(path: Path, found: str, expected: str) -> NoReturn:
    """Raise the error that describes what is wrong with a file.

    Raises:
        ConfigError: every call raises it.
    """
    raise ConfigError(f"{path} must be {expected}, found {found}")
