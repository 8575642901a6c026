"""Real workers and servers: MXNet's sequences, and random gradients against a simulation, bit for bit."""

import numpy as np
import pytest
import torch

from tests.kvstore.group import run_workers
from tests.kvstore.jobs import RATE, gradient, random_pushes, refused_push, sequence
from tests.kvstore.simulate import Simulated

SHAPES = [(4, 4), (100, 100), (2000, 2000), (2, 3), (1211, 1211), (1200, 1200)]


def expected(shapes, workers, steps, compression):
    """What all workers must see: rank 0's first value, and then the sums in the order of ranks."""
    kind = compression and compression["type"]
    senders = [
        [Simulated(kind, (compression or {}).get("threshold", 0.5), shape) for shape in shapes] for _ in range(workers)
    ]
    values = [[torch.ones(shape) for shape in shapes]]
    for step in range(steps):
        after = []
        for key, shape in enumerate(shapes):
            total = np.zeros(shape, np.float32)
            for rank in range(workers):
                grad = gradient(rank, step, shape, key).numpy()
                total += senders[rank][key].send(grad) if kind else grad
            after.append(values[-1][key] + RATE * torch.from_numpy(total))
        values.append(after)
    return values


@pytest.mark.parametrize("compression", [None, {"type": "2bit", "threshold": 0.5}, {"type": "1bit", "threshold": 0.0}])
@pytest.mark.parametrize(("workers", "servers", "bound"), [(1, 1, 10**6), (2, 2, 10**6), (2, 3, 1000), (4, 1, 100)])
def test_random_gradients_give_the_bits_of_a_simulation(compression, workers, servers, bound, tmp_path):
    shapes = SHAPES if servers == 2 else SHAPES[:2]
    steps = 2 if servers == 2 else 3
    results = run_workers(random_pushes, workers, servers, shapes, steps, compression, bound, folder=tmp_path)
    want = expected(shapes, workers, steps, compression)
    for values in results:
        for step, (mine, theirs) in enumerate(zip(values, want, strict=True)):
            for shape, a, b in zip(shapes, mine, theirs, strict=True):
                assert torch.equal(a, b), f"step {step}, shape {shape}"


@pytest.mark.parametrize("workers", [1, 2])
def test_the_residual_of_two_bits_waits_for_the_threshold(workers, tmp_path):
    grads, fired = (0.0, 0.4, 0.2, 0.2, 0.2, -0.5), (0, 0, 1, 1, 2, 1)
    results = run_workers(sequence, workers, 1, (4, 4), {"type": "2bit", "threshold": 0.5}, grads, folder=tmp_path)
    for values in results:
        assert [value[0, 0].item() for value in values] == [0.5 * RATE * workers * count for count in fired]


def test_a_push_that_is_refused_was_not_made(tmp_path):
    for refused, version, value in run_workers(refused_push, 2, 1, folder=tmp_path):
        assert (refused, version) == (1, 2)
        assert value.tolist() == [1.0] * 4
