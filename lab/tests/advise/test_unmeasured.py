"""A method that was not measured gets no verdict; a large model is timed with a part of it first, the likeliest with
all."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pytest

from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.transforms.thc import THC
from gradwire.errors import ConfigError
from gradwire_lab.advise import consult
from gradwire_lab.advise.advice import MARGIN, Candidate, advise, plausible, reachable
from gradwire_lab.advise.cluster import Cluster
from gradwire_lab.advise.codec import SAMPLE, Codec, sample
from gradwire_lab.advise.consult import FINALISTS, Question, codecs_of
from gradwire_lab.advise.gauge import NO_TIME, Wanted, gauge_codecs, gauge_model
from gradwire_lab.advise.profile import BucketProfile, Profile
from gradwire_lab.experiments.launch import OutOfTimeError
from gradwire_lab.experiments.recommended import recommended
from gradwire_lab.netlab import Link

LARGE = Profile(tuple(BucketProfile(((f"p{i}", (1024, 6250)),), 0.05 * (i + 1)) for i in range(4)), 0.21, busy=False)
SMALL = Profile((BucketProfile((("a", (64, 96)),), 0.001),), 0.001)


def cluster(link: str, workers: int = 4) -> Cluster:
    return Cluster(workers, Link.parse(link).wire(workers))


def candidates(*labels: str) -> list[Candidate]:
    return [Candidate(label, recommended(label).compressor) for label in labels]


def test_a_method_that_was_not_measured_is_no_reason_not_to_compress() -> None:
    advice = advise(LARGE, cluster("100mbit"), candidates("topk"), ["there was no time"])
    assert (advice.best, advice.compress) == (None, None)
    assert advice.verdict.startswith("cannot tell: topk might, a step up to ")
    assert advice.verdict.endswith(" times as fast: there was no time")
    assert advice.as_dict()["compress"] is None
    assert advice.as_dict()["unknown"] == ["topk"]


def test_one_that_could_not_pay_with_any_codec_is() -> None:
    """The link is so fast that the step is the same without any bytes."""
    advice = advise(LARGE, cluster("100gbit"), candidates("topk"), ["there was no time"])
    assert 1 <= advice.rows[0].reachable < 1 + MARGIN
    assert (advice.unknown, advice.compress) == ((), False)
    assert re.fullmatch(r"do not compress: with whatever codec, no .* more than 1\.0\d times as fast", advice.verdict)


def test_what_is_never_advised_leaves_nothing_open() -> None:
    """signsgd needs another loss scale."""
    advice = advise(LARGE, cluster("100mbit"), candidates("signsgd"), ["there was no time"])
    assert advice.rows[0].reachable > 2
    assert advice.compress is False


def test_the_best_of_those_that_were_measured_is_advised_and_others_are_named() -> None:
    codec = Codec.at_rate(LARGE.buckets, 1e-9, 4 * 1e-9)
    advice = advise(LARGE, cluster("100mbit"), candidates("bf16", "topk"), [codec, "there was no time"])
    assert advice.best is not None
    assert (advice.best.label, advice.compress) == ("bf16", True)
    assert [row.label for row in advice.unknown] == ["topk"]
    # And the other way round nothing is open: bf16 cannot be faster than this.
    advice = advise(LARGE, cluster("100mbit"), candidates("bf16", "topk"), ["there was no time", codec])
    assert advice.best is not None
    assert (advice.best.label, advice.unknown) == ("topk", ())


def test_a_number_of_workers_that_a_method_does_not_allow_leaves_nothing_open() -> None:
    advice = advise(LARGE, cluster("100mbit", 18), [Candidate("thc", THC())], ["there was no time"])
    assert advice.rows[0].reachable == 0
    assert "THC.levels must be at most" in advice.rows[0].skipped
    assert advice.compress is False


def test_no_measurement_exceeds_what_is_reachable() -> None:
    for label in ("topk", "bf16", "twobit:threshold=auto", "powersgd"):
        (each,) = candidates(label)
        for rate in (1e-10, 1e-9, 1e-8):
            (row,) = advise(LARGE, cluster("1gbit"), [each], [Codec.at_rate(LARGE.buckets, rate, 4 * rate)]).rows
            assert row.speedup < reachable(LARGE, cluster("1gbit"), each) == row.reachable


def test_the_likeliest_are_measured_first() -> None:
    """signsgd sends least and is never advised; topk sends less than bf16."""
    order = plausible(LARGE, cluster("1gbit"), candidates("signsgd", "bf16", "topk"))
    assert order == [2, 1, 0]


def test_a_sample_is_a_part_of_a_bucket_that_is_large_enough() -> None:
    few, many = (
        BucketProfile((("a", (512, 1024)),), 0.1),
        BucketProfile((("b", (4096, 512, 3)), ("c", (4096,)), ("d", ())), 0.2),
    )
    assert sample([few, many]).params == (("b", (682, 512, 3)), ("c", (682,)), ("d", ()))
    assert abs(sample([few, many]).numel / SAMPLE - 1) < 0.01
    # None is large enough: the largest, as it is.
    assert sample([few], SAMPLE) == few
    assert sample([BucketProfile((("a", (2, 10**6)),), 0.0)], 1000).params == (("a", (1, 10**6)),)


def test_a_sample_is_scaled_by_elements() -> None:
    buckets = [BucketProfile((("a", (100,)),), 0.0), BucketProfile((("b", (400,)),), 0.0)]
    found = Codec((1.0,), (3.0,), (50.0,)).scaled(BucketProfile((("b", (200,)),), 0.0), buckets)
    assert found == Codec((0.5, 2.0), (1.5, 6.0), (None, None), 200)
    assert found.seconds == 10.0


def test_no_codec_is_begun_when_the_time_is_over() -> None:
    wanted = [Wanted(TwoBit(), "two_phase", 4), Wanted(TopK(), "allgather", 4)]
    assert gauge_codecs(SMALL.buckets, wanted, until=0.0) == [NO_TIME, NO_TIME]
    found = gauge_codecs(SMALL.buckets, wanted, until=math.inf, budget=1e-9)
    # A budget that is over at once leaves the first step, which counts: a slow machine is no reason to know nothing.
    assert all(isinstance(each, Codec) and each.seconds > 0 for each in found)


def test_a_step_that_takes_too_long_is_given_up_and_says_what_to_do() -> None:
    with pytest.raises(OutOfTimeError):
        gauge_model("lstm", 2, small=True, until=0.0)
    asked = Question(model="lstm", small=True, within=1e-3)
    with pytest.raises(ConfigError, match=r"cannot tell: two steps of lstm .* seconds of a step \(--compute\)"):
        consult.answer(asked)


class Stage:
    """Stands for the timing of codecs, which takes what the clock says: each call is noted."""

    def __init__(self, seconds: float) -> None:
        self.calls: list[tuple[int, list[str], float]] = []
        self.seconds = seconds

    def __call__(self, buckets: Sequence[BucketProfile], wanted: Sequence[Wanted], **options: Any) -> list[Codec | str]:
        numel = sum(bucket.numel for bucket in buckets)
        self.calls.append((numel, [each.compressor.name for each in wanted], options["until"]))
        rate = self.seconds / numel
        return [Codec.at_rate(buckets, rate, rate) for _ in wanted]


@pytest.mark.parametrize(("seconds", "whole"), [(1e-4, FINALISTS), (10.0, 0)])
def test_the_whole_model_is_timed_where_there_is_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, whole: int
) -> None:
    labels = ("signsgd", "bf16", "topk", "fp16", "dgc", "qsgd", "powersgd", "natural")
    stage, asked = Stage(seconds), Question(model="resnet50", methods={each: TopK() for each in labels})
    monkeypatch.setattr(consult, "gauge_codecs", stage)
    monkeypatch.setattr(consult.time, "time", lambda: 1000.0)
    codecs = codecs_of(asked, LARGE, cluster("1gbit"), candidates(*labels), lambda _: None, 1000.0)
    (rough, first, until), (exact, final, end) = stage.calls
    assert abs(rough / SAMPLE - 1) < 0.01
    assert first[-1] == "signsgd"
    assert len(first) == len(labels)
    assert exact == LARGE.numel
    assert len(final) == whole
    assert until < end == 1000.0 + asked.within
    assert sum(codec.timed == 0 for codec in codecs if isinstance(codec, Codec)) == whole


def test_a_small_model_is_timed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(1e-4)
    monkeypatch.setattr(consult, "gauge_codecs", stage)
    asked = Question(model="lstm", small=True, methods={"topk": TopK()})
    (codec,) = codecs_of(asked, SMALL, cluster("1gbit"), candidates("topk"), lambda _: None, 0.0)
    assert isinstance(codec, Codec)
    assert (len(stage.calls), codec.timed) == (1, 0)
