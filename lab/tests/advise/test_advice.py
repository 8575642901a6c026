"""The advice, and the figures that it rests on."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import registry
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.transforms.thc import THC
from gradwire.engine.strategies.allgather import AllGather
from gradwire.engine.strategies.allreduce import AllReduce
from gradwire.engine.strategies.two_phase import TwoPhase
from gradwire.errors import ConfigError
from gradwire.transport.collective_round import Round
from gradwire_lab.advise.advice import MARGIN, Advice, Candidate, advise, break_even
from gradwire_lab.advise.cluster import Cluster, worlds
from gradwire_lab.advise.codec import Codec, CodecTimes
from gradwire_lab.advise.consult import UNKNOWN_OPTIMIZER, Question, _notes, _reached, answer, everything, given_codec
from gradwire_lab.advise.gauge import Wanted
from gradwire_lab.advise.profile import BucketProfile, Profile
from gradwire_lab.advise.quality import quality, table
from gradwire_lab.advise.run_optimizer import RunOptimizer
from gradwire_lab.experiments.recommended import labels, recommended
from gradwire_lab.netlab import Link
from tests.house.source import ROOT

LABELS = ("twobit:threshold=auto", "topk", "qsgd", "powersgd", "bf16", "signsgd")
RESNET = Profile(tuple(BucketProfile(((f"p{i}", (1024, 6250)),), 0.05 * (i + 1)) for i in range(4)), 0.21, busy=False)
"""25.6 M elements in 4 buckets."""


def advice_at(link: str, nanoseconds: float, workers: int = 4) -> Advice:
    cluster = Cluster(workers, Link.parse(link).wire(workers))
    candidates = [Candidate(label, recommended(label).compressor) for label in LABELS]
    codec = Codec.at_rate(RESNET.buckets, 1e-9 * nanoseconds, workers * 1e-9 * nanoseconds)
    return advise(RESNET, cluster, candidates, [codec] * len(candidates))


def test_a_slow_link_is_worth_compressing_for() -> None:
    advice = advice_at("100mbit", 1.0)
    assert advice.best is not None
    assert advice.best.speedup > 5
    assert advice.best.label in advice.verdict
    assert "points on the digits" in advice.verdict
    assert advice.as_dict()["compress"]


def test_a_fast_link_and_a_slow_codec_are_not() -> None:
    advice = advice_at("100gbit", 20.0)
    assert advice.best is None
    assert advice.verdict.startswith("do not compress: the fastest method to advise, ")
    assert all(row.speedup < 1 + MARGIN for row in advice.rows)
    assert not advice.as_dict()["compress"]


def test_rows_are_in_order_and_ready_for_json() -> None:
    advice = advice_at("1gbit", 1.0)
    totals = [row.step.total for row in advice.rows if row.step]
    assert len(totals) == len(LABELS)
    assert totals == sorted(totals)
    assert [row["label"] for row in json.loads(json.dumps(advice.as_dict()))["candidates"]] == [
        row.label for row in advice.rows
    ]


@pytest.mark.parametrize(("optimizer", "left_out"), [("adamw", True), ("rmsprop", True), ("sgd", False)])
def test_what_keeps_a_residual_is_no_answer_under_adam(optimizer: str, left_out: bool) -> None:
    """A codec that takes no time on a slow link: whatever sends the fewest bytes would win."""
    asked = Question("gpt2", compute=0.25, link=Link.parse("100mbit"), codec=(0.0, 0.0), optimizer=optimizer)
    advice, facts = answer(replace(asked, methods=everything()))
    skipped = {row.label for row in advice.rows if row.skipped}
    assert ({"topk", "powersgd", "efsignsgd", "twobit"} <= skipped) == left_out
    assert {"bf16", "qsgd", "eden"}.isdisjoint(skipped)
    assert advice.best is not None
    assert (advice.best.label == "eden") == left_out
    assert facts["optimizer"] == optimizer
    assert any("variance_correction" in note for note in facts["notes"]) == left_out


def test_without_a_word_the_optimizer_is_that_of_the_models_recipe() -> None:
    """GPT-2 is trained with AdamW, ResNet-50 with SGD."""
    methods = {"topk": TopK()}
    for model, left_out in (("gpt2", True), ("resnet50", False)):
        advice, _ = answer(Question(model, compute=0.25, codec=(0.0, 0.0), methods=methods))
        assert bool(advice.rows[0].skipped) == left_out
        assert advice.compress is not left_out
        assert left_out == advice.verdict.startswith("do not compress: training ends worse with what a residual sends")
    assert UNKNOWN_OPTIMIZER.format("The optimizer") in _notes(Question("gpt2"), [], None)
    lion = RunOptimizer("Lion", None, "")
    assert not lion.refusal(TopK())
    assert UNKNOWN_OPTIMIZER.format("Lion") in _notes(Question("gpt2"), [], lion)
    with pytest.raises(ConfigError, match=r"^--optimizer must be one of adam, adamw, muon, rmsprop, sgd, got 'lion'"):
        Question("gpt2", optimizer="lion")


def test_what_needs_another_recipe_is_shown_and_not_advised() -> None:
    advice = advice_at("100mbit", 1.0)
    (sign,) = [row for row in advice.rows if row.label == "signsgd"]
    assert not sign.drop_in
    assert "divided by 256" in sign.settings
    assert advice.best is not sign


@settings(deadline=None, max_examples=25)
@given(st.floats(0.1, 50), st.sampled_from([2, 4, 16]), st.sampled_from(LABELS))
def test_the_break_even_is_where_the_predictions_cross(nanoseconds: float, workers: int, label: str) -> None:
    cluster = Cluster(workers, Link.parse("1gbit").wire(workers))
    candidate = Candidate(label, recommended(label).compressor)
    codec = Codec.at_rate(RESNET.buckets, 1e-9 * nanoseconds, 2 * 1e-9 * nanoseconds)
    (row,) = advise(RESNET, cluster, [candidate], [codec]).rows
    jobs = cluster.jobs(RESNET, candidate.compressor, codec, row.strategy)

    def gain(bits: float) -> float:
        at = cluster.at(bits)
        return at.dense(RESNET).total - at.compressed(RESNET, jobs).total

    if 0 < row.break_even < math.inf:
        assert gain(row.break_even) > 0
        assert all(gain(row.break_even * factor) <= 0 for factor in (1.001, 2, 10, 100))
    else:
        assert all((gain(bits) > 0) == (row.break_even > 0) for bits in (9e13,))
    assert (row.speedup > 1) == (gain(1e9) > 0)


def test_methods_that_never_or_always_pay() -> None:
    assert break_even(lambda _: 2.0, lambda _: 1.0) == 0
    assert break_even(lambda _: 1.0, lambda _: 2.0) == math.inf
    assert break_even(lambda _: 1.0, lambda rate: 1e9 / rate) == pytest.approx(1e9, rel=1e-3)


def test_codecs_of_many_workers_lie_on_a_line() -> None:
    near, far = Codec((1.0,), (2.0,), (7.0,)), Codec((0.5,), (4.0,), (9.0,))
    assert near.towards(far, 3.0) == Codec((1.0,), (8.0,), (7.0,))
    assert near.towards(far, 0.0) == near
    assert worlds(AllGather(), TwoBit(), 10_000) == (4, 8)
    assert worlds(TwoPhase(), TwoBit(), 10_000) == (8, 64)
    assert worlds(AllReduce(), FP16(), 10_000) == (4,)


@pytest.mark.parametrize("strategy", ["allgather", "broadcast"])
def test_what_is_encoded_once_is_encoded_alike_by_any_number(strategy: str) -> None:
    """6 ms and 6.7 ms are one cost and its noise: on a line, 10,000 workers would encode for 1.755 s. They decode
    10,000 payloads in place of 4: 4 ms and 8 ms are 1 ms for each."""
    group = [Wanted(TopK(), strategy, workers) for workers in Candidate("topk", TopK(), strategy).worlds(10_000)]
    near, far = Codec((6e-3,), (4e-3,), (7.0,)), Codec((6.7e-3,), (8e-3,), (9.0,))
    reached = _reached(group, [near, far], 10_000)
    assert isinstance(reached, Codec)
    assert (reached.encode, reached.message) == ((6e-3,), (7.0,))
    assert reached.decode == pytest.approx((10.0,))


def test_what_is_encoded_once_more_for_an_owner_lies_on_a_line() -> None:
    group = [Wanted(TwoBit(), "two_phase", workers) for workers in worlds(TwoPhase(), TwoBit(), 512)]
    reached = _reached(group, [Codec((1.0,), (3.0,), (7.0,)), Codec((1.5,), (2.0,), (9.0,))], 512)
    assert reached == Codec((1.0 + 0.5 * 504 / 56,), (3.0,), (7.0,))


def test_given_seconds_of_an_element_count_what_each_strategy_encodes_and_decodes() -> None:
    """1000 elements on 4 workers: under two_phase an owner encodes its 250 sums, too, and decodes 1000 twice."""
    one = Profile((BucketProfile((("a", (1000,)),), 0.0),), 0.0)
    found = {
        name: (*codec.encode, *codec.decode)
        for name in registry.names("strategies")
        for codec in [given_codec(one, 2e-9, 1e-9, Candidate("", TwoBit(), name), 4)]
    }
    assert found == {
        "allreduce": pytest.approx((2e-6, 1e-6)),
        "allgather": pytest.approx((2e-6, 4e-6)),
        "broadcast": pytest.approx((2e-6, 4e-6)),
        "hierarchical": pytest.approx((2e-6, 4e-6)),
        "two_phase": pytest.approx((2.5e-6, 2e-6)),
        "oktopk": pytest.approx((2e-6, 2e-6)),
    }


@pytest.mark.parametrize(
    ("method", "workers", "noted"),
    [("topk", 8, False), ("sidco", 9, True), ("twobit", 64, False), ("twobit", 65, True), ("bf16", 99, False)],
)
def test_what_lies_on_a_line_is_noted(method: str, workers: int, noted: bool) -> None:
    asked = Question(model="resnet9", workers=workers)
    candidates = [Candidate(method, recommended(method).compressor)]
    assert any("extrapolated on a line" in note for note in _notes(asked, candidates, None)) == noted


def test_the_slowest_worker_counts_in_each_repeat() -> None:
    rounds = (Round("exchange", 24, 24), Round("exchange", 300, 300))
    one, other = CodecTimes([1.0, 5.0, 2.0], [1.0] * 3, rounds), CodecTimes([3.0, 1.0, 2.0], [2.0] * 3, rounds)
    assert Codec.of_workers([[one], [other]], 4, median) == Codec((3.0,), (2.0,), (100.0,))
    assert Codec.of_workers([[one], [other]], 4) == Codec((2.0,), (2.0,), (100.0,))


def test_the_qualities_are_those_of_the_documentation() -> None:
    page = (ROOT / "docs" / "methods" / "convergence.md").read_text(encoding="utf-8")
    shown = {row["method"]: [] for row in table()}
    for row in table():
        points = "" if row["method"] == "none" else f" ({row['points']:+.1f})"
        shown[row["method"]].append(f" {row['accuracy']:.1%}{points} | {row['bytes_per_step']:,.0f} |")
    lines = re.findall(r"^\| \[`([^`]+)`\]\(\w+\.md#\w+\) \|( \d+\.\d%.*?\|.*?\|.*?\|.*?\|)", page, re.MULTILINE)
    assert {name: "".join(cells) for name, cells in shown.items()} == dict(lines)


def test_every_method_has_a_known_quality() -> None:
    assert {row["method"] for row in table()} == set(labels())
    assert set(registry.names("compressors")) <= {row["method"] for row in table()}
    known = quality("topk", workers=3)
    assert known is not None
    assert known.workers == 2


def test_a_method_whose_sums_have_no_room_is_left_out_with_the_reason() -> None:
    for workers, fits in ((17, True), (18, False)):
        cluster = Cluster(workers, Link.parse("100mbit").wire(workers))
        codec = Codec.at_rate(RESNET.buckets, 1e-9, workers * 1e-9)
        (row,) = advise(RESNET, cluster, [Candidate("thc", THC())], [codec]).rows
        assert (row.step is not None) == fits
        assert ("THC.levels must be at most 255 // 18 = 14" in row.skipped) != fits
