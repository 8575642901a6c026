"""Hosts of two ranks, each a network namespace: what the link between them carries."""

from __future__ import annotations

import json
import sys

import pytest

from gradwire.netlab import Netlab


def test_the_link_of_a_host_carries_one_payload(possible: None) -> None:
    """The ranks find out themselves who shares a namespace; 4 payloads leave a host where each rank sends its own."""
    command = [sys.executable, "-m", "tests.netlab.host_ranks", "start", "hierarchical", "allgather"]
    with Netlab(2, "1gbit") as lab:
        hosts = [json.loads(done.stdout) for done in lab.run(command, timeout=120.0)]
    for told in hosts:
        # Frames, acknowledgements and the rows by which ranks compare where they stand: a few hundredths.
        assert told["hierarchical"] == pytest.approx(1.0, abs=0.15)
        assert told["allgather"] == pytest.approx(4.0, abs=0.4)
