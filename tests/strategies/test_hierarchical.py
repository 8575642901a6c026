"""Hosts of several ranks: pretended by ``ranks_per_host``, on four real ranks, as two hosts of two."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import gradwire
from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.engine.exchange import Exchange
from gradwire.engine.strategies.hierarchical import Hierarchical
from gradwire.errors import ConfigError
from gradwire.memory.base import default_memory
from gradwire.testing.processes import run_ranks
from gradwire.transport.handshake import DIGEST
from gradwire.transport.hosts import own_host
from gradwire_lab.bench.pretended import pretended_exchange
from tests.integrations.amp_jobs import BAD, scaled
from tests.integrations.checkpoint_jobs import resume_each
from tests.once import once
from tests.strategies.hierarchical_jobs import BUCKETS, Stage, changing, loaded, means, pretending, saved, set_up
from tests.strategies.jobs import SHAPES, conserved, gradient, numel, run_all

POLICY = {"min_numel": 100}
STEPS = 4
POISON = {1: (3, float("nan")), 2: (0, float("inf"))}
"""Step -> the rank that has no finite gradient in it, and what one of its elements is."""
WAYS = ("allgather", "two_phase")
TWO = Hierarchical(2)
N = numel(SHAPES)


def carried() -> list[tuple[str, str]]:
    """(strategy between hosts, compressor), all that go together."""
    pairs = itertools.product(WAYS, registry.names("compressors"))
    return [(way, name) for way, name in pairs if name != "none" and _carries(way, name)]


def _carries(way: Any, name: str) -> bool:
    try:
        Hierarchical(2, way).check(registry.build("compressors", name))
    except ConfigError:
        return False
    return True


@once
def results_of(way: Any, poisoned: bool) -> dict[str, list[dict[str, Any]]]:
    """Every compressor that is carried so, in one launch of the ranks."""
    steps = {name: STEPS for each, name in carried() if each == way}
    options = {"strategy": Hierarchical(2, way)}
    by_rank = run_ranks(4, run_all, steps, options, POLICY, POISON if poisoned else None, timeout=800.0)
    return {name: [results[name] for results in by_rank] for name in steps}


def same_bits(results: list[dict[str, Any]]) -> bool:
    """Return whether all ranks have the outputs of the first."""
    pairs = (zip(each["outputs"], results[0]["outputs"], strict=True) for each in results)
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in itertools.chain.from_iterable(pairs))


@pytest.mark.parametrize(("way", "name"), carried())
def test_ranks_agree_and_nothing_is_lost(way: str, name: str) -> None:
    results = results_of(way, False)[name]
    assert same_bits(results)
    method = registry.build("compressors", name)
    votes = capabilities.settles(method)
    if default_memory(method) == "residual" and not votes:
        arrived, put = conserved(results, STEPS)
        torch.testing.assert_close(arrived, put, rtol=0, atol=4e-5)


@pytest.mark.parametrize(("way", "name"), carried())
def test_bytes_are_counted_and_those_within_a_host_apart(way: str, name: str) -> None:
    for result in results_of(way, False)[name]:
        metrics = result["metrics"]
        assert metrics["bytes_sent"] == result["sent"] - STEPS * 3 * DIGEST
        assert metrics["bytes_received"] == result["received"] - STEPS * 3 * DIGEST
        assert 0 < metrics["local_bytes"] < metrics["bytes_sent"]


@pytest.mark.parametrize(("way", "name"), carried())
def test_what_is_not_finite_on_one_rank_is_taken_back_in_all_lanes(way: str, name: str) -> None:
    results = results_of(way, True)[name]
    for result in results:
        for step in POISON:
            assert not result["outputs"][step].isfinite().all()
            for kept, before in result["residuals"][step - 1].items():
                assert torch.equal(result["residuals"][step][kept], before)
        assert result["outputs"][3].isfinite().all()
        assert result["metrics"]["nonfinite_steps"] == len(POISON)


def test_hosts_are_the_workers_of_the_method() -> None:
    """The codes of single elements are those of two workers with the means of the hosts, bit for bit."""
    across = run_ranks(4, means, "twobit", [Hierarchical(2, "allgather")], 1)
    alone = run_ranks(2, means, "twobit", ["allgather"], 2)
    lo = hi = 0
    for name, shape in SHAPES:
        lo, hi = hi, hi + torch.Size(shape).numel()
        for one, other in zip(across[0][0]["outputs"], alone[0][0]["outputs"], strict=True):
            if name in alone[0][0]["residuals"]:
                assert torch.equal(one[lo:hi], other[lo:hi]), name
            else:
                torch.testing.assert_close(one[lo:hi], other[lo:hi])


@pytest.mark.parametrize("method", ["qsgd", "topk", "strom"])
def test_with_one_rank_on_each_host_it_is_the_strategy_between_them(method: str) -> None:
    ways: list[Any] = [way for way in WAYS if method != "strom" or way == "allgather"]
    strategies = [each for way in ways for each in (way, Hierarchical(1, way))]
    for result in run_ranks(3, means, method, strategies, 1):
        for plain, ours in zip(result[::2], result[1::2], strict=True):
            assert all(map(torch.equal, plain["outputs"], ours["outputs"]))
            assert plain["metrics"]["bytes_sent"] == ours["metrics"]["bytes_sent"]


@pytest.mark.parametrize("method", ["qsgd", "topk"])
def test_on_one_host_nothing_is_compressed_and_nothing_waits(method: str) -> None:
    for (result,) in run_ranks(4, means, method, [Hierarchical(4)], 1):
        for step, output in enumerate(result["outputs"]):
            expected = torch.stack([gradient(step, rank, N) for rank in range(4)]).mean(0)
            torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
        assert not any(each.any() for each in result["residuals"].values())


def test_a_vote_is_held_on_one_host_too() -> None:
    for (result,) in run_ranks(2, means, "signsgd", [Hierarchical(2)], 1, 0):
        assert all(set(output.tolist()) <= {-1.0, 0.0, 1.0} for output in result["outputs"])


@pytest.mark.parametrize("method", ["qsgd", "topk"])
def test_the_link_between_hosts_carries_one_payload_for_a_host(method: str) -> None:
    ours, plain = (
        [run[0]["metrics"] for run in run_ranks(4, means, method, [way], 1, 0)] for way in (TWO, "allgather")
    )
    payload = plain[0]["bytes_sent"] / 3
    for host in (ours[:2], ours[2:]):
        between = sum(each["bytes_sent"] - each["local_bytes"] for each in host)
        # A status word and the rounding of a second message, in three steps.
        assert between == pytest.approx(payload, abs=3 * 32)
        # Half of the elements go to the neighbour, and half of the means, in float32.
        assert host[0]["local_bytes"] == pytest.approx(3 * 4 * N, rel=0.1)


STAGES: dict[str, list[tuple[Any, Any]]] = {
    "buckets": [(TWO, BUCKETS[0]), (TWO, BUCKETS[1]), (TWO, BUCKETS[2])],
    "shards": [(Hierarchical(2, "two_phase"), BUCKETS[0]), (Hierarchical(2, "two_phase"), BUCKETS[1])],
    "from shards": [("two_phase", BUCKETS[0]), (TWO, BUCKETS[0])],
    "to hosts": [("allgather", BUCKETS[0]), (TWO, BUCKETS[0]), (Hierarchical(4), BUCKETS[0])],
    "from hosts": [(TWO, BUCKETS[0]), ("allgather", BUCKETS[0])],
    "from hosts to shards": [(TWO, BUCKETS[0]), ("two_phase", BUCKETS[0])],
    "other hosts": [(Hierarchical(1), BUCKETS[0]), (TWO, BUCKETS[1]), (Hierarchical(1), BUCKETS[2])],
}


@once
def moved() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Every way of moving with each method, in one launch of the ranks; 4 steps each, in which no shard waits longer.

    Buckets are rebuilt in mid-run; another strategy is that of a run that goes on with the state.
    """
    cases = {
        (method, how): [
            Stage(method, strategy, buckets, 4, i > 0 and strategy is not ways[i - 1][0])
            for i, (strategy, buckets) in enumerate(ways)
        ]
        for method in ("topk", "twobit")
        for how, ways in STAGES.items()
    }
    return dict(zip(cases, zip(*run_ranks(4, changing, list(cases.values())), strict=True), strict=True))


