"""A measurement does what training does: the buckets of DDP, the exchange's own work."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.sparse.oktopk import OkTopk
from gradwire.errors import ConfigError
from gradwire_lab.advise.codec import WARM_UP, measure
from gradwire_lab.advise.examples import example
from gradwire_lab.advise.gauge import Alphas, _model, _replayed, measure_wire
from gradwire_lab.advise.profile import BucketProfile, assigned, middle, profile_step, shortest
from gradwire_lab.experiments import models
from gradwire_lab.netlab import Link
from gradwire_lab.netlab.link import PAYLOAD_SHARE

BUCKET = BucketProfile((("a", (64, 96)), ("b", (10,))), 0.0)


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def test_a_step_has_ddps_buckets_in_their_order(alone: None) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(300, 1000), nn.Linear(1000, 300)), bucket_cap_mb=1)
    profile = profile_step(model, lambda: model(torch.randn(2, 300)).sum().backward(), steps=3)
    assert [sorted(name for name, _ in bucket.params) for bucket in profile.buckets] == [
        ["1.bias", "1.weight"],
        ["0.bias", "0.weight"],
    ]
    assert 0 < profile.buckets[0].ready <= profile.buckets[1].ready <= profile.seconds


def test_other_work_on_the_machine_makes_no_step_longer_than_the_shortest(alone: None) -> None:
    now = 0.0
    slow = iter([9.0, 9.0, 7.0, 1.0, 8.0] * 2)

    def step() -> None:
        nonlocal now
        before = now
        model(torch.ones(2, 300)).sum().backward()
        now = before + next(slow)

    for typical, seconds in ((shortest, 1.0), (middle, 7.0)):
        model = DistributedDataParallel(nn.Linear(300, 300))
        profile = profile_step(model, step, steps=3, clock=lambda: now, typical=typical)
        assert profile.seconds == seconds
        assert profile.buckets[-1].ready <= seconds


@pytest.mark.parametrize("name", models.names())
def test_every_model_has_examples(name: str) -> None:
    model = models.build(name, small=True)
    assert model(example(model, name, 2, small=True)).isfinite().all()


def test_models_are_trained_and_replayed(alone: None) -> None:
    trained, replayed = _model("lstm", 2, True, 1, math.inf), _replayed("lstm", True)
    assert trained.numel == replayed.numel == models.facts("lstm", small=True).parameters
    assert trained.busy
    assert replayed.busy
    paper = assigned(list(models.facts("lstm", small=True).shapes.items()), 0.05)
    assert [each.numel for each in paper.buckets] == [each.numel for each in replayed.buckets]
    assert paper.buckets[-1].ready == paper.seconds == 0.05


@pytest.mark.parametrize("compressor", [TwoBit(), TopK()])
def test_a_codec_is_timed_in_every_repeat(compressor: TwoBit | TopK) -> None:
    met: list[float] = []
    (found,) = measure([BUCKET], compressor, 3, repeats=4, meet=lambda spent: met.append(spent) or spent)
    assert len(found.encode) == len(found.decode) == 4
    assert min(found.encode + found.decode) > 0
    assert len(met) == 2 * (WARM_UP + 4)
    message = 8 + compressor.layout((64, 96)).nbytes
    assert [each.nbytes for each in found.rounds if each.kind == "exchange"] == [2 * (message + -message % 8)]


def test_a_slow_codec_is_cut_short_or_left_out() -> None:
    (found,) = measure([BUCKET], TwoBit(), 2, meet=lambda _: 100.0 if _ > 0.001 else _, budget=50.0) or [None]
    assert len(found.encode) >= 1
    assert measure([BUCKET, BUCKET], TwoBit(), 2, meet=lambda _: 100.0, budget=50.0) == (
        "a first try took over 50 s here: give more --budget, or measure on an idle machine"
    )
    # A sample is one bucket: however long its first step took, it is known then.
    (first,) = measure([BUCKET], TwoBit(), 2, meet=lambda _: 100.0, budget=50.0)
    assert len(first.encode) == 1


def test_what_needs_its_peers_own_messages_is_left_out() -> None:
    found = measure([BUCKET], OkTopk(), 4, options={"strategy": "oktopk"})
    assert found == "what peers send under strategy 'oktopk' is their own, so it cannot be measured here: give --codec"
    assert len(measure([BUCKET], OkTopk(), 4, options={"strategy": "allgather"}, repeats=1)) == 1


def test_a_link_is_what_is_written_on_it_or_what_was_measured() -> None:
    alphas = Alphas(exchange=3e-3, all_reduce=6e-3, rate=5e7)
    wire = alphas.wire(4, Link.parse("100mbit"))
    assert (wire.latency, wire.message) == pytest.approx((1e-3, 2e-3 / 3))
    assert wire.rate == pytest.approx(12.5e6 * PAYLOAD_SHARE)
    assert alphas.wire(4, Link.parse("1gbit")).rate == 5e7
    assert alphas.wire(4, Link()).rate == 5e7


def test_a_group_of_one_measures_nothing_of_a_link(alone: None) -> None:
    with pytest.raises(ConfigError, match="workers must be an integer >= 2, got 1"):
        measure_wire()
