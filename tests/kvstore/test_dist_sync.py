"""Real workers and servers: MXNet's sequences, and random gradients against a simulation, bit for bit."""

import functools
import json

import numpy as np
import pytest
import torch

from tests.kvstore.group import run_workers
from tests.kvstore.jobs import RATE, digests, gradient, random_pushes, refused_push, sequence
from tests.kvstore.simulate import Simulated

SHAPES = [(4, 4), (100, 100), (2, 3), (1211, 1211)]
"""The shapes of MXNet's tests; the large one is cut over the servers, and travels in several pieces."""


CODES = [None, {"type": "2bit", "threshold": 0.5}, {"type": "1bit", "threshold": 0.0}]
STEPS = 2


@functools.cache
def expected(workers, code):
    """The values that all workers must see: rank 0's first value, and then the sums in the order of ranks; digests of
    them."""
    compression = json.loads(code) or {}
    kind, threshold = compression.get("type"), compression.get("threshold")
    senders = [[Simulated(kind, threshold, shape) for shape in SHAPES] for _ in range(workers)]
    values = [torch.ones(shape) for shape in SHAPES]
    seen = [digests(values)]
    for step in range(STEPS):
        for key, shape in enumerate(SHAPES):
            total = np.zeros(shape, np.float32)
            for rank in range(workers):
                grad = gradient(rank, step, shape, key).numpy()
                total += senders[rank][key].send(grad) if kind else grad
            values[key] = values[key] + RATE * torch.from_numpy(total)
        seen.append(digests(values))
    return seen


ALONE, CUT, FOUR = (1, 1, 10**6), (2, 3, 1000), (4, 1, 10**6)
"""Numbers of workers and servers, and of the elements from which on keys are cut."""
GROUPS = [(CUT, FOUR), (ALONE, (2, 2, 10**6), CUT, FOUR), (CUT,)]
"""The groups in which each of the codes travels."""


@pytest.mark.parametrize(
    ("workers", "servers", "bound", "compression"),
    [(*group, code) for code, groups in zip(CODES, GROUPS, strict=True) for group in groups],
)
def test_random_gradients_give_the_bits_of_a_simulation(workers, servers, bound, compression, tmp_path):
    job = (random_pushes, workers, servers, SHAPES, STEPS, compression, bound)
    results = run_workers(*job, folder=tmp_path, timeout=120)
    want = expected(workers, json.dumps(compression))
    for values in results:
        for step, (mine, theirs) in enumerate(zip(values, want, strict=True)):
            assert dict(zip(SHAPES, mine, strict=True)) == dict(zip(SHAPES, theirs, strict=True)), f"step {step}"


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
