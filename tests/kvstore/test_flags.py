"""MXNet's flags, and training as they say."""

import argparse
import logging

import pytest
import torch
from torch import nn

from gradwire import ConfigError, kvstore


def batches(count=4, size=8):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count * size, 4, generator=generator)
    return list(zip(x.split(size), (x[:, 0] > 0).long().split(size), strict=True))


def run(*flags, data=None, seed=2):
    parser = argparse.ArgumentParser()
    kvstore.add_fit_args(parser)
    args = parser.parse_args(["--batch-size", "8", "--wd", "0", *flags])
    torch.manual_seed(seed)
    return kvstore.fit(args, nn.Linear(4, 2), lambda *_: (data or batches(), batches()))


def weights(module):
    return [param.detach().clone() for param in module.symbol.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def test_the_flags_reach_the_optimizer():
    torch.manual_seed(2)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5, weight_decay=0.01)
    for _ in range(3):
        for x, y in batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    module = run("--num-epochs", "3", "--lr", "0.2", "--mom", "0.5", "--wd", "0.01", "--kv-store", "local")
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights(module), model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "has"), [("sgd", True), ("nag", True), ("signum", True), ("rmsprop", False), ("adam", False)]
)
def test_a_momentum_goes_to_the_optimizers_to_which_mxnet_gives_it(name, has):
    flags = ["--num-epochs", "2", "--lr", "0.01", "--optimizer", name]
    assert same(run(*flags, "--mom", "0.9"), run(*flags, "--mom", "0.5")) != has


def test_gradients_are_compressed_where_that_is_asked_for():
    plain, two = run("--num-epochs", "2"), run("--num-epochs", "2", "--gc-type", "2bit", "--gc-threshold", "0.25")
    other = run("--num-epochs", "2", "--gc-type", "2bit")
    assert not same(plain, two)
    assert not same(two, other)
    assert same(two, run("--num-epochs", "2", "--gc-type", "2bit", "--gc-threshold", "0.25"))


def test_the_rate_falls_after_the_epochs_that_are_named():
    steps = ["--lr", "0.5", "--lr-factor", "0.1", "--lr-step-epochs", "1,2", "--mom", "0"]
    whole = run("--num-epochs", "3", *steps)
    torch.manual_seed(2)
    model = nn.Linear(4, 2)
    for rate in (0.5, 0.05, 0.005):
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for x, y in batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights(whole), model.parameters(), strict=True))


def test_a_run_goes_on_from_an_epoch_with_the_rate_that_it_would_have_had(tmp_path):
    flags = ["--lr", "0.5", "--lr-step-epochs", "1,3", "--mom", "0", "--num-epochs", "4"]
    files = ["--model-prefix", str(tmp_path / "m")]
    whole = run(*flags, *files)
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"m-{epoch:04d}.safetensors" for epoch in (1, 2, 3, 4)]
    again = run(*flags, *files, "--load-epoch", "2", seed=7)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights(again), weights(whole), strict=True))


def test_what_is_reported(caplog):
    with caplog.at_level(logging.INFO):
        run("--num-epochs", "1", "--top-k", "2", "--loss", "ce", "--disp-batches", "2", "--cpus", "2")
    text = "\n".join(record.getMessage() for record in caplog.records)
    for wanted in ("samples/sec", "Validation-accuracy=", "Validation-top_k_accuracy_2=1.0", "Train-cross-entropy="):
        assert wanted in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lr-step-epochs", "1,x"], "--lr-step-epochs must be integers"),
        (["--load-epoch", "1"], "--model-prefix"),
        (["--gc-threshold", "0.5"], "--gc-threshold must be left out"),
        (["--gc-type", "topk", "--gc-threshold", "0.5"], "'threshold'"),
        (["--gc-type", "3bit"], "did you mean '2bit'"),
        (["--kv-store", "devise"], "did you mean 'device'"),
        (["--optimizer", "sdg"], "did you mean 'sgd'"),
        (["--cpus", "0"], "--cpus"),
        (["--loss", "cee"], "did you mean 'ce'"),
    ],
)
def test_a_flag_that_cannot_be_followed_is_named(flags, message):
    with pytest.raises(ConfigError, match=message):
        run("--num-epochs", "2", *flags)


def test_data_without_a_length_needs_its_number_of_examples_for_the_rate():
    class Endless:
        def __iter__(self):
            return iter(batches())

    flags = ["--num-epochs", "2", "--lr-step-epochs", "1", "--mom", "0"]
    with pytest.raises(ConfigError, match="--num-examples"):
        run(*flags, data=Endless())
    assert same(run(*flags, "--num-examples", "32", data=Endless()), run(*flags))
