"""The cost of an exchange is counted and timed, and no wrong result is timed."""

from __future__ import annotations

import re

import pytest
import torch

from gradwire import registry
from gradwire.errors import ConfigError
from gradwire_lab.bench.buckets import cut
from gradwire_lab.bench.exchange import ALL_REDUCE, ExchangePlan, Rival, WrongMeanError, exchange_rows
from gradwire_lab.bench.operations import OperationCount
from gradwire_lab.bench.pretended import pretended_exchange
from gradwire_lab.experiments.shapes import network_shapes
from lab.tests.bench.wrong_methods import Forgetful, Parting

SHAPES = ((8, 3, 3, 3), (8,), (64, 64), (64,), (10, 2000))
META = ExchangePlan("small", SHAPES, 4, "meta", seconds=0.01)
REAL = ExchangePlan("small", SHAPES, 2, "cpu", seconds=0.05)
HOOKS = [Rival("torch_bf16", hook={"name": "bf16"}), Rival("torch_powersgd", hook={"name": "powersgd", "rank": 2})]


def ours(*names: str) -> list[Rival]:
    return [Rival(name, registry.build("compressors", name)) for name in names]


def test_what_is_known_by_counting_by_hand() -> None:
    plain, cast, _ = exchange_rows(META, [Rival(ALL_REDUCE), *HOOKS])
    n = META.numel
    assert (plain["operations"], plain["collectives"], plain["bytes_moved"]) == (1, 1, 8 * n)
    # Cast, divide in place, copy back.
    assert (cast["operations"], cast["collectives"], cast["bytes_moved"]) == (3, 1, (6 + 4 + 10) * n)
    assert plain["bytes_sent"] == 2 * cast["bytes_sent"] == 6 * n


def test_every_method_is_counted_and_one_alone_of_fixed_size_reads_anything_back() -> None:
    rows = {row["method"]: row for row in exchange_rows(META, ours(*registry.names("compressors")))}
    waiting = {name for name, row in rows.items() if row.get("synchronisations")}
    assert {name for name, row in rows.items() if "skipped" in row} == waiting
    fixed = {name for name in rows if registry.build("compressors", name).fixed_size}
    # Places of rice codes are counted on the host, and numbers of combinations are read there (docs/regions.md).
    assert waiting & fixed <= {"sparseloco"}
    for name in rows.keys() - waiting:
        assert rows[name]["operations"] >= rows[name]["collectives"] > 0, name
        assert rows[name]["bytes_per_element"] >= 8, name


@pytest.mark.parametrize("model", ["resnet50", "gpt2", "densenet40_k12"])
def test_an_exchange_costs_by_the_byte_and_not_by_the_tensor(model: str) -> None:
    """Operations and collectives, and bytes an element, that an accelerator is asked for: few, however many tensors;
    but not of methods of the second tier with operations of their own, whose references run tensor by tensor."""
    bounds = {
        "bf16": (12, 24),
        "fp16": (12, 24),
        "twobit": (16, 32),
        "onebit": (16, 32),
        "efsignsgd": (16, 40),
        "signsgd": (16, 40),
        "onebit_sgd": (16, 40),
        "blockwise8": (16, 36),
        "fp8": (16, 36),
        "natural": (16, 36),
        "loco": (16, 36),
        "qsgd": (20, 40),
        "nuqsgd": (20, 40),
        "eden": (16, 36),
        "topk": (16, 40),
        "oktopk": (16, 40),
        "dynamic8": (16, 36),
        "terngrad": (16, 28),
        "lpc_svrg": (16, 32),
        "ef21": (24, 68),
        "dgc": (34, 104),
        "compose": (32, 80),
        "powersgd": (205, 90),
        "acp_sgd": (190, 140),
        "gradzip": (160, 140),
        "gradiveq": (170, 140),
    }
    plan = ExchangePlan(model, tuple(tuple(shape) for shape in network_shapes(model)), 4, "meta", seconds=0.01)
    for row in exchange_rows(plan, ours(*bounds)):
        operations, nbytes = bounds[row["method"]]
        assert row["operations"] + row["collectives"] <= operations, row["method"]
        assert row["bytes_per_element"] <= nbytes, row["method"]


@pytest.mark.parametrize("model", ["resnet50", "gpt2", "densenet40_k12"])
def test_second_tier_methods_with_operations_of_their_own_ask_for_a_few_of_each_tensor(model: str) -> None:
    """The bytes are few all the same."""
    bounds = {"signum": 48, "thc": 60, "randomk": 56, "global_qsgd": 42, "demo": 120, "sketched_sgd": 75}
    shapes = tuple(tuple(shape) for shape in network_shapes(model))
    for row in exchange_rows(ExchangePlan(model, shapes, 4, "meta", seconds=0.01), ours(*bounds)):
        assert row["operations"] + row["collectives"] <= 4 * len(shapes), row["method"]
        assert row["bytes_per_element"] <= bounds[row["method"]], row["method"]


