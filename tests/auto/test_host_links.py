"""Hosts of several ranks: the model of their links, and what auto makes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire.auto.choices import from_config_of
from gradwire.auto.host_links import HostWire
from gradwire.auto.link_cost import Wire
from gradwire.auto.traffic import dense_traffic, shared, traffic
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.engine.plan import Named
from gradwire.engine.strategies.hierarchical import Hierarchical
from gradwire.engine.strategies.reduce_scatter import rounds_to_owners
from gradwire.testing.processes import run_ranks
from gradwire.transport.collective_round import Round
from lab.tests.auto.test_traffic import NUMEL, PARAMS, asked
from tests.auto import jobs


def wire(**changed: Any) -> HostWire:
    """Three hosts of two ranks that share a link, which has no latency."""
    given = {"workers": 6, "rate": 1e6, "latency": 0.0, "message": 0.0, "size": 2, "shared": 2.0}
    return HostWire(**{**given, "between": 0.0, "inside": 1e7, "local": 0.0, **changed})


def test_a_ring_crosses_the_link_of_a_host_once() -> None:
    (ring,) = dense_traffic(1000, 6)
    assert wire().seconds(ring) == Wire(6, 1e6, 0.0, 0.0).seconds(ring)
    assert wire(crossings=2).seconds(ring) == 2 * wire().seconds(ring)


def test_messages_of_a_hosts_ranks_queue_for_its_link_if_they_share_one() -> None:
    """Four of a rank's five messages leave the host; the fifth is there long before."""
    everyone = Round("exchange", 5e6, 5e6)
    assert wire().seconds(everyone) == pytest.approx(2 * 4.0)
    assert wire(shared=1.0).seconds(everyone) == pytest.approx(4.0)
    assert wire(shared=1.0, inside=1e5).seconds(everyone) == pytest.approx(10.0)


def test_of_what_a_host_sends_each_rank_has_a_part() -> None:
    assert wire().seconds(Round("hosts", 3e6, 2e6)) == pytest.approx(3.0)
    assert wire(shared=1.0).seconds(Round("hosts", 3e6, 2e6)) == pytest.approx(1.5)
    assert wire().seconds(Round("local", 3e6, 2e6)) == pytest.approx(0.3)


def test_latencies_are_those_of_the_messages_to_other_hosts_and_inside() -> None:
    slow = wire(between=0.1, local=0.01, message=0.001, latency=0.05)
    tiny = {kind: slow.alpha(Round(kind, 1.0, 1.0)) for kind in ("exchange", "hosts", "local", "all_reduce")}
    assert tiny == pytest.approx({"exchange": 0.105, "hosts": 0.102, "local": 0.011, "all_reduce": 0.5})
    assert slow.alpha(Round("hosts", 0.0, 0.0)) == 0.0


def test_the_rate_of_a_link_follows_from_what_is_not_fixed() -> None:
    """The measurements of a window are turned into a rate by ``fixed`` and ``load``."""
    local, hosts = Round("local", 1e6, 1e6), Round("hosts", 1e6, 1e6)
    for each in (local, hosts):
        assert wire().seconds(each) == pytest.approx(wire().fixed(each) + wire().load(each) / 1e6)
    assert wire().load(local) == 0.0


def test_two_levels_send_what_is_foretold_inside_a_host_and_between() -> None:
    way = "hierarchical:ranks_per_host=2,between=allgather"
    sent = traffic(shared(PARAMS, TwoBit(), 4, strategy=way), 4)
    exchanges = [each for each in asked(TwoBit(), 4, 0, 1, way) if each.kind == "exchange"]
    local = sum(each.sent for each in sent.rounds if each.kind == "local")
    (between,) = (each.sent for each in sent.rounds if each.kind == "hosts")
    assert [between] == [each.sent for each in Hierarchical(1).rounds(shared(PARAMS, TwoBit(), 2).units, 2)]
    # One lane of two; a byte at the beginning, when what was kept would move.
    assert sum(each.sent for each in exchanges) == pytest.approx(local + between / 2 + 1, abs=64)
    assert local == pytest.approx(4 * (NUMEL - 10), abs=4)


