"""The mean of what every rank decoded, and traffic of (W-1) payloads."""

import torch

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.group.agree import DIGEST
from gradwire.testing.processes import run_ranks
from tests.comm.jobs import SHAPES, gradient, numel, run_exchange


def test_the_result_is_the_mean_of_the_decoded_payloads() -> None:
    options, policy = {"strategy": "allgather"}, {"min_numel": 0}
    (first, *_) = run_ranks(3, run_exchange, "twobit", {"threshold": 1.0}, options, policy, 1)
    n, code = numel(SHAPES), TwoBit(threshold=1.0)
    expected = torch.zeros(n)
    for rank in range(3):
        x = gradient(0, rank, n)
        expected += code.decompress(code.compress(x), (n,)) * torch.tensor(1 / 3)
    torch.testing.assert_close(first["outputs"][0], expected, rtol=0, atol=1e-7)


def test_traffic_is_two_payloads_for_three_ranks() -> None:
    n = numel(SHAPES)
    payload = 4 * -(-n // 16)
    for result in run_ranks(3, run_exchange, "twobit", {}, {"strategy": "allgather"}, {"min_numel": 0}, 1):
        assert result["sent"] == 2 * (8 + payload + -payload % 8 + DIGEST)
