"""Compressed answers: what workers hold, and what is left, is the value at every step."""

import pytest
import torch

from gradwire import ConfigError, kvstore, registry
from gradwire.compressors import capabilities
from gradwire.kvstore.protocol.compression import parse
from tests.kvstore.stores import added, pulled

SHAPE = (64, 64)
METHODS = [
    {"type": "2bit", "threshold": 0.01},
    {"type": "2bit", "threshold": "auto"},
    {"type": "topk", "ratio": 0.1},
    {"type": "fp16"},
    {"type": "efsignsgd"},
    {"type": "powersgd"},
    {"type": "2bit", "threshold": 0.01, "wire": "adaptive"},
]


def grads(steps, shape=SHAPE, scale=0.02):
    generator = torch.Generator().manual_seed(5)
    return [scale * torch.randn(shape, generator=generator) for _ in range(steps)]


def store(name, pull, updater=None):
    kv = kvstore.create(name)
    kv.set_gradient_compression({"type": "none", "pull": pull})
    if updater is not None:
        kv.set_updater(updater)
    kv.init("w", torch.ones(SHAPE))
    return kv


@pytest.mark.parametrize("name", ["local", "device"])
@pytest.mark.parametrize("pull", METHODS, ids=str)
def test_sums_reach_the_workers_but_for_what_is_kept(pull, name):
    kv, delivered, total = store(name, pull), torch.zeros(SHAPE), torch.zeros(SHAPE)
    assert torch.equal(pulled(kv, "w", SHAPE), torch.ones(SHAPE)), "init is never compressed"
    for grad in grads(6):
        kv.push("w", [grad, grad])
        total += 2 * grad
        delivered += pulled(kv, "w", SHAPE)
        replica = kv._keys["w"].replica
        assert torch.allclose(delivered + replica.sender.kept["residual"], total, atol=1e-6)
        assert torch.equal(pulled(kv, "w", SHAPE), replica.held), "another pull of the step gives the same"


@pytest.mark.parametrize("pull", METHODS, ids=str)
def test_updated_values_are_followed_by_their_changes(pull):
    kv, code = store("device", pull, added), parse({"type": "none", "pull": pull}).pull
    value, held = torch.ones(SHAPE), torch.ones(SHAPE)
    plain = not capabilities.advice(code) and not capabilities.factorises(code)
    exact = plain and not code.random and pull["type"] != "powersgd"
    for grad in grads(6):
        kv.push("w", grad)
        value += grad
        got = pulled(kv, "w", SHAPE)
        if exact:
            held = held + code.decompress(code.compress(value - held), SHAPE)
            assert torch.equal(got, held)
        assert not torch.equal(got, value)
    before = (value - got).norm()
    for _ in range(30):
        kv.push("w", torch.zeros(SHAPE))
    assert (value - pulled(kv, "w", SHAPE)).norm() < before / 3, "what was not delivered comes with later answers"


@pytest.mark.parametrize("name", [name for name in registry.names("compressors") if name != "none"])
def test_any_method_that_error_feedback_holds_for_answers(name):
    refused = {"gradiveq": "needs rounds"}.get(name)
    if registry.find("compressors", name)().feedback == "unsafe":
        refused = "safe with error feedback"
    if refused is not None:
        with pytest.raises(ConfigError, match=refused):
            store("device", {"type": name}, added)
        return
    kv, value = store("device", {"type": name}, added), torch.ones(SHAPE)
    for grad in grads(3):
        kv.push("w", grad)
        value += grad
    out = pulled(kv, "w", SHAPE)
    assert torch.isfinite(out).all()
    assert name == "onebit" or (out - value).norm() < 3 * (value - 1).norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_point_types(dtype):
    kv, out = store("device", {"type": "topk", "ratio": 0.5}, added), torch.empty(SHAPE, dtype=dtype)
    kv.init("v", torch.zeros(SHAPE, dtype=dtype))
    for _ in range(3):
        kv.push("v", torch.full(SHAPE, 0.5, dtype=dtype))
    kv.pull("v", out)
    missing = kv._keys["v"].value - out
    assert missing.max() <= 1
    assert torch.equal(kv._keys["v"].replica.held.to(dtype), out)


@pytest.mark.parametrize("value", [torch.zeros(3, dtype=torch.int32), torch.zeros(()), torch.zeros(0, 3)])
def test_what_cannot_shrink_is_answered_as_it_is(value):
    kv, out = store("device", {"type": "topk", "ratio": 0.5}), torch.empty_like(value)
    kv.init("v", value)
    kv.push("v", [torch.ones_like(value)] * 2)
    kv.pull("v", out)
    assert torch.equal(out, torch.full_like(value, 2))


@pytest.mark.parametrize("updater", [None, added])
def test_a_value_that_is_not_finite_arrives_and_poisons_nothing(updater):
    kv, clean = (store("device", {"type": "topk", "ratio": 0.1}, updater) for _ in range(2))
    steps = grads(4)
    for step, grad in enumerate(steps):
        if step == 2:
            kv.push("w", torch.full(SHAPE, float("nan")))
            assert pulled(kv, "w", SHAPE).isnan().all()
            if updater is not None:
                return
        for each in (kv, clean):
            each.push("w", grad)
    assert torch.equal(pulled(kv, "w", SHAPE), pulled(clean, "w", SHAPE))


def test_switched_off_the_value_comes_as_it_is():
    kv = store("device", {"type": "topk", "ratio": 0.01}, added)
    first, second = grads(2)
    kv.push("w", first)
    assert not torch.equal(pulled(kv, "w", SHAPE), 1 + first)
    kv.set_gradient_compression({"type": "none"})
    kv.push("w", second)
    assert torch.equal(pulled(kv, "w", SHAPE), 1 + first + second)


@pytest.mark.parametrize(
    ("pull", "message"),
    [
        ("2bit", r"\['pull'\] must be a dict"),
        ({"threshold": 0.5}, "with 'type'"),
        ({"type": "2bitt"}, "did you mean '2bit'"),
        ({"type": "2bit", "threshhold": 1}, "did you mean 'threshold'"),
        ({"type": "2bit", "memory": "none"}, "without 'memory'"),
        ({"type": "2bit", "pull": {}}, "without 'memory', 'pull' and 'force'"),
        ({"type": "terngrad"}, "safe with error feedback"),
        ({"type": "gradiveq"}, "needs rounds"),
    ],
)
def test_bad_parameters_are_named(pull, message):
    with pytest.raises(ConfigError, match=message):
        kvstore.create("device").set_gradient_compression({"type": "2bit", "pull": pull})


@pytest.mark.parametrize("pull", [{"type": "2bit", "threshold": "auto"}, {"type": "topk", "ratio": 0.05}], ids=str)
@pytest.mark.parametrize("there", [True, False])
def test_training_converges_as_with_values_as_they_are(pull, there):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, 40, generator=generator)
    y = x @ torch.randn(40, 3, generator=generator)

    def loss(pull):
        torch.manual_seed(0)
        model = torch.nn.Linear(40, 3)
        params = None if pull is None else {"type": "none", "pull": pull}
        trainer = kvstore.Trainer(
            model.parameters(), "sgd", {"learning_rate": 0.05}, compression_params=params, update_on_kvstore=there
        )
        for _ in range(300):
            model.zero_grad()
            value = torch.nn.functional.mse_loss(model(x), y)
            value.backward()
            trainer.step(1)
        return value.item()

    start, plain, compressed = y.square().mean().item(), loss(None), loss(pull)
    assert plain < 1e-3 * start
    assert compressed < 1e-2 * start
