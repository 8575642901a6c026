"""The digits: what is in them, how they are split, how workers share them."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import pytest
import torch

from gradwire.bench.data import digits
from gradwire.bench.data.digits import load_digits
from gradwire.bench.tasks.digits import ClassifyDigits
from gradwire.errors import ConfigError


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
    with pytest.raises(ConfigError, match=r"pip install 'gradwire\[bench\]'"):
        load_digits()


def test_workers_share_each_batch_without_overlap() -> None:
    task = ClassifyDigits()
    whole = list(task.shares(3, 0, 1))
    assert len(whole) == task.steps(1) == 22
    halves = [list(task.shares(3, rank, 2)) for rank in (0, 1)]
    for (x, y), (x0, y0), (x1, y1) in zip(whole, *halves, strict=True):
        assert len(y) == 64
        assert torch.equal(x, torch.stack([x0, x1], 1).flatten(0, 1))
        assert torch.equal(y, torch.stack([y0, y1], 1).flatten())


def test_epochs_differ_and_repeat() -> None:
    task = ClassifyDigits()
    first, again, other = (next(task.shares(epoch, 0, 2))[1] for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_quality_is_the_fraction_recognised() -> None:
    task = ClassifyDigits()

    class Knows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(task.data.test_labels[: len(x)], 10)

    assert task.quality(Knows()) == 1.0
    constant = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    torch.nn.init.zeros_(constant[1].weight)
    torch.nn.init.zeros_(constant[1].bias)
    zeros = (task.data.test_labels == 0).float().mean().item()
    assert task.quality(constant) == pytest.approx(zeros)
