"""A meeting with the same workers from the first round to the last is a process group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire.testing.processes import run_ranks
from tests.optim.jobs import forward, model_of, parameters

CASES: list[tuple[str, dict[str, Any]]] = [
    ("local_sgd", {"compressor": "topk", "ratio": 0.1}),
    ("diloco", {"compressor": "qsgd", "bits": 4, "memory": "residual", "momentum": 0.5}),
    ("diloco", {"compressor": "efsignsgd", "momentum": 0.9, "exclude": ["4.*"]}),
    ("local_sgd", {"compressor": "randomk", "ratio": 0.2, "memory": "residual"}),
    ("local_sgd", {"compressor": "strom", "threshold": 0.01, "start_after": 1}),
    ("diloco", {"compressor": "topk", "ratio": 0.1, "memory": "dgc"}),
    # Of variable size, as strom: what is handed in is as long as what is in use.
    ("local_sgd", {"compressor": "threshold", "v": 0.01}),
    ("local_sgd", {"compressor": "three_lc"}),
    ("local_sgd", {"compressor": "sidco", "ratio": 0.1}),
    ("local_sgd", {"compressor": "adaptive_sparse", "ratio": 0.1}),
    ("local_sgd", {"compressor": "adaptive_threshold", "ratio": 0.1}),
    ("local_sgd", {"compressor": "variance"}),
    ("local_sgd", {"compressor": "sketchml"}),
    ("local_sgd", {"compressor": "inceptionn"}),
    ("local_sgd", {"compressor": "atomo"}),
    ("local_sgd", {"compressor": "entropy"}),
]


def _both(rank: int, min_numel: int) -> list[list[tuple[str, str]]]:
    """The parameters after each of five rounds, at a meeting and in a group."""
    shared: list[Any] = [None]
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        shared = [server.port]
    dist.broadcast_object_list(shared)
    told = []
    for i, (kind, options) in enumerate(CASES):
        meeting = gradwire.Meeting(f"127.0.0.1:{shared[0]}/{i}", str(rank), workers=2)
        runs = [_run(rank, kind, {**options, "min_numel": min_numel}, each) for each in (meeting, None)]
        told.append(list(zip(*runs, strict=True)))
    dist.barrier()
    return told


def _run(rank: int, kind: str, options: dict[str, Any], meeting: gradwire.Meeting | None) -> list[str]:
    model = model_of(seed=3 + rank)
    inner = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.5)
    optimizer = getattr(gradwire, kind)(inner, every=3, meeting=meeting, **options)
    optimizer.join()
    seen = []
    for step in range(15):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        if optimizer.in_step:
            seen.append(parameters(model))
    return seen


@pytest.mark.timeout(300)
@pytest.mark.parametrize("min_numel", [0, 128])
def test_a_meeting_of_two_is_a_group_of_two_bit_for_bit(min_numel: int) -> None:
    results = run_ranks(2, _both, min_numel, timeout=120)
    assert results[0] == results[1]
    for case, rounds in zip(CASES, results[0], strict=True):
        assert len({meeting for meeting, _ in rounds}) == 5
        assert all(meeting == group for meeting, group in rounds), case