def test_nothing_compressed_has_no_rounds_of_two_levels() -> None:
    small: list[Named] = [("bias", (10,))]
    assert traffic(shared(small, TwoBit(), 4, strategy="hierarchical:ranks_per_host=2"), 4).rounds == ()


def test_many_hosts_encode_their_sums_again() -> None:
    few = from_config_of("eden:bits=2", "hierarchical")
    assert [few.twice(hosts) for hosts in (2, 4, 5)] == [False, False, True]
    assert from_config_of("qsgd", "two_phase").twice(2)
    assert not from_config_of("qsgd", "allgather").twice(64)


def compressed(auto: dict[str, Any]) -> set[str]:
    return {each["choice"].split(" over ")[1] for each in auto["buckets"] if each["choice"] != "dense"}


@pytest.mark.parametrize(("inside", "sharing", "ways"), [(jobs.FAST, 2, True), (jobs.SLOW, 2, False)])
def test_hosts_send_together_what_their_ranks_would_send_one_by_one(inside: float, sharing: int, ways: bool) -> None:
    """Two levels are only more bytes where a host's own ranks are as far from each other as from others."""
    first, *others = run_ranks(4, jobs.on_hosts, inside, sharing)
    assert all(each["digest"] == first["digest"] for each in others)
    auto = first["auto"]
    assert auto["decisions"]
    assert all(each["auto"]["decisions"] == auto["decisions"] for each in others)
    assert ("hierarchical" in compressed(auto)) == ways
    assert auto["link"]["ranks_per_host"] == 2
    assert auto["link"]["shared"] == pytest.approx(sharing, rel=0.1)
    assert auto["link"]["bits_per_second"] == pytest.approx(8 * jobs.SLOW, rel=0.1)
    assert sum(each["error"] for each in auto["buckets"]) <= auto["buckets"][0]["budget"]


def test_ranks_with_links_of_their_own_are_told_from_those_that_share_one() -> None:
    for found in run_ranks(4, jobs.on_hosts, jobs.FAST, 1):
        assert found["auto"]["link"]["shared"] == pytest.approx(1.0, rel=0.1)
        assert "hierarchical" in compressed(found["auto"])


@pytest.mark.parametrize("sharing", [1, 2])
def test_sharded_gradients_are_summed_in_the_host_before_they_leave_it(sharing: int) -> None:
    first, *others = run_ranks(4, jobs.sharded_on_hosts, sharing)
    auto = first["auto"]
    assert auto["decisions"]
    assert all(each["auto"]["decisions"] == auto["decisions"] for each in others)
    assert auto["link"]["ranks_per_host"] == 2
    assert auto["link"]["shared"] == pytest.approx(sharing, rel=0.1)
    assert auto["link"]["bits_per_second"] == pytest.approx(8 * jobs.SLOW / 4, rel=0.1)
    assert compressed(auto) == {"hierarchical"}
    assert first["local"] > 0


@pytest.mark.parametrize("bad", [False, True])
def test_a_reduce_scatter_of_two_levels_gives_each_owner_its_mean(bad: bool) -> None:
    for found in run_ranks(4, jobs.scattered_by_hosts, bad):
        assert found["metrics"]["local_bytes"] > 0
        assert found["metrics"]["nonfinite_steps"] == bad
        for name, exact in found["exact"].items():
            if bad:
                assert not found["found"][name].isfinite().any()
            else:
                torch.testing.assert_close(found["found"][name], exact, rtol=0.02, atol=1e-3)


def test_the_round_between_hosts_carries_a_payload_for_each_owner_elsewhere() -> None:
    sent = rounds_to_owners(250.0, 8, plain=4000.0, size=4)
    assert rounds_to_owners(250.0, 8) == (Round("exchange", 7 * 250.0, 7 * 250.0),)
    assert [(each.kind, each.nbytes) for each in sent] == [
        ("local", 3 * 2 * 4000.0),
        ("local", 3.0),
        ("hosts", 4 * 250.0),
    ]
