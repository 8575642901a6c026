"""The same bits as ``allgather``."""

import torch

from gradwire.testing.processes import run_ranks
from tests.strategies.jobs import run_exchange


def test_broadcast_gives_the_bits_of_allgather() -> None:
    one, other = (
        run_ranks(3, run_exchange, "twobit", {}, {"strategy": strategy}, {"min_numel": 0}, 3)[0]["outputs"]
        for strategy in ("broadcast", "allgather")
    )
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
