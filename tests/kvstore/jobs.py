"""Work of the workers in the tests of the distributed store."""

import hashlib
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from gradwire import ConfigError, GroupError, kvstore
from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.worker.connection import Request
from gradwire.kvstore.worker.store import DistStore
from tests.kvstore.mxnet_rounds import run

RATE = 2


def gradient(rank, step, shape, key=0):
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + key)
    return torch.randn(shape, generator=generator)


def random_pushes(rank, shapes, steps, compression, bound, name="dist_sync"):
    """Push random gradients of several keys; digests of the values after each step."""
    kv = kvstore.create(name, bound=bound, timeout=50)
    if compression is not None:
        kv.set_gradient_compression(compression)
    kv.set_optimizer("test", rescale_grad=RATE)
    keys = list(range(len(shapes)))
    kv.init(keys, [torch.full(shape, float(rank + 1)) for shape in shapes])
    values = [torch.empty(shape) for shape in shapes]
    kv.pull(keys, values)
    seen = [digests(values)]
    for step in range(steps):
        kv.push(keys, [gradient(rank, step, shape, key) for key, shape in enumerate(shapes)])
        kv.pull(keys, values)
        seen.append(digests(values))
    kv.barrier()
    return seen


def digests(values):
    """A digest of the bits of tensors, because those of four workers would fill a disk."""
    return [hashlib.sha256(value.numpy().tobytes()).hexdigest() for value in values]


def sequence(rank, shape, compression, grads):
    """MXNet's sequence: one constant after the other, and what a pull gives after each."""
    kv = kvstore.create("dist_sync", timeout=50)
    kv.set_gradient_compression(compression)
    kv.set_optimizer("test", rescale_grad=RATE)
    kv.init("w", torch.zeros(shape))
    values, out = [], torch.empty(shape)
    for grad in grads:
        kv.push("w", torch.full(shape, grad))
        kv.pull("w", out)
        values.append(out.clone())
    return values


def slow_steps(rank, steps, folder, compression, pause):
    """Push and pull ``steps`` times, slowly, and say how far it is. The error, the steps and the last value of one key.

    Two small keys in a call: they travel together.
    """
    kv = kvstore.create("dist_sync", timeout=50)
    if compression:
        kv.set_gradient_compression(compression)
    kv.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
    shape, out, made = (50, 50), torch.zeros(50, 50), Path(folder) / f"step-{rank}"
    both, outs = ["w", "b"], [out, torch.zeros(7)]
    kv.init(both, [torch.zeros(shape), torch.zeros(7)])
    kv.pull(both, outs)
    done = kv.version("w")
    try:
        for step in range(done, steps):
            kv.push(both, [gradient(rank, step, shape), gradient(rank, step, (7,))])
            kv.pull(both, outs)
            done = step + 1
            made.with_suffix(".new").write_text(str(done))
            made.with_suffix(".new").rename(made)
            time.sleep(pause)
    except GroupError as error:
        kv.close()
        return str(error), done, out
    kv.barrier()
    return "", done, out


def raises(rank):
    """Worker 1 fails after its first step; what the other one hears."""
    kv, out = kvstore.create("dist_sync", timeout=50), torch.zeros(3)
    kv.init("w", torch.zeros(3))
    for _ in range(10**6):
        kv.push("w", torch.ones(3))
        try:
            kv.pull("w", out)
        except GroupError as error:
            kv.close()
            return str(error)
        if rank == 1:
            raise ValueError("a worker's own mistake")
    return ""


def until_killed(rank, endpoint, folder):
    """Make steps without end, as the worker after the given one of three."""
    kv, keys = DistStore("dist_sync", WorkerPlace((endpoint,), rank + 1, 3), timeout=60), ["w", "twin of w"]
    kv.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
    kv.init(keys, [torch.zeros(50, 50) for _ in keys])
    for step in range(10**6):
        kv.push(keys, [gradient(rank + 1, step, (50, 50)) for _ in keys])
        kv.pull(keys, [torch.empty(50, 50) for _ in keys])


def alone_then_killed(rank, endpoint, shape):
    """Make a step as worker 1, and be killed when three pieces of the next push are gone."""
    kv, out = DistStore("dist_sync", WorkerPlace((endpoint,), 1, 2), timeout=50), torch.empty(shape)
    kv.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
    kv.init("w", torch.zeros(shape))
    kv.push("w", gradient(1, 0, shape))
    kv.pull("w", out)
    pieces = Request.frames

    def frames(self, piece):
        if self.op == "push" and piece == 3:
            # What was handed to the socket before is on its way.
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        return pieces(self, piece)

    Request.frames = frames
    kv.push("w", gradient(1, 1, shape))
    kv.pull("w", out)


def refused_push(rank):
    """A push with a NaN is refused on both workers, and the next one counts as if it had not been tried."""
    kv, out = kvstore.create("dist_sync", timeout=30), torch.empty(4)
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.init("w", torch.zeros(4))
    refused = 0
    for value in (0.6, float("nan"), 0.6):
        try:
            kv.push("w", torch.full((4,), value))
        except ConfigError:
            refused += 1
        kv.pull("w", out)
    return refused, kv.version("w"), out


