"""Settings that ``set_gradient_compression`` takes and refuses, and the traffic that is compressed then."""

import pytest
import torch

from gradwire import ConfigError, kvstore, registry
from gradwire.compressors import capabilities
from tests.kvstore.simulate import Simulated, summed
from tests.kvstore.stores import SHAPE, device, pulled, rows_of

BUILT = {name: registry.build("compressors", name) for name in registry.names("compressors")}
ROUNDS = [name for name, code in BUILT.items() if capabilities.in_rounds(code)]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("2bit", "must be a dict"),
        ({}, "with 'type'"),
        ({"threshold": 0.5}, "with 'type'"),
        ({"type": "2BIT"}, "did you mean '2bit'"),
        ({"type": None}, "Known:"),
        ({"type": "2bit", "Threshold": 0.5}, "did you mean 'threshold'"),
        ({"type": "2bit", "thresold": 0.5}, "did you mean 'threshold'"),
        ({"type": "2bit", "threshold": 0}, "> 0"),
        ({"type": "2bit", "threshold": -1}, "> 0"),
        ({"type": "2bit", "threshold": float("nan")}, "finite"),
        ({"type": "2bit", "threshold": "abc"}, "finite number"),
        ({"type": "2bit", "threshold": 1e-50}, "float32"),
        ({"type": "2bit", "threshold": 1e40}, "float32"),
        ({"type": "topk", "ratio": 2}, "TopK.ratio"),
        ({"type": "none", "threshold": 1}, "alone"),
        ({"type": "2bit", "memory": "resid"}, "did you mean 'residual'"),
        ({"type": "eden", "memory": "preconditioned"}, "one that needs not know what became of the mean, .* got 'pre"),
        ({"type": "eden", "memory": "preconditioned"}, "with this one train by compress_ddp"),
        (
            {"type": "eden", "variance_correction": True},
            r"without 'variance_correction', got True: .* compress_ddp\(model, method, variance_correction=optimizer\)",
        ),
        ({"type": "none", "pull": {"type": "eden", "variance_correction": 1}}, "without 'variance_correction', got 1"),
        ({"type": "topk", "memory": "none"}, "memory 'none' loses for good what TopK.* say force=True"),
        ({"type": "topk", "memory": "momentum"}, "memory 'momentum' loses for good what TopK.* say force=True"),
        ({"type": "topk", "memory": "none", "force": 1}, r"compression_params\['force'\] must be True or False, got 1"),
        ({1: 2, "type": "2bit"}, "a str"),
    ],
)
def test_bad_compression_parameters_leave_the_setting_as_it_was(params, message):
    kv = device(type="2bit", threshold=0.5)
    before = kv.compression
    with pytest.raises(ConfigError, match=message):
        kv.set_gradient_compression(params)
    assert kv.compression == before


@pytest.mark.parametrize("name", ["local", "local_update_cpu", "local_allreduce_cpu"])
def test_a_store_that_sums_on_the_cpu_does_not_compress(name):
    with pytest.raises(ConfigError, match="does not compress"):
        kvstore.create(name).set_gradient_compression({"type": "2bit"})


@pytest.mark.parametrize("threshold", ["0.25", 1, "1e-3"])
def test_numbers_may_be_strings(threshold):
    assert device(type="2bit", threshold=threshold).compression.push.threshold == float(threshold)


def test_compression_after_init_and_after_uncompressed_pushes_of_several_senders():
    kv = kvstore.create("device")
    kv.init(1, torch.zeros(SHAPE))
    kv.push(1, [torch.ones(SHAPE)] * 3)
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.push(1, [torch.full(SHAPE, 0.6)] * 2)
    assert torch.equal(pulled(kv, 1), torch.ones(SHAPE))


def test_the_number_of_senders_may_shrink_and_grow():
    kv, simulated = device(type="2bit", threshold=0.5), [Simulated("2bit", 0.5, SHAPE) for _ in range(4)]
    kv.init(1, torch.zeros(SHAPE))
    for senders in (2, 1, 4, 3):
        grads = [torch.randn(SHAPE) for _ in range(senders)]
        kv.push(1, grads)
        assert torch.equal(pulled(kv, 1), summed(simulated[:senders], [grad.numpy() for grad in grads]))


@pytest.mark.parametrize("name", ROUNDS)
def test_senders_that_come_and_go_have_the_numbers_and_the_state_of_the_others(name):
    """The mean of equal gradients is the same whatever their number, and nothing is kept of one."""
    shape, stores = (64, 64), [device(type=name, memory="none", force=True) for _ in range(2)]
    for store in stores:
        store.init(1, torch.zeros(shape))
    for step, senders in enumerate((2, 2, 2, 3, 1, 3)):
        grad = torch.randn(shape, generator=torch.Generator().manual_seed(step))
        for store, count in zip(stores, (senders, 3), strict=True):
            store.push(1, [grad] * count)
        if senders == 3:
            mean, wanted = (pulled(store, 1, shape) for store in stores)
            torch.testing.assert_close(mean, wanted, rtol=1e-3, atol=1e-3)


