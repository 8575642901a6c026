"""Choices of a compressor for each parameter, and schedules."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire import schedules
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.engine.policy import Policy
from gradwire.errors import ConfigError
from tests.cases import together

MAIN = TwoBit()


def test_the_first_matching_override_wins_then_exclusion_then_size() -> None:
    policy = Policy(min_numel=100, exclude=["*.norm.*"], overrides={"emb.*": TopK(0.1), "emb.weight": TopK(0.5)})
    assert policy.choose("emb.weight", (10, 10), MAIN) == TopK(0.1)
    assert policy.choose("a.norm.weight", (1000,), MAIN) is None
    assert policy.choose("a.bias", (99,), MAIN) is None
    assert policy.choose("a.weight", (100,), MAIN) is MAIN


def test_a_payload_larger_than_the_tensor_travels_dense() -> None:
    assert Policy(min_numel=0).choose("w", (1,), MAIN) is None
    assert Policy(min_numel=0).choose("w", (8,), TopK(1.0)) is None


def test_a_schedule_starts_after_the_warm_up() -> None:
    policy = Policy(start_after=10, schedule={"threshold": schedules.linear(1.0, 0.5, 10)})
    assert [policy.at(step, MAIN).threshold for step in (0, 10, 15, 99)] == [1.0, 1.0, 0.75, 0.5]  # type: ignore[attr-defined]


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"min_numel": -1}, "min_numel must be an integer >= 0, got -1"),
        ({"start_after": 1.5}, "start_after"),
        ({"exclude": "bias"}, "exclude must be a sequence of name patterns, got 'bias'"),
        ({"overrides": {"a": "x"}}, r"overrides\['a'\] must be a compressor"),
        ({"schedule": {"ratio": 0.1}}, r"schedule\['ratio'\] must be a function of the step"),
    ],
)
def test_a_bad_value_is_named(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Policy(**values)


def test_a_pattern_or_a_scheduled_name_that_matches_nothing_is_named() -> None:
    names = ["layer.weight", "layer.bias"]
    with pytest.raises(ConfigError, match=r"'layer.wait' matches no parameter: did you mean 'layer.weight'"):
        Policy(exclude=["layer.wait"]).check(MAIN, names)
    with pytest.raises(ConfigError, match=r"no parameter 'ratio'.*Known: target, threshold"):
        Policy(schedule={"ratio": float}).check(MAIN, names)


def test_schedules_refuse_what_makes_no_sense() -> None:
    for call in (
        lambda: schedules.linear(1, 0, 0),
        lambda: schedules.exponential(0, 1, 10),
        lambda: schedules.stages({5: 1.0}),
        lambda: schedules.exponential(1, 1, 10, stages=0),
        lambda: schedules.dgc_warmup(0.0, 10),
        lambda: schedules.dgc_warmup(0.001, 0),
        lambda: schedules.dgc_warmup(0.001, 10, epochs=-1),
    ):
        with pytest.raises(ConfigError):
            call()


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ({"threshold": lambda step: 1.0 - step}, "at step 1 it gave: TwoBit.threshold must be"),
        ({"threshold": lambda _: float("nan")}, "at step 0 it gave"),
        ({"threshold": lambda step: 1 / abs(step - 10)}, "at step 10 it gave: .*division by zero"),
    ],
)
def test_a_schedule_with_values_out_of_range_is_refused_at_once(schedule: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Policy(schedule=schedule).check(MAIN, ["w"])


def test_a_scheduled_rank_stays_a_whole_number() -> None:
    policy = Policy(schedule={"rank": schedules.linear(4, 1, 4)})
    policy.check(PowerSGD(), ["w"])
    assert [policy.at(step, PowerSGD()).rank for step in range(5)] == [4, 3, 2, 2, 1]  # type: ignore[attr-defined]