def test_scales_of_a_memory_are_two_more_operations() -> None:
    code = registry.build("compressors", "eden")
    exchange = pretended_exchange(code, 4)
    exchange.change(exchange.methods.changed(code, "preconditioned"))
    params = [(str(i), tuple(shape)) for i, shape in enumerate(network_shapes("resnet50"))]
    flat = torch.empty(sum(torch.Size(shape).numel() for _, shape in params), device="meta")
    with OperationCount("meta") as count:
        exchange.begin_step()
        exchange.run(flat, params)
    assert count.names["gradwire::precondition_each"] == count.names["gradwire::precondition_update_each"] == 1
    assert count.operations <= 24  # tables and buffers of the first step among them
    assert count.synchronisations == 0


def test_buckets_are_those_of_ddp_and_cost_their_own_operations() -> None:
    one, cutted = (
        [*exchange_rows(ExchangePlan("s", [(1 << 18,)] * 5, 4, "meta", mb), ours("bf16"))] for mb in (None, 2)
    )
    assert (one[0]["buckets"], cutted[0]["buckets"]) == (1, 3)
    assert cutted[0]["collectives"] == 3 * one[0]["collectives"]
    named = [("a", (4,)), ("b", (1 << 18,)), ("c", (1 << 18,))]
    assert [[name for name, _ in bucket] for bucket in cut(named, 1)] == [["c"], ["b"], ["a"]]


def test_pretended_ranks_send_what_real_ones_send() -> None:
    names = "bf16", "twobit", "topk", "powersgd"
    real = [row["bytes_sent"] for row in exchange_rows(REAL, ours(*names))]
    plan = ExchangePlan("small", SHAPES, REAL.ranks, "meta", seconds=0.01)
    assert real == [row["bytes_sent"] for row in exchange_rows(plan, ours(*names))]


def test_real_ranks_are_checked_by_what_a_method_promises() -> None:
    rivals = [Rival(ALL_REDUCE), *HOOKS, *ours("bf16", "twobit", "qsgd", "topk", "powersgd", "dgc")]
    rows = {row["method"]: row for row in exchange_rows(REAL, rivals)}
    assert {name: row.get("checked", row) for name, row in rows.items()} == {
        ALL_REDUCE: "rounding",
        "torch_bf16": "rounding",
        "torch_powersgd": "near",
        "bf16": "bound",
        "twobit": "identity",
        "qsgd": "bound",
        "topk": "identity",
        "powersgd": "identity",
        "dgc": "bits",
    }
    for row in rows.values():
        assert row["rounds"] >= 5
        assert row["ratio"] == pytest.approx(row["seconds"] / row["all_reduce_seconds"])
    assert rows[ALL_REDUCE]["ratio"] == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Forgetful(), "wrong: the mean of 2 ranks is off by .*, and by its identity .* are allowed; nothing was timed"),
        (Parting(), "wrong: the ranks have different bits; nothing was timed"),
    ],
)
def test_what_is_wrong_is_not_timed(wrong: Forgetful, said: str) -> None:
    (row,) = exchange_rows(REAL, [Rival("wrong", wrong)])
    assert "seconds" not in row
    assert WrongMeanError.__name__ in row["error"]
    assert re.search(said, row["error"])


def test_a_pretended_exchange_takes_the_path_of_an_accelerator() -> None:
    """On the CPU a step that counts is a branch; elsewhere what was before is selected, which is more operations."""
    exchange = pretended_exchange(registry.build("compressors", "twobit"), 4)
    exchange.begin_step()
    flat = torch.empty(4096, device="meta")
    exchange.run(flat, [("w", (64, 64))])
    assert exchange.channel.world == exchange.residuals.world == 4
    assert flat.device.type == "meta"
    assert exchange.residuals.worker["residual"]["w"].device.type == "meta"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranks": 1}, r"ExchangePlan.ranks must be an integer in \[2, 64\], got 1"),
        ({"device": "tpu"}, "ExchangePlan.device must be one of cpu, meta, got 'tpu'"),
        ({"megabytes": 0.0}, "ExchangePlan.megabytes must be a number > 0, or None, got 0.0"),
        ({"seconds": 0.0}, "ExchangePlan.seconds must be seconds > 0, got 0.0"),
        ({"shapes": ()}, "ExchangePlan.shapes must be at least one shape"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ExchangePlan(**{"model": "small", "shapes": SHAPES} | given)  # type: ignore[arg-type]
