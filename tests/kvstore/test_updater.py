"""Optimizers in the store are torch's, bit for bit, and their states go through a file."""

from functools import partial

import msgpack
import numpy as np
import pytest
import torch
from torch import nn

from gradwire import ConfigError, kvstore
from gradwire.kvstore.protocol.lr_scheduler import CosineScheduler, FactorScheduler, PolyScheduler
from gradwire.kvstore.protocol.optimizer_states import by_server, load_states
from gradwire.kvstore.protocol.updater import OPTIMIZERS, OptimizerConfig, SignumOptimizer

SHAPE = (5, 3)
CASES = {
    "sgd": (
        {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    ),
    "nag": (
        {"learning_rate": 0.1, "momentum": 0.9},
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    ),
    "adam": (
        {"learning_rate": 0.01, "beta1": 0.8, "epsilon": 1e-6},
        torch.optim.Adam,
        {"lr": 0.01, "betas": (0.8, 0.999), "eps": 1e-6},
    ),
    "adamw": ({"lr": 0.01, "weight_decay": 0.1}, torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adagrad": ({"learning_rate": 0.1}, torch.optim.Adagrad, {"lr": 0.1}),
    "adadelta": ({"rho": 0.8}, torch.optim.Adadelta, {"rho": 0.8}),
    "adamax": ({"beta2": 0.9}, torch.optim.Adamax, {"betas": (0.9, 0.9)}),
    "nadam": ({}, torch.optim.NAdam, {}),
    "radam": ({}, torch.optim.RAdam, {}),
    "rmsprop": ({"gamma1": 0.8, "momentum": 0.5}, torch.optim.RMSprop, {"alpha": 0.8, "momentum": 0.5}),
}


def trained(kv, grads, out):
    for grad in grads:
        kv.push("w", grad)
    kv.pull("w", out)
    return out


@pytest.mark.parametrize("name", CASES)
def test_an_optimizer_is_torchs(name):
    numbers, cls, arguments = CASES[name]
    kv, grads = kvstore.create(), [torch.randn(SHAPE) for _ in range(4)]
    kv.set_optimizer(name, **numbers)
    kv.init("w", torch.ones(SHAPE))
    param = nn.Parameter(torch.ones(SHAPE))
    optimizer = cls([param], **arguments)
    for grad in grads:
        param.grad = grad.clone()
        optimizer.step()
    assert torch.equal(trained(kv, grads, torch.empty(SHAPE)), param.detach())


def test_every_name_is_tried_here():
    assert set(OPTIMIZERS) == {*CASES, "signum", "test"}


def test_rescaling_and_clipping_come_before_the_step():
    kv = kvstore.create()
    kv.set_optimizer("sgd", learning_rate=1.0, rescale_grad=0.5, clip_gradient=1.0)
    kv.init("w", torch.zeros(SHAPE))
    kv.push("w", torch.full(SHAPE, 1.0))
    kv.push("w", torch.full(SHAPE, -8.0))
    out = torch.empty(SHAPE)
    kv.pull("w", out)
    assert torch.equal(out, torch.full(SHAPE, 0.5))


@pytest.mark.parametrize("name", CASES)
def test_states_go_through_a_file(name, tmp_path):
    grads = [torch.randn(SHAPE) for _ in range(6)]
    whole, first, second = (kvstore.create() for _ in range(3))
    for kv in (whole, first, second):
        kv.set_optimizer(name, **CASES[name][0])
    whole.init("w", torch.ones(SHAPE))
    first.init("w", torch.ones(SHAPE))
    want = trained(whole, grads, torch.empty(SHAPE))
    second.init("w", trained(first, grads[:3], torch.empty(SHAPE)))
    first.save_optimizer_states(str(tmp_path / "states"))
    second.load_optimizer_states(str(tmp_path / "states"))
    assert torch.equal(trained(second, grads[3:], torch.empty(SHAPE)), want)


def test_the_numbers_travel_with_the_states_when_asked(tmp_path):
    kv, other = kvstore.create(), kvstore.create()
    kv.set_optimizer("sgd", learning_rate=0.5)
    other.set_optimizer("sgd", learning_rate=0.1)
    kv.save_optimizer_states(str(tmp_path / "states"), dump_optimizer=True)
    other.load_optimizer_states(str(tmp_path / "states"))
    other.init(1, torch.zeros(SHAPE))
    other.push(1, torch.ones(SHAPE))
    out = torch.empty(SHAPE)
    other.pull(1, out)
    assert torch.equal(out, torch.full(SHAPE, -0.5))


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04K\x01."])
def test_another_file_is_refused(tmp_path, content):
    kv = kvstore.create()
    kv.set_optimizer("sgd")
    (tmp_path / "states").write_bytes(content)
    with pytest.raises(ConfigError, match="states"):
        kv.load_optimizer_states(str(tmp_path / "states"))


def test_a_failed_write_leaves_the_old_file(tmp_path):
    kv = kvstore.create()
    kv.set_optimizer("sgd")
    kv.save_optimizer_states(str(tmp_path / "states"))
    before = (tmp_path / "states").read_bytes()
    with pytest.raises(OSError, match="missing"):
        kv.save_optimizer_states(str(tmp_path / "missing" / "states"))
    assert (tmp_path / "states").read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["states"]


def test_a_number_has_one_value_whichever_name_it_came_by():
    config = OptimizerConfig("sgd", {"learning_rate": 0.1, "momentum": 0.9}).replace(lr=0.2)
    assert config.torch_arguments() == {"momentum": 0.9, "lr": 0.2}


@pytest.mark.parametrize("label", ["w", "[0]", "5", "[0, 1.5]", '[-1, "w"]', '[2, "w"]', '["0", "w"]', "[" * 9000])
def test_states_of_another_store_are_not_those_of_servers(label):
    with pytest.raises(ConfigError, match=r"of a distributed store|with 2 servers"):
        by_server({label: {}}, 2, "the file")


def needed(name):
    """The numbers that an optimizer cannot do without."""
    return {"momentum": 0.9} if name == "nag" else {}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e39, "0.1", True])
