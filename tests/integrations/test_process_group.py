"""A process group that compresses, over real Gloo processes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire import registry
from gradwire.errors import ConfigError
from gradwire.frontends._compressing import PRESETS, CompressingGroup
from gradwire.testing.processes import run_ranks
from gradwire.vocabulary import ALIGNMENT, align
from tests.integrations.wrapped_jobs import (
    CASES,
    CODES,
    DIVIDED,
    N,
    alone,
    collectives,
    models,
    of_wrong_size,
    outcomes,
)
from tests.once import once

LOSES = {"bf16-fp32sum": 0.003, "fp8-two-phase": 0.04, "blockwise8": 0.012, "qsgd:bits=4": 0.2}
"""The share of its length by which a tensor may be off after one compression; two add up to less than twice that."""
WORLDS = (2, 3, 4)


@once
def told(world: int) -> list[dict[Any, Any]]:
    return run_ranks(world, collectives)


@once
def happened(world: int) -> list[dict[str, Any]]:
    return run_ranks(world, outcomes)


@once
def trained() -> list[dict[str, Any]]:
    return run_ranks(4, models)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("code", CODES)
def test_a_collective_gives_the_exact_result_but_for_the_code(world: int, code: str) -> None:
    results = told(world)
    for case in CASES:
        kind, used, op, dtype = case
        if used != code:
            continue
        for result in results:
            rounding = 0.004 if dtype == "bfloat16" else 0.0
            assert result[case]["error"] < 2 * LOSES[code] + rounding, case
            if kind != "reduce_scatter":
                assert torch.equal(result[case]["found"], results[0][case]["found"]), case
            alike = world == 2 and kind == "all_reduce" and (code, dtype) == ("bf16-fp32sum", "bfloat16")
            assert result[case]["compressed"] == (0 if alike and op != "premul" else 1), case
            assert not alike or result[case]["error"] < 0.004


def expected(kind: str, code: str, world: int) -> int:
    """Bytes that a rank sends: payloads in messages, whose first word is the status."""
    method = registry.build("compressors", PRESETS.get(code, code), {})

    def message(n: int) -> int:
        return ALIGNMENT + align(method.layout((n,)).nbytes)

    if kind == "reduce_scatter":
        return (world - 1) * message(N // world)
    if kind == "all_gather" or world == 2:
        return (world - 1) * message(N)
    # To each owner its part, and the own part to all: parts are equal here.
    return 2 * (world - 1) * message(N // world)


@pytest.mark.parametrize("world", WORLDS)
def test_bytes_on_the_wire_are_those_of_the_payloads(world: int) -> None:
    for result in told(world):
        for (kind, code, _, dtype), case in result.items():
            if case["compressed"]:
                wanted = expected(kind, code, world)
                assert case["sent"] == wanted
                size = 4 if dtype == "float32" else 2
                scale = {"all_reduce": 2 / world, "reduce_scatter": 1 / world, "all_gather": 1}[kind]
                assert case["dense"] == int(scale * (world - 1) * N * size)


def test_no_collective_is_left_to_torchs_own_way() -> None:
    """A call that a Python group does not name is made with the interpreter's lock held, for which Gloo's threads
    wait."""
    others = "abort boxed get_group_store merge_remote_group name rank set_timeout shutdown size split_group unbox "
    others += "get_backend get_reconfigure_handle unregister_post_hook unregister_pre_hook"  # From torch 2.15 on.
    known = {name for name, each in vars(dist.ProcessGroup).items() if name[0].islower() and callable(each)}
    assert known - set(others.split()) <= vars(CompressingGroup).keys()


@pytest.mark.parametrize("name", ["reconfigure", "register_post_hook", "register_pre_hook"])
def test_what_compressed_collectives_would_not_hear_of_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be called on a group that is not compressed: "):
        getattr(CompressingGroup, name)(None, 1, print)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("what", ["passed", "async", "functional", "rounded once"])
def test_it_behaves_as_a_group(world: int, what: str) -> None:
    for result in happened(world):
        assert all(result[what].values()), result[what]


@pytest.mark.parametrize("world", [2, 3])
def test_a_value_that_is_not_finite_reaches_all_and_stays_in_its_collective(world: int) -> None:
    for result in happened(world):
        assert result["nan"]
        assert result["after nan"]


@pytest.mark.parametrize("world", [2, 3])
def test_a_wait_ends_in_time_and_the_collective_goes_on(world: int) -> None:
    first, *others = (result["deadlines"] for result in happened(world))
    assert first["raised"] == "a collective was not done within timeout=0.02 s: it goes on; wait for it again"
    assert all(each["arrived"] for each in [first, *others])


def test_groups_draw_random_numbers_of_their_own() -> None:
    results = [result["streams"] for result in happened(3)]
    for name, found in results[0].items():
        assert all(torch.equal(other[name], found) for other in results if name in other), name
        assert not any(torch.equal(results[0][other], found) for other in results[0] if other != name), name
    assert torch.equal(results[0]["all", "first"], happened(3)[1]["streams"]["all", "first"])


def test_others_do_not_get_it_unasked() -> None:
    assert all(result["apart"] == ["ProcessGroup", True, True] for result in happened(2))


def test_a_closed_group_compresses_nothing() -> None:
    assert all(result["closed"] for result in happened(2))


REFUSED = {
    "memory": "compressor must be a method that needs no memory: one that is fine or right on average, got 'topk'",
    "rounds": "strategy 'two_phase' sends messages, but 'powersgd' is averaged in",
    "unknown": "did you mean 'bf16'",
    "twice": "group must be one that does not compress: give the group that was wrapped",
    "ranks": "min_numel is 1000 on rank 0; 1001 on rank 1",
    "least": "min_numel must be an integer >= 1, got 0",
    "no group": "group must be a process group of which this rank is one, got 'str'",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_on_all_ranks(case: str) -> None:
    for result in happened(2):
        assert re.search(REFUSED[case], result["refused"][case]), result["refused"][case]


@pytest.mark.parametrize("way", ["ddp", "flat", "native", "replicate"])
def test_it_works_under_what_trains(way: str) -> None:
    for result in trained():
        assert result[way]["distance"] < 0.01
        assert all(ratio > 1.9 for ratio in result[way]["ratios"])
        assert all(torch.equal(*pair) for pair in zip(result[way]["found"], trained()[0][way]["found"], strict=True))


@pytest.mark.parametrize(("factor", "dtype"), DIVIDED)
@pytest.mark.parametrize("way", ["flat", "native"])
def test_fsdp_may_divide_by_any_factor(way: str, factor: float, dtype: str) -> None:
    """Gloo alone cannot; it is told to sum, and FSDP divides."""
    for result in trained():
        case = result[way, factor, dtype]
        assert case["distance"] < (0.01 if dtype == "float32" else 0.02)
        # Between replicas a shard of the head is too small, and two ranks send tensors in bfloat16 as they are.
        between = {"float32": 2, "bfloat16": 0}[dtype]
        assert case["compressed"] == ([3] if way == "flat" else [3, between])


def test_it_is_the_default_group_where_that_is_wished() -> None:
    for result in trained():
        case = result["default"]
        assert case["rounded"]
        assert 0 < case["ddp"] < 0.01
        assert case["ddp's"] > 3
        assert case["native"] < 1e-6
        assert case["untouched"]
        assert case["distance"] < 0.01
        assert case["collectives"] >= 4
        assert case["backend"] == "gloo"


def test_who_waits_for_a_collective_hears_that_it_failed() -> None:
    heard, _ = run_ranks(2, alone)
    assert len(heard) == 4
    assert "waited timeout=2 s for rank 1" in heard[0] or "lost rank 1" in heard[0], heard
    assert not any(each == "nothing" for each in heard), heard


def test_tensors_that_do_not_fit_are_refused_as_without_compression() -> None:
    for left in run_ranks(3, of_wrong_size):
        assert left == {"long": 18000.0, "short": 18000.0, "gathered": 18000.0, "right": 6000.0}