def test_a_new_threshold_keeps_the_residual():
    kv = device(type="2bit", threshold=0.5)
    kv.init(1, torch.zeros(SHAPE))
    kv.push(1, torch.full(SHAPE, 0.4))
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.25})
    kv.push(1, torch.zeros(SHAPE))
    assert torch.equal(pulled(kv, 1), torch.full(SHAPE, 0.25))


def test_compression_can_be_switched_off_and_on_again():
    kv = device(type="2bit", threshold=0.5)
    kv.init(1, torch.zeros(SHAPE))
    kv.push(1, torch.full(SHAPE, 0.4))
    kv.set_gradient_compression({"type": "none"})
    kv.push(1, torch.full(SHAPE, 0.3))
    assert torch.equal(pulled(kv, 1), torch.full(SHAPE, 0.3))
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.push(1, torch.full(SHAPE, 0.2))
    assert torch.equal(pulled(kv, 1), torch.full(SHAPE, 0.5))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["2bit", "topk", "powersgd"])
def test_a_gradient_that_is_not_finite_is_refused_and_poisons_nothing(kind, bad):
    kv, clean = device(type=kind), device(type=kind)
    for store in (kv, clean):
        store.init(1, torch.zeros(64, 64))
    grads = [torch.randn(64, 64) for _ in range(3)]
    for step, grad in enumerate(grads):
        if step == 1:
            wrong = grad.clone()
            wrong[3, 3] = bad
            with pytest.raises(ConfigError, match="key 1 must be finite"):
                kv.push(1, wrong)
        kv.push(1, grad)
        clean.push(1, grad)
    assert torch.equal(pulled(kv, 1, (64, 64)), pulled(clean, 1, (64, 64)))


@pytest.mark.parametrize("name", [name for name in registry.names("compressors") if name != "none"])
def test_any_method_by_its_name(name):
    kv = device(type=name)
    shape = (64, 64)
    kv.init("w", torch.zeros(shape))
    total, sent, out = torch.zeros(shape), torch.zeros(shape), torch.empty(shape)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        grads = [torch.randn(shape, generator=generator) for _ in range(2)]
        kv.push("w", grads)
        kv.pull("w", out)
        total += sum(grads)
        sent += out
    assert torch.isfinite(sent).all()
    assert sent.any()
    assert torch.nn.functional.cosine_similarity(sent.view(-1), total.view(-1), dim=0) > 0.03


def test_a_nan_of_one_sender_leaves_the_residuals_of_the_others():
    kv, clean = device(type="2bit", threshold=0.5), device(type="2bit", threshold=0.5)
    for store in (kv, clean):
        store.init([1, 2], [torch.zeros(SHAPE)] * 2)
    good, bad = torch.full(SHAPE, 0.7), torch.full(SHAPE, float("nan"))
    with pytest.raises(ConfigError, match="key 2 must be finite"):
        kv.push([1, 2], [[good, good], [good, bad]])
    for store in (kv, clean):
        for _ in range(2):
            store.push([1, 2], [[good, good], [good, good]])
    for key in (1, 2):
        entries = [store._keys[key].senders for store in (kv, clean)]
        assert all(torch.equal(a.kept["residual"], b.kept["residual"]) for a, b in zip(*entries, strict=True))
        assert torch.equal(pulled(kv, key), pulled(clean, key))


def of_rows(grad):
    return rows_of(grad[1:3], [1, 2])


@pytest.mark.parametrize("form", [torch.clone, of_rows])
def test_a_code_of_one_sender_that_overflows_leaves_the_residuals_of_the_others(form):
    kv, clean = device(type="fp16", memory="residual"), device(type="fp16", memory="residual")
    for store in (kv, clean):
        store.init(1, torch.zeros(SHAPE))
    grads = [form(torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))) for seed in range(2)]
    for store in (kv, clean):
        store.push(1, grads)
    # It is finite, and only its code in 16 bits is not.
    with pytest.raises(ConfigError, match="nothing of this key was pushed"):
        kv.push(1, [grads[1], form(torch.full(SHAPE, 7e4))])
    for mine, theirs in zip(kv._keys[1].senders, clean._keys[1].senders, strict=True):
        assert bool(mine.kept["residual"].any())
        assert torch.equal(mine.kept["residual"], theirs.kept["residual"])
    for store in (kv, clean):
        store.push(1, grads)
    assert torch.equal(pulled(kv, 1), pulled(clean, 1))


def test_a_push_that_is_refused_leaves_the_states_of_the_senders():
    kv, clean = (device(type="sidco", memory="none", force=True) for _ in range(2))
    grads = [torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    for store in (kv, clean):
        store.init(1, torch.zeros(64, 64))
        store.push(1, grads)
    # It is finite, but not with the headroom that a method needs.
    with pytest.raises(ConfigError, match="nothing of this key was pushed"):
        kv.push(1, [grads[1], torch.full((64, 64), 1e35)])
    for mine, theirs in zip(kv._keys[1].senders, clean._keys[1].senders, strict=True):
        assert bool(mine.state["history"].any())
        assert all(torch.equal(mine.state[name], theirs.state[name]) for name in theirs.state)
