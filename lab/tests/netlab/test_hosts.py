"""Hosts of two ranks, each a network namespace: what the link between them carries."""

from __future__ import annotations

import json
import sys

import pytest

from gradwire_lab.netlab import Netlab


def test_the_link_of_a_host_carries_one_payload(possible: None) -> None:
    """The ranks find out themselves who shares a namespace; 4 payloads leave a host where each rank sends its own."""
    command = [sys.executable, "-m", "lab.tests.netlab.host_ranks", "start", "hierarchical", "allgather"]
    with Netlab(2, "1gbit") as lab:
        hosts = [json.loads(done.stdout) for done in lab.run(command, timeout=120.0)]
    for told in hosts:
        # Frames, acknowledgements and the rows by which ranks compare where they stand: a few hundredths.
        assert told["hierarchical"] == pytest.approx(1.0, abs=0.15)
        assert told["allgather"] == pytest.approx(4.0, abs=0.4)


def test_the_link_of_a_host_carries_one_payload_of_hybrid_sharding(possible: None) -> None:
    """The rows of a model stay on a host, and each of its ranks sends its own shard; or each rank is a replica."""
    command = [sys.executable, "-m", "lab.tests.netlab.host_ranks", "start", "hybrid"]
    with Netlab(2, "1gbit") as lab:
        hosts = [json.loads(done.stdout) for done in lab.run(command, timeout=500.0)]
    for told in hosts:
        assert told["hosts are replicas"] == pytest.approx(1.0, abs=0.15)
        assert told["hierarchical"] == pytest.approx(1.0, abs=0.15)
        assert told["ranks are replicas"] == pytest.approx(4.0, abs=0.4)
        # Two ranks that average 4 bytes an element send each element once.
        assert told["FSDP alone"] == pytest.approx(4.0, abs=0.4)


@pytest.mark.timeout(600)
def test_auto_finds_the_hosts_and_lets_each_send_one_mean(possible: None) -> None:
    """A link so slow that nothing but its bytes counts: two levels send a half of what the other ways do."""
    command = [sys.executable, "-m", "lab.tests.netlab.host_ranks", "start", "auto"]
    with Netlab(2, "20mbit") as lab:
        hosts = [json.loads(done.stdout) for done in lab.run(command, timeout=500.0)]
    first = hosts[0]
    for told in hosts:
        assert told["choices"] == first["choices"]
        assert "hierarchical" in {each.split(" over ")[-1] for each in told["choices"]}
        assert told["link"]["ranks_per_host"] == 2
        assert told["link"]["shared"] > 1.3
        assert told["after"] < told["before"] / 4
