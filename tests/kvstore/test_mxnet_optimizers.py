"""Features of MXNet's optimizers that torch's have not: Signum, weights beside 16-bit ones, lazy rows, schedulers."""

import pytest
import torch

from gradwire import ConfigError, kvstore
from gradwire.kvstore.protocol.lr_scheduler import CosineScheduler, FactorScheduler, MultiFactorScheduler, PolyScheduler
from gradwire.kvstore.protocol.updater import OptimizerConfig
from tests.kvstore.group import run_workers
from tests.kvstore.jobs import gradient
from tests.kvstore.talk import ask, init, pair, pull, push, values

SHAPE = (6, 4)


def pushed(kv, grads, value):
    """The value after some pushes."""
    kv.init("w", value)
    for grad in grads:
        kv.push("w", grad)
    out = torch.empty(value.shape, dtype=value.dtype)
    kv.pull("w", out, ignore_sparse=False)
    return out


def test_signum_is_mxnets():
    numbers = {"learning_rate": 0.1, "momentum": 0.8, "wd": 0.02, "wd_lh": 0.3}
    kv, grads = kvstore.create(), [gradient(0, step, SHAPE) for step in range(4)]
    kv.set_optimizer("signum", rescale_grad=0.5, clip_gradient=0.4, **numbers)
    want, state = torch.ones(SHAPE, dtype=torch.float64), torch.zeros(SHAPE, dtype=torch.float64)
    for grad in grads:
        clipped = (0.5 * grad.double()).clamp(-0.4, 0.4)
        state = 0.8 * state - 0.2 * 0.02 * want - 0.2 * clipped
        want = (1 - 0.1 * 0.3) * want + 0.1 * state.sign()
    assert torch.allclose(pushed(kv, grads, torch.ones(SHAPE)).double(), want, rtol=1e-5)


def test_signum_without_momentum_is_signsgd():
    kv = kvstore.create()
    kv.set_optimizer("signum", learning_rate=0.5, momentum=0.0, wd=0.1)
    out = pushed(kv, [torch.tensor([3.0, -0.1, 0.0])], torch.ones(3))
    assert torch.allclose(out, torch.tensor([0.45, 1.45, 0.95]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_have_others_of_32_beside_them(dtype, tmp_path):
    """Steps that are less than a 16-bit number can say add up, and go through a file."""
    numbers = {"learning_rate": 1e-4, "momentum": 0.9}
    grads = [torch.ones(SHAPE, dtype=dtype)] * 20
    plain, wide, exact = kvstore.create(), kvstore.create(), kvstore.create()
    plain.set_optimizer("sgd", **numbers)
    wide.set_optimizer("sgd", multi_precision=True, **numbers)
    exact.set_optimizer("sgd", **numbers)
    pushed(plain, grads, torch.ones(SHAPE, dtype=dtype))
    pushed(wide, grads[:10], torch.ones(SHAPE, dtype=dtype))
    wide.save_optimizer_states(str(tmp_path / "states"), dump_optimizer=True)
    again, out = kvstore.create(), torch.empty(SHAPE, dtype=dtype)
    again.set_optimizer("sgd", multi_precision=True, **numbers)
    value = torch.empty(SHAPE, dtype=dtype)
    wide.pull("w", value)
    again.init("w", value)
    again.load_optimizer_states(str(tmp_path / "states"))
    for grad in grads[10:]:
        again.push("w", grad)
    again.pull("w", out)
    want = pushed(exact, [grad.float() for grad in grads], torch.ones(SHAPE))
    assert torch.equal(out, want.to(dtype))
    plain.pull("w", value)
    assert not torch.equal(value, out), "without multi_precision these steps are lost"


@pytest.mark.parametrize(("name", "lazy"), [("sgd", True), ("sgd", False), ("adam", True)])
def test_lazy_rows_are_those_that_the_gradient_names(name, lazy):
    numbers = {"learning_rate": 0.1, "wd": 0.1} | ({"momentum": 0.9} if name == "sgd" else {})
    kv, plain = kvstore.create(), kvstore.create()
    kv.set_optimizer(name, lazy_update=lazy, **numbers)
    plain.set_optimizer(name, **numbers)
    grads = [torch.zeros(SHAPE) for _ in range(3)]
    for grad, rows in zip(grads, ([1, 4], [4], [1, 4]), strict=True):
        grad[rows] = 1.0
    out = pushed(kv, [grad.to_sparse(1) for grad in grads], torch.ones(SHAPE).to_sparse(1))
    want = pushed(plain, grads, torch.ones(SHAPE))
    # Row 4 is in every gradient: there is no difference there.
    assert torch.allclose(out[4], want[4])
    untouched = torch.ones(4) if lazy else want[0]
    assert torch.equal(out[0], untouched)
    assert torch.equal(out[1], want[1]) is not lazy
    assert not torch.equal(want[0], torch.ones(4)), "the weight decay reaches all rows"


def test_lazy_rows_have_the_momentum_of_their_own_updates():
    kv = kvstore.create()
    kv.set_optimizer("sgd", learning_rate=1.0, momentum=0.5, lazy_update=True)
    rows = [torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [0.0]])]
    out = pushed(kv, [each.to_sparse(1) for each in rows], torch.zeros(2, 1).to_sparse(1))
    assert out.tolist() == [[-1.0 - 1.5], [-1.0]]


