"""Scanned handwritten digits, 8x8 pixels in 17 shades, as they come with scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradwire.errors import ConfigError

__all__ = ["Digits", "load_digits"]


@dataclass(frozen=True)
class Digits:
    """Images float32 in [-1, 1] of shape ``(n, 1, 8, 8)``, labels int64 in 0..9 of shape ``(n,)``."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """Load 1,437 images for training and 360 (every fifth) for testing.

    The file is read where scikit-learn keeps it; importing scikit-learn would take longer than reading it.

    Raises:
        ConfigError: scikit-learn is not installed.

    Example:
        >>> digits = load_digits()
        >>> tuple(digits.train_images.shape), len(digits.test_labels)
        ((1437, 1, 8, 8), 360)

    Source:
        E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
    """
    table = torch.from_numpy(np.loadtxt(digits_file(), delimiter=",", dtype=np.float32))
    images, labels = (table[:, :-1] / 8 - 1).view(-1, 1, 8, 8), table[:, -1].long()
    test = torch.arange(len(labels)) % 5 == 0
    return Digits(images[~test], labels[~test], images[test], labels[test])


def digits_file() -> Path:
    spec = find_spec("sklearn")
    folders = spec.submodule_search_locations if spec is not None else None
    file = Path(folders[0], "datasets", "data", "digits.csv.gz") if folders else None
    if file is None or not file.is_file():
        raise ConfigError("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    return file
