"""Wrapped groups under torchft: inside replicas, and between them, where its manager averages and some of them go."""

from __future__ import annotations

import importlib.util
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gradwire.testing.processes import RankFailedError, run_ranks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is not installed")


def test_replicas_that_reduce_on_wrapped_groups_are_averaged_and_may_go() -> None:
    from tests.frameworks.torchft_jobs import GONE, STEPS, managed

    for rank, result in enumerate(run_ranks(4, managed)):
        steps = STEPS if rank < 2 else GONE
        assert result["replicas"] == ([2] * GONE + [1] * (STEPS - GONE))[:steps]
        assert result["committed"] == [True] * steps
        # bfloat16 rounds by 0.2 % of the length.
        assert 1e-5 < min(result["errors"]) <= max(result["errors"]) < 4e-3
        assert len(result["errors"]) == steps
        assert 1.9 < result["metrics"]["ratio"] < 2.1


@pytest.mark.parametrize(("method", "error", "least"), [("bf16-fp32sum", 4e-3, 1.9), ("blockwise8", 2e-2, 3.7)])
def test_what_the_manager_sends_between_replicas_is_compressed_and_replicas_may_go(
    method: str, error: float, least: float
) -> None:
    from tests.frameworks.torchft_jobs import ENDS, LEAVES, replicas

    results = run_ranks(3, replicas, method)
    for rank, result in enumerate(results):
        steps = LEAVES.get(rank, ENDS)
        assert result["replicas"] == [3, 3, 2, 2, 2, 1][:steps]
        # The step in which the second one is lost counts for nobody.
        assert result["committed"] == [True, True, True, True, False, True][:steps]
        shared = min(steps, LEAVES[1])
        assert 1e-5 < min(result["errors"][:shared]) <= max(result["errors"][:shared]) < error
        for one, other in zip(result["gradients"][:shared], results[0]["gradients"], strict=False):
            assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
        assert result["metrics"][shared - 1]["collectives"] == shared
        # The shards of three owners differ in size, and with them what each replica sends.
        assert least < result["metrics"][shared - 1]["ratio"] < least + 0.5
    last = results[0]
    # Alone it has exact gradients, and nothing to send.
    assert last["errors"][-1] < 1e-6
    assert last["metrics"][-1]["bytes_sent"] == last["metrics"][-2]["bytes_sent"]


@pytest.mark.parametrize(
    ("method", "replicas", "size", "asynchronous", "error", "least"),
    [
        ("bf16-fp32sum", 3, 1, False, 0.01, 1.9),
        ("blockwise8", 3, 1, True, 0.03, 3.7),
        ("blockwise8", 2, 2, True, 0.03, 3.4),
    ],
)
def test_a_replica_that_is_killed_and_comes_back_has_the_weights_of_the_others(
    method: str, replicas: int, size: int, asynchronous: bool, error: float, least: float, tmp_path: Path
) -> None:
    """Each replica is a job of its own: of one rank under torchft's DDP, or of two that shard the model by FSDP2."""
    from torchft.coordination import LighthouseServer

    from tests.frameworks.torchft_rejoin_jobs import BACK, DIES, TOGETHER, exact, live

    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=30_000)
    for notes in ("there", "ready", "back"):
        (tmp_path / notes).mkdir()
    place, last = (lighthouse.address(), str(tmp_path)), replicas - 1
    with ThreadPoolExecutor(replicas) as pool:
        jobs = [
            pool.submit(run_ranks, size, live, *place, number, replicas, False, method, asynchronous)
            for number in range(replicas)
        ]
        with pytest.raises(RankFailedError) as killed:
            jobs[last].result()
        assert killed.value.errors == dict.fromkeys(range(size), "died without a word: SIGKILL")
        jobs[last] = pool.submit(run_ranks, size, live, *place, last, replicas, True, method, asynchronous)
        results = [job.result() for job in jobs]
    lighthouse.shutdown()

    alone = results[0][0]["participants"].count(replicas - 1)
    assert alone >= BACK - DIES + asynchronous
    ends = DIES + alone + TOGETHER
    for number, job in enumerate(results):
        for told in job:
            # The step in whose middle it is killed counts for nobody, and is made once more without it.
            before = (
                [replicas] * (DIES + 1) + [replicas - 1] * alone if number != last else [replicas - 1] * asynchronous
            )
            assert told["participants"] == before + [replicas] * TOGETHER
            assert told["committed"] == [step != DIES or number == last for step in range(len(told["participants"]))]
            assert told["metrics"]["ratio"] > least
    for rank, first in enumerate(results[0]):
        for job in results[1:]:
            steps = sorted(job[rank]["weights"])
            assert steps[-1] == ends
            for step in steps:
                pairs = zip(job[rank]["weights"][step], first["weights"][step], strict=True)
                assert all(torch.equal(*pair) for pair in pairs), step

    everyone, others = list(range(replicas * size)), list(range(last * size))
    wanted = exact([everyone] * DIES + [others] * alone + [everyone] * TOGETHER)
    start = exact([])
    found = [torch.cat(parts) for parts in zip(*(told["weights"][ends] for told in results[0]), strict=True)]
    for mine, theirs, old in zip(found, wanted, start, strict=True):
        assert 0 < float((mine - theirs).norm()) < error * float((theirs - old).norm())


SAID = {
    "settings": r"ranks were configured differently: compressor\.name is 'bf16' on rank 0; 'fp8' on rank 1",
    "kind": r"group must be a torchft\.ProcessGroupGloo, if it is torchft's, got 'ProcessGroupDummy'",
    "twice": r"group must be a torchft\.ProcessGroupGloo, if it is torchft's, got 'CompressingReplicas'",
    "timeout": r"timeout must be left out: that of torchft's group counts, got 3\.0",
    "default": r"default must be False for a group of torchft, whose replicas are jobs of their own, got True",
    "method": r"compressor must be a method that needs no memory",
}


def test_wrong_settings_are_told_before_anything_is_sent() -> None:
    from tests.frameworks.torchft_jobs import differently

    for told in run_ranks(2, differently):
        assert told.keys() == SAID.keys()
        for case, said in SAID.items():
            assert re.search(said, told[case]), told[case]
