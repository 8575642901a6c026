"""The Module over servers: two workers are one with batches of both, from a checkpoint on and after a crash, too."""

import signal

import pytest
import torch
from torch import nn

from tests.kvstore.group import finished, run_workers, start_workers
from tests.kvstore.module_jobs import epochs, killed_once, network, share


def test_two_workers_are_one_with_their_batches_together_and_go_on_from_a_checkpoint(tmp_path):
    for begin, end in ((0, 1), (1, 3)):
        first, second = run_workers(epochs, 2, 1, str(tmp_path), begin, end, folder=tmp_path)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert same(first, alone())


@pytest.mark.timeout(400)
@pytest.mark.parametrize("factor", [1.0, 0.9])
def test_a_worker_that_is_killed_and_started_again_goes_on_where_the_other_is(factor, tmp_path):
    options = ["--dead-after", "200"]
    with start_workers(killed_once, 2, 1, str(tmp_path), factor, folder=tmp_path, options=options) as group:
        assert group.workers[1].wait(150) == -signal.SIGKILL
        group.start_worker(1)
        first, second = finished(group, tmp_path, 150)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert same(first, alone(factor))


def alone(factor=1.0):
    """The parameters after three epochs of one process, with a rate that falls by ``factor`` after every update."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        for x, y in share(0, 1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= factor
    return list(model.parameters())


def same(got, want):
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, want, strict=True))