def test_a_number_of_an_optimizer_is_finite(name, value):
    for number in ("learning_rate", "rescale_grad", "clip_gradient"):
        with pytest.raises(ConfigError, match=f"^{number} of optimizer '{name}' must be a finite number"):
            OptimizerConfig(name, {**needed(name), number: value})


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_limit_of_gradients_is_positive(name, value):
    with pytest.raises(ConfigError, match=f"^clip_gradient of optimizer '{name}' must be a finite number > 0, or None"):
        OptimizerConfig(name, {**needed(name), "clip_gradient": value})


@pytest.mark.parametrize("name", [each for each in OPTIMIZERS if each != "test"])
def test_a_learning_rate_is_not_negative(name):
    with pytest.raises(ConfigError, match=r"-1\.0"):
        OptimizerConfig(name, {**needed(name), "learning_rate": -1.0})


@pytest.mark.parametrize("name", [each for each in OPTIMIZERS if each != "test"])
def test_a_gradient_is_not_turned_round(name):
    with pytest.raises(ConfigError, match=f"^rescale_grad of optimizer '{name}' must be a finite number >= 0, got -0"):
        OptimizerConfig(name, {**needed(name), "rescale_grad": -0.5})


def test_the_optimizer_for_tests_adds_the_gradient_or_subtracts_it():
    assert OptimizerConfig("test", {"rescale_grad": -0.5}).rescale_grad == -0.5


@pytest.mark.parametrize("value", [-0.1, 1.1])
@pytest.mark.parametrize(("name", "number"), [("sgd", "dampening"), ("rmsprop", "alpha"), ("rmsprop", "gamma1")])
def test_what_torch_takes_and_makes_no_sense_is_refused(name, number, value):
    with pytest.raises(ConfigError, match=rf"^{number} of optimizer '{name}' must be a number in .*, got {value}"):
        OptimizerConfig(name, {number: value})


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0.1"])
@pytest.mark.parametrize("number", ["lr", "momentum", "weight_decay", "wd_lh"])
def test_a_number_of_signum_is_named_where_it_is_refused(number, value):
    with pytest.raises(ConfigError, match=rf"^{number} of Signum must be .*, got {value!r}"):
        SignumOptimizer([torch.nn.Parameter(torch.zeros(2))], **{number: value})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, None, "0.1"])