def test_a_server_leaves_the_rows_alone_that_no_worker_names():
    core, a, b = pair()
    for peer in (a, b):
        init(core, peer, 2, "e", torch.ones(4, 2))
        numbers = {"learning_rate": 1.0, "wd": 0.5, "lazy_update": True}
        ask(core, peer, "optimizer", 3, number=1, name="sgd", numbers=numbers)
    for peer, rows in ((a, [0, 2]), (b, [2])):
        data = torch.cat([torch.tensor(rows).view(torch.uint8), torch.ones(len(rows), 2).view(-1).view(torch.uint8)])
        push(core, peer, 4, "e", 1, data, optimizer=1, rows=len(rows))
    (told,) = values(pull(core, a, 5, "e", 1)).values()
    assert told == [-0.5, -0.5, 1.0, 1.0, -1.5, -1.5, 1.0, 1.0]


SCHEDULERS = [
    FactorScheduler(2, factor=0.5, stop_factor_lr=0.3),
    MultiFactorScheduler([2, 3], factor=0.1),
    PolyScheduler(4, pwr=2, final_lr=0.1, warmup_steps=2, warmup_begin_lr=0.25),
    CosineScheduler(4, warmup_steps=2, warmup_mode="constant"),
]


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda each: type(each).__name__)
def test_a_rate_that_changes_by_itself_is_that_of_the_update(scheduler, tmp_path):
    kv, steps = kvstore.create(), 6
    kv.set_optimizer("sgd", learning_rate=1.0, lr_scheduler=scheduler)
    first = pushed(kv, [torch.ones(1)] * 3, torch.zeros(1))
    kv.save_optimizer_states(str(tmp_path / "states"))
    again, out = kvstore.create(), torch.empty(1)
    again.set_optimizer("sgd", learning_rate=1.0, lr_scheduler=scheduler.to_config())
    again.init("w", first)
    again.load_optimizer_states(str(tmp_path / "states"))
    for _ in range(steps - 3):
        again.push("w", torch.ones(1))
    again.pull("w", out)
    scheduler.base_lr = 1.0
    assert out.item() == pytest.approx(-sum(scheduler(update) for update in range(1, steps + 1)), rel=1e-6)


def test_mxnets_rates():
    """Written down from MXNet's formulas."""
    warm = PolyScheduler(6, base_lr=1.0, pwr=2, warmup_steps=2, warmup_begin_lr=0.5)
    assert [warm(update) for update in (1, 2, 3, 4, 6, 7)] == [0.75, 1.0, 0.5625, 0.25, 0.0, 0.0]
    factor = FactorScheduler(1, factor=0.1, stop_factor_lr=0.05, base_lr=1.0)
    assert [factor(update) for update in (1, 2, 3, 9)] == [1.0, 0.1, 0.05, 0.05]


def scheduled(rank):
    kv, out = kvstore.create("dist_sync", timeout=100), torch.empty(4)
    scheduler = FactorScheduler(1, factor=0.5)
    kv.set_optimizer("sgd", learning_rate=1.0, lr_scheduler=scheduler, multi_precision=True)
    half = torch.empty(4, dtype=torch.float16)
    kv.init(["w", "h"], [torch.zeros(4), torch.zeros(4, dtype=torch.float16)])
    for _ in range(3):
        kv.push(["w", "h"], [torch.ones(4), torch.ones(4, dtype=torch.float16)])
        kv.pull(["w", "h"], [out, half])
    kv._barrier()
    return out, half


def test_a_scheduler_travels_to_the_servers(tmp_path):
    for out, half in run_workers(scheduled, 2, 1, folder=tmp_path, timeout=110):
        assert out.tolist() == half.tolist() == [-2 * (1 + 0.5 + 0.25)] * 4


def test_the_optimizer_for_tests_takes_a_rate_as_mxnet_2_does():
    kv = kvstore.create()
    kv.set_optimizer("test", learning_rate=0.5, rescale_grad=2)
    assert pushed(kv, [torch.ones(2)], torch.zeros(2)).tolist() == [-1.0, -1.0]


def test_mxnets_private_names():
    kv = kvstore.create("local")
    kv._set_updater(lambda _, merged, stored: stored.sub_(merged))
    kv._barrier()
    assert pushed(kv, [torch.ones(2)], torch.zeros(2)).tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("sgd", {"lr_scheduler": lambda _: 0.1}, "FactorScheduler.*set_learning_rate"),
        ("sgd", {"lr_scheduler": {"name": "FactorScheduler", "stepp": 2}}, "did you mean 'step'"),
        ("sgd", {"lr_scheduler": {"name": "PolyScheduler", "max_update": 2, "warmup_steps": 2}}, "max_update must be"),
        ("sgd", {"multi_precision": 1}, "multi_precision of optimizer 'sgd' must be True or False, got 1"),
        ("nag", {"lazy_update": True}, "has no parameter 'lazy_update'"),
        ("signum", {"momentum": 1.5}, "refuses"),
        ("adadelt", {}, "unknown optimizer 'adadelt': did you mean 'adadelta'"),
    ],
)
def test_what_cannot_be_is_named(name, numbers, message):
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(name, numbers)


def test_a_trainer_takes_a_scheduler_and_then_no_other_rate():
    model = torch.nn.Linear(2, 1, bias=False)
    numbers = {"learning_rate": 1.0, "lr_scheduler": FactorScheduler(1, factor=0.5)}
    trainer = kvstore.Trainer(model.parameters(), "sgd", numbers)
    before, rates = model.weight.detach().clone(), []
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        trainer.step(1)
        rates.append(trainer.learning_rate)
    assert rates == [1.0, 0.5, 0.25]
    assert torch.allclose(model.weight, before - 1.75)
    with pytest.raises(ConfigError, match="beside lr_scheduler"):
        trainer.set_learning_rate(0.1)
