"""A store warns where an optimizer that divides by the size of recent gradients suffers from the method."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from gradwire import kvstore
from gradwire.kvstore import Module
from gradwire.kvstore.protocol.updater import OPTIMIZERS, OptimizerConfig
from tests.heard import without_name

TWOBIT = {"type": "2bit", "threshold": 0.5}


def test_which_optimizers_divide() -> None:
    momentum = {"nag": {"momentum": 0.9}}
    configs = [OptimizerConfig(name, {"learning_rate": 0.1, **momentum.get(name, {})}) for name in OPTIMIZERS]
    adaptive = {config.name for config in configs if config.adaptive}
    assert adaptive == {"adam", "adamw", "adagrad", "adadelta", "adamax", "nadam", "radam", "rmsprop"}


@pytest.mark.parametrize("first", ["optimizer", "compression"])
def test_a_store_warns_once_in_either_order(caplog: pytest.LogCaptureFixture, first: str) -> None:
    kv = kvstore.create("device")
    calls = [lambda: kv.set_optimizer("adam", learning_rate=0.1), lambda: kv.set_gradient_compression(TWOBIT)]
    for call in calls if first == "optimizer" else calls[::-1]:
        call()
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.25})
    (line,) = map(without_name, caplog.messages)
    assert line.startswith("'twobit' with memory 'residual' keeps back what it does not send, and adam divides")


@pytest.mark.parametrize(
    ("optimizer", "compression"),
    [
        ("sgd", TWOBIT),
        ("adam", {"type": "qsgd", "bits": 4}),
        ("adam", {"type": "eden", "bits": 2}),
        ("sgd", {"type": "eden", "bits": 1}),
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
    (line,) = map(without_name, caplog.messages)
    assert "and adam divides" in line


def test_a_module_tells_its_store(caplog: pytest.LogCaptureFixture) -> None:
    module = Module(nn.Linear(4, 4), compression_params=TWOBIT)
    module.init_optimizer("device", "adam", {"learning_rate": 0.1})
    (line,) = map(without_name, caplog.messages)
    assert "and adam divides" in line


def test_noise_is_warned_of_once_and_harm_after_it(caplog: pytest.LogCaptureFixture) -> None:
    kv = kvstore.create("device")
    kv.set_optimizer("adam", learning_rate=0.1)
    for params in ({"type": "eden", "bits": 1}, {"type": "qsgd", "bits": 2}, TWOBIT, {"type": "terngrad"}):
        kv.set_gradient_compression(params)
    noise, late = map(without_name, caplog.messages)
    assert noise.startswith("'eden' adds noise to gradients, and adam divides by their root mean square")
    assert "take a higher learning rate; docs/kvstore_reference.md says how high" in noise
    assert late.startswith("'twobit' with memory 'residual' keeps back")
    assert not any("variance_correction" in line for line in caplog.messages)


@pytest.mark.parametrize(("method", "words"), [("terngrad", "is wrong on average"), ("signsgd", "hands out votes")])
def test_what_is_wrong_on_average_is_warned_of(caplog: pytest.LogCaptureFixture, method: str, words: str) -> None:
    kv = kvstore.create("device")
    kv.set_gradient_compression({"type": method})
    kv.set_optimizer("rmsprop", learning_rate=0.1)
    (line,) = map(without_name, caplog.messages)
    assert words in line
    assert "rmsprop divides" in line