def test_a_rate_of_a_scheduler_is_finite_and_not_negative(value):
    makers = {
        "base_lr": partial(FactorScheduler, 2),
        "warmup_begin_lr": partial(FactorScheduler, 2, warmup_steps=1),
        "stop_factor_lr": partial(FactorScheduler, 2),
        "final_lr": partial(CosineScheduler, 8),
    }
    for name, make in makers.items():
        with pytest.raises(ConfigError, match=f"^{name} must be a finite number >= 0, got"):
            make(**{name: value})
    with pytest.raises(ConfigError, match=r"^final_lr must be a finite number >= 0, got"):
        PolyScheduler(8, final_lr=value)


def test_numbers_of_numpy_are_pythons_in_what_travels(tmp_path):
    config = OptimizerConfig(
        "sgd",
        {"learning_rate": np.float32(0.5), "lr_scheduler": FactorScheduler(step=np.int64(2), base_lr=np.float32(0.5))},
    )
    packed = msgpack.unpackb(msgpack.packb({"numbers": dict(config.numbers)}))
    assert packed["numbers"]["learning_rate"] == 0.5
    assert packed["numbers"]["lr_scheduler"]["step"] == 2
    kv = kvstore.create("local")
    kv.set_optimizer(config)
    kv.save_optimizer_states(tmp_path / "states", dump_optimizer=True)
    assert load_states(tmp_path / "states")[1] == config


@pytest.mark.parametrize(
    ("name", "numbers", "pair"),
    [
        ("sgd", {"learning_rate": 0.1, "lr": 0.5}, "lr and learning_rate"),
        ("adam", {"weight_decay": 0.1, "wd": 0.1}, "wd and weight_decay"),
        ("rmsprop", {"gamma1": 0.1, "alpha": 0.1}, "alpha and gamma1"),
    ],
)
def test_two_names_of_one_parameter_are_refused(name, numbers, pair):
    with pytest.raises(ConfigError, match=f"{pair} of optimizer '{name}' are one parameter: give one of them"):
        OptimizerConfig(name, numbers)


def test_updates_are_counted_before_there_is_a_scheduler(tmp_path):
    """A schedule that is set after a file was loaded goes on where it would be in a run that nobody interrupted."""
    saved, loaded = kvstore.create("local"), kvstore.create("local")
    for kv in (saved, loaded):
        kv.init("w", torch.zeros(1))
        kv.set_optimizer("sgd", learning_rate=1.0)
    for _ in range(5):
        saved.push("w", torch.zeros(1))
    saved.save_optimizer_states(tmp_path / "states")
    loaded.load_optimizer_states(tmp_path / "states")
    for kv in (saved, loaded):
        kv.set_optimizer("sgd", lr_scheduler=FactorScheduler(step=2, factor=0.5, base_lr=1.0))
        kv.push("w", torch.ones(1))
        out = torch.empty(1)
        kv.pull("w", out)
        assert out.item() == -0.25


def test_an_optimizer_updates_no_integers():
    kv = kvstore.create("local")
    kv.init(["w", "n"], [torch.zeros(1), torch.zeros(1, dtype=torch.int64)])
    kv.set_optimizer("sgd", learning_rate=1.0)
    with pytest.raises(ConfigError, match="key 'n', which optimizer 'sgd' updates, must be floating-point, got torch"):
        kv.push(["w", "n"], [torch.ones(1), torch.ones(1, dtype=torch.int64)])
    out = torch.empty(1)
    kv.pull("w", out)
    assert out.item() == 0, "a call that is refused changes nothing"
