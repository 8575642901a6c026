"""The sequences of MXNet's own tests of compression, for the stores of one process: init, pull before push, zeros, the
residual, negative values, random gradients; several senders and shapes."""

import pytest
import torch

from gradwire import kvstore
from tests.kvstore.simulate import Simulated, summed

SHAPES = [(4, 4), (100, 100), (2, 3), (1211, 1211)]
"""The sizes of MXNet's tests; the large one ends within a word of every code."""

PUSHES = [(shape, senders) for shape in SHAPES[:3] for senders in (1, 2, 4)] + [((1211, 1211), 2), ((2000, 2000), 1)]
"""Shapes and numbers of senders."""

RATE = 2
THRESHOLDS = {"2bit": [0.5], "1bit": [-0.5, 0.0, 0.5]}
CODES = [(kind, threshold) for kind, thresholds in THRESHOLDS.items() for threshold in thresholds]


def store(kind, threshold, key, shape):
    kv = kvstore.create("device")
    kv.set_gradient_compression({"type": kind, "threshold": threshold})
    kv.set_optimizer("test", rescale_grad=RATE)
    kv.init(key, torch.zeros(shape))
    return kv


def pushed(kv, key, shape, values):
    """Push one constant for each sender; what a pull gives then."""
    kv.push(key, [torch.full(shape, value) for value in values])
    out = torch.full(shape, 7.0)
    kv.pull(key, out)
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "threshold"), CODES)
def test_init_is_not_compressed(kind, threshold, shape):
    kv, values = kvstore.create("device"), torch.randn(shape)
    kv.set_gradient_compression({"type": kind, "threshold": threshold})
    kv.init("w", values)
    out = [torch.zeros(shape), torch.zeros(shape)]
    kv.pull("w", out)
    assert all(torch.equal(each, values) for each in out)


@pytest.mark.parametrize(("shape", "senders"), PUSHES)
def test_zeros_change_nothing_with_two_bits(shape, senders):
    kv = store("2bit", 0.5, 3, shape)
    for _ in range(3):
        assert not pushed(kv, 3, shape, [0.0] * senders).any()


@pytest.mark.parametrize(("shape", "senders"), PUSHES)
def test_the_residual_of_two_bits_waits_for_the_threshold(shape, senders):
    threshold = 0.5
    kv = store("2bit", threshold, 9, shape)
    unit = threshold * RATE * senders
    # 0.4 waits; 0.4 + 0.2 fires and leaves 0.1; 0.1 + 0.2 waits; 0.3 + 0.2 fires and leaves 0.
    for grad, fired in ((0.4, 0), (threshold - 0.3, 1), (0.2, 1), (threshold - 0.3, 2), (0.0, 2)):
        assert torch.equal(pushed(kv, 9, shape, [grad] * senders), torch.full(shape, fired * unit))


@pytest.mark.parametrize(("shape", "senders"), PUSHES)
def test_negative_values_fire_below_the_threshold(shape, senders):
    threshold = 0.5
    kv = store("2bit", threshold, 9, shape)
    unit = threshold * RATE * senders
    for grad, fired in ((-0.4, 0), (-0.2, -1), (-threshold, -2), (threshold + 0.2, -1)):
        assert torch.equal(pushed(kv, 9, shape, [grad] * senders), torch.full(shape, fired * unit))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threshold", THRESHOLDS["1bit"])
def test_one_bit_sends_plus_one_above_the_threshold_and_else_minus_one(threshold, shape):
    kv = store("1bit", threshold, 9, shape)
    # The residual after each push: t + 0.3 - 1, then back at t + 0.3 with a push of 1, ...
    assert torch.equal(pushed(kv, 9, shape, [threshold + 0.3]), torch.full(shape, 1.0 * RATE))
    assert torch.equal(pushed(kv, 9, shape, [0.0]), torch.full(shape, 0.0))
    assert torch.equal(pushed(kv, 9, shape, [1.0]), torch.full(shape, 1.0 * RATE))


def check_random(kind, threshold, shape, senders, steps=3, grouped=False):
    kv, keys = kvstore.create("device"), ([4, 5, 11] if grouped else [4])
    kv.set_gradient_compression({"type": kind, "threshold": threshold})
    kv.set_optimizer("test", rescale_grad=RATE)
    kv.init(keys, [torch.zeros(shape)] * len(keys))
    simulated = {key: [Simulated(kind, threshold, shape) for _ in range(senders)] for key in keys}
    want = {key: torch.zeros(shape) for key in keys}
    for _ in range(steps):
        grads = {key: [torch.randn(shape) for _ in range(senders)] for key in keys}
        before = {key: [grad.clone() for grad in grads[key]] for key in keys}
        kv.push(keys, [grads[key] for key in keys])
        out = [torch.empty(shape) for _ in keys]
        kv.pull(keys, out)
        for key, got in zip(keys, out, strict=True):
            want[key] += RATE * summed(simulated[key], [grad.numpy() for grad in before[key]])
            assert torch.equal(got, want[key])
            assert all(torch.equal(a, b) for a, b in zip(grads[key], before[key], strict=True)), "gradients are kept"


@pytest.mark.parametrize(("shape", "senders"), PUSHES)
@pytest.mark.parametrize(("kind", "threshold"), CODES)
def test_random_gradients_give_the_bits_of_a_simulation(kind, threshold, shape, senders):
    check_random(kind, threshold, shape, senders)


@pytest.mark.parametrize("kind", ["2bit", "1bit"])
@pytest.mark.parametrize("threshold", [1e-7, 0.123456789, 1.5e-6])
def test_a_small_threshold_is_kept_to_the_last_bit(kind, threshold):
    check_random(kind, threshold, (100, 100), 2)


@pytest.mark.parametrize("kind", ["2bit", "1bit"])
def test_a_group_of_keys(kind):
    check_random(kind, 0.5, (100, 100), 2, grouped=True)