def mxnet_plan(rank, rounds, bound):
    """The work of MXNet's workers, done by ours."""
    kv = kvstore.create("dist_sync", bound=bound, timeout=50)
    values = run(kv, rounds, rank, torch.from_numpy, torch.Tensor.numpy)
    kv.barrier()
    return {name: torch.from_numpy(value) for name, value in values.items()}


def lists_of_keys(rank):
    """Push and pull lists of keys again and again, each in another way, and the same keys one by one."""
    kv = kvstore.create("dist_sync", timeout=50, bound=50_000)
    shapes = [(3,), (100_000,), (17, 5), (40,), (), (33,), (2, 3, 4), (0,)]
    together, alone = ([f"{kind}{i}" for i in range(len(shapes))] for kind in "ta")
    for keys in (together, alone):
        kv.init(keys, [torch.zeros(shape) for shape in shapes])
    told, joined = [], []
    for step, (name, params) in enumerate(WAYS):
        if params is not None:
            kv.set_gradient_compression(params)
        grads = [gradient(rank, step, shape, i) for i, shape in enumerate(shapes)]
        outs = [[torch.full(shape, -1.0) for shape in shapes] for _ in range(2)]
        for key, grad in zip(alone, grads, strict=True):
            kv.push(key, grad)
        for key, out in zip(alone, outs[1], strict=True):
            kv.pull(key, out)
        joined.append(push_list(kv, name, together, grads))
        pull_list(kv, name, together, outs[0])
        told.append((f"step {step}: {name}", *outs))
    kv.barrier()
    return told, joined


WAYS = [
    ("plain", None),
    ("plain", None),
    ("plain", None),
    ("pulled one by one", None),
    ("plain", None),
    ("plain", {"type": "2bit", "threshold": 0.4}),
    ("plain", None),
    ("pushed one by one", None),
    ("plain", None),
    ("plain", None),
    ("plain", None),
    ("another order", None),
    ("a tuple", None),
    ("refused", None),
    ("plain", None),
    ("other tensors", None),
    ("plain", {"type": "2bit", "threshold": 0.7}),
    ("plain", {"type": "topk", "ratio": 0.3}),
    ("plain", {"type": "1bit", "threshold": 0.1}),
    ("plain", None),
    ("plain", {"type": "none"}),
    ("plain", None),
    ("other tensors", None),
    ("urgent", None),
]
"""The pushes and pulls of a list's keys in each step, and the settings before it."""


def push_list(kv, name, keys, grads):
    """Push; whether small keys go together after it."""
    grads = [grad.clone() for grad in grads]
    if name == "pushed one by one":
        for key, grad in zip(keys, grads, strict=True):
            kv.push(key, grad)
    elif name == "another order":
        kv.push(keys[::-1], grads[::-1])
    elif name == "a tuple":
        kv.push(tuple(keys), tuple(grads))
    elif name == "other tensors":
        kv.push(keys, [[grad.double()] if i % 2 else grad for i, grad in enumerate(grads)])
    else:
        if name == "refused":
            refused(kv, keys, grads)
        kv.push(keys, grads, 5 * (name == "urgent"))
    for grad in grads:
        # It was pushed: what the caller does with it now changes nothing.
        grad.zero_()
    return any(known.joined is not None for known in kv._keys.values())


def refused(kv, keys, grads):
    """A push that is refused, which must leave residuals and steps as they were."""
    bad = [grad.clone() for grad in grads]
    bad[5][32] = float("nan")
    with pytest.raises(ConfigError, match="'t5'"):
        kv.push(keys, bad)


def pull_list(kv, name, keys, outs):
    if name == "pulled one by one":
        for key, out in zip(keys, outs, strict=True):
            kv.pull(key, out)
    elif name == "other tensors":
        strided = [torch.stack([out, out], -1)[..., 0] for out in outs]
        kv.pull(keys, strided)
        for out, value in zip(outs, strided, strict=True):
            out.copy_(value)
    else:
        kv.pull(keys, outs, 5 * (name == "urgent"))


def many_keys(rank):
    """Push and pull many keys in one call, and the same ones one by one; (what, values of the first, of the second)."""
    kv = kvstore.create("dist_sync", timeout=50, bound=50_000)
    told = []
    shapes = [(3,), (100_000,), (17, 5), (), (40_000,), (0,), (2, 3, 4)]
    for number, params in enumerate([{"type": "none"}, {"type": "2bit"}, {"type": "topk", "ratio": 0.1}]):
        kv.set_gradient_compression(params)
        together, alone = ([f"{number}{kind}{i}" for i in range(len(shapes))] for kind in "ta")
        for keys in (together, alone):
            kv.init(keys, [torch.zeros(shape) for shape in shapes])
        for step in range(3):
            grads = [gradient(rank, step, shape, i) for i, shape in enumerate(shapes)]
            kv.push(together, grads)
            kept = [grad.clone() for grad in grads]
            for grad in grads:
                # It was pushed: what the caller does with it now changes nothing.
                grad.zero_()
            for key, grad in zip(alone, kept, strict=True):
                kv.push(key, grad)
            values = [[torch.full(shape, -1.0) for shape in shapes] for _ in range(2)]
            kv.pull(together, values[0])
            for key, value in zip(alone, values[1], strict=True):
                kv.pull(key, value)
            told.append((f"{params['type']} step {step}", *values))
    kv.barrier()
    return told
