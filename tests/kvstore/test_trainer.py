"""Gluon's Trainer: with a store and without, compressed, updating here or there."""

import pytest
import torch
from torch import nn

from gradwire import ConfigError, kvstore
from gradwire.kvstore import Trainer
from gradwire.kvstore.protocol.lr_scheduler import FactorScheduler
from tests.kvstore.simulate import Simulated

NUMBERS = {"learning_rate": 0.1, "momentum": 0.9}
WAYS = [(store, there) for store in ("device", "local") for there in (False, True, None)] + [(None, None)]


def model_of(seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def backward(model, step):
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
    model.zero_grad()
    model(x).square().sum().backward()


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize(("store", "there"), WAYS)
def test_a_trainer_is_the_optimizer_bit_for_bit(store, there):
    ours, theirs = model_of(), model_of()
    trainer = Trainer(dict(ours.named_parameters()), "sgd", NUMBERS, kvstore=store, update_on_kvstore=there)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        for model in (ours, theirs):
            backward(model, step)
        trainer.step(16)
        for param in theirs.parameters():
            param.grad.mul_(1 / 16)
        optimizer.step()
    assert same(ours, theirs)


@pytest.mark.parametrize("there", [False, True])
def test_compression_on_one_device_compresses(there):
    param = nn.Parameter(torch.zeros(4))
    trainer = Trainer(
        [param], "sgd", {"learning_rate": 1.0}, compression_params={"type": "2bit"}, update_on_kvstore=there
    )
    sender, weights = Simulated("2bit", 0.5, (4,)), torch.zeros(4)
    for _ in range(3):
        grad = torch.randn(4)
        param.grad = grad.clone()
        trainer.step(1)
        weights -= torch.from_numpy(sender.send(grad.numpy()))
        assert torch.equal(param.data, weights)


def test_gradients_may_be_changed_between_sum_and_update():
    ours, theirs = model_of(), model_of()
    trainer = Trainer(ours.parameters(), "sgd", NUMBERS)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        for model in (ours, theirs):
            backward(model, step)
        trainer.allreduce_grads()
        nn.utils.clip_grad_norm_(ours.parameters(), 0.1)
        trainer.update(1)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        optimizer.step()
    assert same(ours, theirs)


@pytest.mark.parametrize("there", [False, True])
def test_a_new_learning_rate_keeps_the_momentum(there):
    ours, theirs = model_of(), model_of()
    trainer = Trainer(ours.parameters(), "sgd", NUMBERS, update_on_kvstore=there)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        if step == 2:
            trainer.set_learning_rate(0.01)
            optimizer.param_groups[0]["lr"] = 0.01
        for model in (ours, theirs):
            backward(model, step)
        trainer.step(1)
        optimizer.step()
    assert trainer.learning_rate == 0.01
    assert same(ours, theirs)


@pytest.mark.parametrize("there", [False, True])
def test_states_go_through_a_file(there, tmp_path):
    whole, first = model_of(), model_of()
    trainers = [Trainer(model.parameters(), "adam", {"lr": 0.1}, update_on_kvstore=there) for model in (whole, first)]
    for step in range(4):
        if step == 2:
            trainers[1].save_states(str(tmp_path / "states"))
            second = model_of(seed=4)
            second.load_state_dict(first.state_dict())
            first = second
            trainers[1] = Trainer(first.parameters(), "adam", {"lr": 0.5}, update_on_kvstore=there)
            trainers[1].load_states(str(tmp_path / "states"))
        for model, trainer in zip((whole, first), trainers, strict=True):
            backward(model, step)
            trainer.step(1)
    assert same(whole, first)


def test_a_frozen_parameter_is_left_alone_and_a_missing_gradient_is_named():
    model = model_of()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    trainer = Trainer(model.parameters(), "sgd", NUMBERS)
    with pytest.raises(ConfigError, match=r"parameters \[1, 2, 3\] \(counted from 0\) have no gradient"):
        trainer.step(1)
    trainer.step(1, ignore_stale_grad=True)
    backward(model, 0)
    trainer.step(1)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kvstore": None, "compression_params": {"type": "2bit"}}, "need a kvstore"),
        ({"kvstore": None, "update_on_kvstore": True}, "False without a kvstore"),
        ({"kvstore": "local", "compression_params": {"type": "2bit"}}, "does not compress"),
        ({"compression_params": {"type": "3bit"}}, "did you mean '2bit'"),
        ({"update_on_kvstore": 3}, "update_on_kvstore"),
        ({"optimizer_params": {"learning_rat": 1}}, "did you mean 'learning_rate'"),
        ({"optimizer": "sdg"}, "did you mean 'sgd'"),
        ({"params": []}, "params"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Trainer(**{"params": [nn.Parameter(torch.ones(2))], "optimizer": "sgd", **arguments})


def test_the_two_halves_need_the_update_here():
    trainer = Trainer([nn.Parameter(torch.ones(2))], "sgd", update_on_kvstore=True)
    for call in (trainer.allreduce_grads, lambda: trainer.update(1)):
        with pytest.raises(ConfigError, match="update_on_kvstore=False"):
            call()


def test_a_store_of_the_callers_own_is_used():
    kv = kvstore.create("device")
    param = nn.Parameter(torch.zeros(2))
    trainer = Trainer([param], "sgd", {"learning_rate": 1.0}, kvstore=kv)
    param.grad = torch.ones(2)
    trainer.step(2)
    assert torch.equal(param.data, torch.full((2,), -0.5))
    out = torch.empty(2)
    kv.pull(0, out)
    assert torch.equal(out, torch.ones(2))


def test_a_store_that_updates_by_itself_must_have_the_weights():
    """Its values would be taken for sums of gradients."""
    kv = kvstore.create("device")
    kv.set_optimizer("sgd", learning_rate=0.1)
    with pytest.raises(ConfigError, match="update_on_kvstore must be True with a store that has an optimizer"):
        Trainer([nn.Parameter(torch.ones(1))], "sgd", {"learning_rate": 0.1}, kvstore=kv)


@pytest.mark.parametrize("store", [5, object(), ["device"]])
def test_what_is_no_store_is_refused(store):
    with pytest.raises(ConfigError, match="kvstore must be a store, the type of one, or None"):
        Trainer([nn.Parameter(torch.ones(1))], "sgd", {"learning_rate": 0.1}, kvstore=store)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "lazy_update": True}),
        ("sgd", {"learning_rate": 0.1, "wd": 0.1}),
        ("adam", {"learning_rate": 0.1}),
    ],
)
def test_rows_are_updated_here_as_a_store_updates_them(name, numbers, tmp_path):
    weights = []
    for there in (True, False):
        layer = nn.Embedding(4, 2, sparse=True)
        nn.init.ones_(layer.weight)
        trainer = Trainer([layer.weight], name, numbers, update_on_kvstore=there)
        for rows in ([0, 0, 2], [1], [0]):
            layer.weight.grad = None
            layer(torch.tensor(rows)).sum().backward()
            trainer.step(1)
        trainer.save_states(tmp_path / "states")
        weights.append(layer.weight.detach().clone())
    assert torch.equal(*weights)


def test_a_rate_goes_on_where_the_loaded_states_were_saved(tmp_path):
    def trainer(store):
        scheduler = FactorScheduler(step=2, factor=0.5, base_lr=1.0)
        param = nn.Parameter(torch.ones(2))
        return param, Trainer([param], "sgd", {"lr_scheduler": scheduler}, kvstore=store, update_on_kvstore=bool(store))

    for store in (None, "device"):
        param, first = trainer(store)
        for _ in range(6):
            param.grad = torch.ones(2)
            first.step(1)
        first.save_states(tmp_path / "states")
        _, second = trainer(store)
        second.load_states(tmp_path / "states")
        assert (second.steps, second.learning_rate) == (first.steps, first.learning_rate) == (6, 0.25)
