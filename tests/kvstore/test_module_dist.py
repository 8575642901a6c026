"""The Module over servers: two workers are one with batches of both, also from a checkpoint on."""

import torch
from torch import nn

from tests.kvstore.group import run_workers
from tests.kvstore.module_jobs import epochs, network, share


def test_two_workers_are_one_with_their_batches_together_and_go_on_from_a_checkpoint(tmp_path):
    for begin, end in ((0, 1), (1, 3)):
        first, second = run_workers(epochs, 2, 1, str(tmp_path), begin, end, folder=tmp_path)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        for x, y in share(0, 1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(first, model.parameters(), strict=True))
