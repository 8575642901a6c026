"""What workers do in the tests of the distributed store."""

import time
from pathlib import Path

import torch

from gradwire import ConfigError, GroupError, kvstore
from tests.kvstore.mxnet_rounds import run

RATE = 2


def gradient(rank, step, shape, key=0):
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + key)
    return torch.randn(shape, generator=generator)


def random_pushes(rank, shapes, steps, compression, bound, name="dist_sync"):
    """Push random gradients of several keys; the values after each step."""
    kv = kvstore.create(name, bound=bound, timeout=50)
    if compression is not None:
        kv.set_gradient_compression(compression)
    kv.set_optimizer("test", rescale_grad=RATE)
    keys = list(range(len(shapes)))
    kv.init(keys, [torch.full(shape, float(rank + 1)) for shape in shapes])
    values = [[torch.empty(shape) for shape in shapes]]
    kv.pull(keys, values[0])
    for step in range(steps):
        kv.push(keys, [gradient(rank, step, shape, key) for key, shape in enumerate(shapes)])
        values.append([torch.empty(shape) for shape in shapes])
        kv.pull(keys, values[-1])
    kv.barrier()
    return values


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
    """Push and pull one key ``steps`` times, slowly; say how far it is; the last value, or the error."""
    kv = kvstore.create("dist_sync", timeout=50)
    if compression:
        kv.set_gradient_compression(compression)
    kv.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
    shape, out = (50, 50), torch.empty(50, 50)
    kv.init("w", torch.zeros(shape))
    try:
        for step in range(kv.version("w"), steps):
            kv.push("w", gradient(rank, step, shape))
            kv.pull("w", out)
            (Path(folder) / f"step-{rank}").write_text(str(step + 1))
            time.sleep(pause)
    except GroupError as error:
        kv.close()
        return str(error)
    kv.barrier()
    return out


def unequal_steps(rank, steps):
    """Rank 0 makes more steps than the others; the last value of each."""
    kv, out = kvstore.create("dist_sync", timeout=50), torch.empty(4)
    kv.set_optimizer("test")
    kv.init("w", torch.zeros(4))
    for _ in range(steps if rank == 0 else 2):
        kv.push("w", torch.ones(4))
        kv.pull("w", out)
    kv.finish()
    return out


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
    """What MXNet's workers are asked to do, with ours."""
    kv = kvstore.create("dist_sync", bound=bound, timeout=50)
    values = run(kv, rounds, rank, torch.from_numpy, torch.Tensor.numpy)
    kv.barrier()
    return {name: torch.from_numpy(value) for name, value in values.items()}
