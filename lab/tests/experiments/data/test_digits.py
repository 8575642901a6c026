"""The digits: what is in them, and how they are split."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import pytest
import torch

from gradwire.errors import ConfigError
from gradwire_lab.experiments.data import digits
from gradwire_lab.experiments.data.digits import load_digits


def test_they_are_scikit_learns_digits() -> None:
    reference = pytest.importorskip("sklearn.datasets").load_digits()
    ours = load_digits()
    images, labels = torch.from_numpy(reference.images).float() / 8 - 1, torch.from_numpy(reference.target)
    assert torch.equal(ours.test_images[:, 0], images[::5])
    assert torch.equal(ours.test_labels, labels[::5])
    keep = torch.arange(len(labels)) % 5 != 0
    assert torch.equal(ours.train_images[:, 0], images[keep])
    assert torch.equal(ours.train_labels, labels[keep])


@pytest.mark.parametrize("spec", [None, ModuleSpec("sklearn", None)])
def test_without_scikit_learn_the_error_says_how_to_install(
    monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None
) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda _name: spec)
    with pytest.raises(ConfigError, match="pip install scikit-learn"):
        load_digits()
