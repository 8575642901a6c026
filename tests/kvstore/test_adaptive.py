"""A store warns where a method that keeps much back meets an optimizer that divides by the size of recent gradients."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from gradwire import kvstore
from gradwire.kvstore.protocol.updater import OptimizerConfig, optimizer_names

TWOBIT = {"type": "2bit", "threshold": 0.5}


def test_which_optimizers_divide() -> None:
    momentum = {"nag": {"momentum": 0.9}}
    configs = [OptimizerConfig(name, {"learning_rate": 0.1, **momentum.get(name, {})}) for name in optimizer_names()]
    adaptive = {config.name for config in configs if config.adaptive}
    assert adaptive == {"adam", "adamw", "adagrad", "adadelta", "adamax", "nadam", "radam", "rmsprop"}


@pytest.mark.parametrize("first", ["optimizer", "compression"])
def test_a_store_warns_once_in_either_order(caplog: pytest.LogCaptureFixture, first: str) -> None:
    kv = kvstore.create("device")
    calls = [lambda: kv.set_optimizer("adam", learning_rate=0.1), lambda: kv.set_gradient_compression(TWOBIT)]
    for call in calls if first == "optimizer" else calls[::-1]:
        call()
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.25})
    (line,) = caplog.messages
    assert line.startswith("'twobit' with memory 'residual' keeps back what it does not send, and adam divides")


@pytest.mark.parametrize(
    ("optimizer", "compression"),
    [
        ("sgd", TWOBIT),
        ("adam", {"type": "qsgd", "bits": 4}),
        ("adam", {**TWOBIT, "force": True}),
        ("signum", TWOBIT),
        ("adam", {"type": "none", "pull": TWOBIT}),
    ],
)
def test_what_is_no_harm_is_not_warned_of(
    caplog: pytest.LogCaptureFixture, optimizer: str, compression: dict[str, Any]
) -> None:
    kv = kvstore.create("device")
    kv.set_gradient_compression(compression)
    kv.set_optimizer(optimizer, learning_rate=0.1)
    assert caplog.messages == []


@pytest.mark.parametrize("on_store", [True, False])
def test_a_trainer_tells_its_store(caplog: pytest.LogCaptureFixture, on_store: bool) -> None:
    model = nn.Linear(4, 4)
    kvstore.Trainer(
        model.parameters(), "adam", {"learning_rate": 0.1}, compression_params=TWOBIT, update_on_kvstore=on_store
    )
    (line,) = caplog.messages
    assert "and adam divides" in line