@pytest.mark.parametrize("how", STAGES)
@pytest.mark.parametrize("method", ["topk", "twobit"])
def test_what_waits_goes_with_its_parameters(method: str, how: str) -> None:
    results = moved()[method, how]
    assert same_bits(results)
    arrived, put = conserved(results, 4 * len(STAGES[how]))
    torch.testing.assert_close(arrived, put, rtol=0, atol=1e-4)


@pytest.mark.parametrize("how", [how for how, ways in STAGES.items() if ways[-1][0] is TWO])
def test_what_waits_lies_where_it_is_sent_from(how: str) -> None:
    """Two ranks of a host work on different elements, so what both keep nobody sends of one of them."""
    results = moved()["topk", how]
    for one, other in (results[:2], results[2:]):
        for name, kept in one["residuals"][-1].items():
            assert kept.any() or other["residuals"][-1][name].any()
            assert not (kept * other["residuals"][-1][name]).any(), name


@pytest.mark.parametrize(("after", "strategy"), [(2, TWO), (2, Hierarchical(1)), (6, Hierarchical(3))])
def test_what_waits_is_the_same_on_another_number_of_ranks(after: int, strategy: Hierarchical) -> None:
    told = run_ranks(4, saved, "topk", TWO, 3)
    state = gradwire.merge_states([each["state"] for each in told])
    old = [{**each, "outputs": []} for each in told]
    new = run_ranks(after, loaded, "topk", strategy, state)
    assert same_bits(new)
    before, _ = conserved(old, 0)
    arrived, _ = conserved(new, 0)
    assert before.norm() > 1
    torch.testing.assert_close(arrived, before, rtol=0, atol=1e-5)


def test_a_run_goes_on_bit_for_bit() -> None:
    ways = ["hierarchical:ranks_per_host=2", "hierarchical:ranks_per_host=2,between=two_phase"]
    each = [(name, way) for way in ways for name in ("topk", "onebit", "qsgd", "signum", "loco")]
    for same in run_ranks(4, resume_each, each, 2):
        assert same.keys() == set(each)
        assert all(all(steps) for steps in same.values()), same


def test_an_overflow_under_ddp_leaves_every_residual() -> None:
    results = run_ranks(4, scaled, {"topk": {"ratio": 0.1, "strategy": TWO}})
    for result in (each["topk"] for each in results):
        assert result["untouched"]
        assert result["skipped"] == [step == BAD for step in range(7)]
        assert result["digest"] == results[0]["topk"]["digest"]


def bare() -> list[str]:
    """Methods of a fixed size without a memory."""
    made = [registry.build("compressors", name) for way, name in carried() if way == "two_phase"]
    return [each.name for each in made if default_memory(each) == "none"]


@pytest.mark.parametrize("name", bare())
def test_a_step_asks_no_device(name: str) -> None:
    """On the device without elements whoever asks for a value gets an error. A memory is asked once, for a new plan."""
    exchange = pretended_exchange(registry.build("compressors", name), 4)
    exchange.change(exchange.methods.changed(exchange.methods.compressor, strategy=TWO))
    exchange.begin_step()
    exchange.run(torch.empty(N, device="meta"), SHAPES)
    assert 0 < exchange.counters.local_bytes < exchange.counters.bytes_sent


def test_ranks_of_a_host_need_not_be_neighbours() -> None:
    results = run_ranks(4, pretending, ["a", "b", "a", "b"], "bf16")
    assert same_bits([{"outputs": outputs} for _, outputs, _ in results])
    for step, output in enumerate(results[0][1]):
        expected = torch.stack([gradient(step, rank, N) for rank in range(4)]).mean(0)
        torch.testing.assert_close(output, expected, rtol=1e-2, atol=1e-2)
    for error, _, metrics in results:
        assert not error
        # 16 bytes to three others, once, by which the ranks find out.
        assert metrics["bytes_sent"] - metrics["local_bytes"] == pytest.approx(3 * N, rel=0.01)


def test_hosts_of_different_sizes_are_refused_on_all_ranks() -> None:
    said = (
        r"strategy 'hierarchical' needs equally many ranks on every host, got hosts with ranks 0, 2; ranks 1: start as "
        r"many on each, give ranks_per_host, or use strategy='two_phase'"
    )
    assert {error for error, _, _ in run_ranks(3, pretending, ["a", "b", "a"], "qsgd")} == {said}


@pytest.mark.parametrize("size", [2, 6])
def test_hosts_that_do_not_divide_the_ranks_are_refused_at_set_up(size: int) -> None:
    said = f"ranks_per_host must be a divisor of the number of ranks, 3, got {size}"
    assert run_ranks(3, set_up, f"hierarchical:ranks_per_host={size}") == [said] * 3
    assert run_ranks(3, set_up, "hierarchical:ranks_per_host=3") == [""] * 3


def test_processes_of_this_machine_say_the_same_host() -> None:
    assert len(own_host()) == 16
    assert set(run_ranks(2, _said)) == {own_host()}


def _said(rank: int) -> bytes:
    return own_host()


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("powersgd", {"strategy": "hierarchical"}, "use strategy='allreduce'"),
        ("dgc", {"strategy": "hierarchical"}, "memory 'dgc' keeps more of each rank's own gradient"),
        ("topk", {"strategy": "hierarchical", "memory": "ef21", "force": True}, "memory 'ef21' keeps more"),
        ("strom", {"strategy": Hierarchical(1, "two_phase")}, "'strom' has a variable size"),
        ("qsgd", {"strategy": "hierarchical:ranks_per_host=0"}, "Hierarchical.ranks_per_host must be an integer >= 1"),
        ("qsgd", {"strategy": "hierarchical:between=broadcast"}, "Hierarchical.between must be 'allgather', 'two_ph"),
    ],
)
def test_what_cannot_work_is_refused(method: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Exchange(registry.build("compressors", method), **options)
