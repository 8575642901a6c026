"""A step from its parts: by hand, and what must hold whatever the numbers are."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.auto.link_cost import Wire
from gradwire.auto.traffic import PredictedTraffic
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.errors import ConfigError
from gradwire.transport.collective_round import Round
from gradwire_lab.advise.cluster import Cluster
from gradwire_lab.advise.codec import Codec
from gradwire_lab.advise.pipeline import PipelineJob, compressed_step, dense_step, slowdown
from gradwire_lab.advise.profile import BucketProfile, Profile, assigned
from gradwire_lab.experiments import models
from gradwire_lab.netlab import Link

MB = 250_000
"""Elements of a megabyte."""

PROFILE = Profile((BucketProfile((("a", (MB,)),), 1.0), BucketProfile((("b", (MB,)),), 2.0)), 2.5)
LINK = Wire(workers=2, rate=1e6, latency=0.0, message=0.0)


def exchange(nbytes: float) -> PredictedTraffic:
    return PredictedTraffic((), (Round("exchange", nbytes, nbytes),))


def job(encode: float, nbytes: float, decode: float) -> PipelineJob:
    return PipelineJob(encode, decode, exchange(nbytes))


def test_uncompressed_buckets_queue_for_the_link() -> None:
    """Ready at 1 and at 2, 1 MB each at 1 MB/s: back at 2 and 3; the tail of 0.5 comes after that."""
    step = dense_step(PROFILE, LINK)
    assert (step.total, step.wire, step.sent, step.compute) == (3.5, 2.0, 2e6, 2.5)


def test_the_latency_of_one_passes_beside_the_bytes_of_the_next() -> None:
    step = dense_step(PROFILE, dataclasses.replace(LINK, rate=5e5, latency=0.25))
    assert step.total == pytest.approx(1 + 2 + 2 + 2 * 0.25 + 0.5)


def test_a_fast_link_hides_behind_the_backward_pass() -> None:
    assert dense_step(PROFILE, dataclasses.replace(LINK, rate=1e15)).total == pytest.approx(2.5)


def test_one_thread_works_buckets_off_one_after_the_other() -> None:
    """From 1 on 0.2 + 3 + 0.3 for the first; the second is ready at 2 and waits until 4.5."""
    step = compressed_step(PROFILE, [job(0.2, 3e6, 0.3), job(0.1, 1e6, 0.4)], LINK)
    assert step.total == pytest.approx(4.5 + 0.1 + 1.0 + 0.4 + 0.5)
    assert (step.encode, step.wire, step.decode, step.sent) == pytest.approx((0.3, 4.0, 0.7, 4e6))


def test_a_method_that_is_done_in_time_costs_only_its_last_bucket() -> None:
    step = compressed_step(PROFILE, [job(0.1, 1e5, 0.1), job(0.1, 1e5, 0.1)], LINK)
    assert step.total == pytest.approx(2.0 + 0.3 + 0.5)


def test_threads_that_share_a_core_take_from_each_other() -> None:
    """0.4 s of encoding beside backward: both at half speed, so the second bucket comes 0.4 s later."""
    jobs = [job(0.4, 0.0, 0.0), job(0.0, 0.0, 0.0)]
    assert compressed_step(PROFILE, jobs, LINK, cores=1.0).total == pytest.approx(2.9)
    assert compressed_step(PROFILE, jobs, LINK, cores=2.0).total == pytest.approx(2.5)
    assert compressed_step(dataclasses.replace(PROFILE, busy=False), jobs, LINK, cores=1.0).total == 2.5


def test_encoding_that_outlasts_backward_gets_the_core_again() -> None:
    """1 s of backward is left at 1: shared until 3; 2 s of encoding remain, alone until 5."""
    jobs = [job(3.0, 0.0, 0.0), job(0.0, 0.0, 0.0)]
    assert compressed_step(PROFILE, jobs, LINK, cores=1.0).total == pytest.approx(5.5)


def test_what_is_uncompressed_travels_while_the_rest_is_encoded() -> None:
    dense = (Round("all_reduce", 5e5, 5e5),)
    one = Profile((PROFILE.buckets[0],), 1.0)
    beside = compressed_step(one, [PipelineJob(0.7, 0.0, PredictedTraffic(dense, exchange(1e6).rounds))], LINK)
    behind = compressed_step(one, [PipelineJob(0.2, 0.0, PredictedTraffic(dense, exchange(1e6).rounds))], LINK)
    alone = compressed_step(one, [PipelineJob(0.0, 0.1, PredictedTraffic(dense, ()))], LINK)
    assert (beside.total, behind.total, alone.total) == pytest.approx((2.7, 2.5, 1.6))


def test_inside_a_node_a_bucket_is_scattered_before_and_gathered_after() -> None:
    one = Profile((PROFILE.buckets[0],), 1.0)
    step = compressed_step(one, [PipelineJob(0.1, 0.1, exchange(1e6), inside=0.25)], LINK)
    assert step.total == pytest.approx(1.0 + 0.25 + 0.1 + 1.0 + 0.1 + 0.25)
    inside = Wire(workers=2, rate=2e6, latency=0.0, message=0.0)
    assert dense_step(one, LINK, inside).total == pytest.approx(1.0 + 0.25 + 1.0 + 0.25)


def test_uncompressed_buckets_queue_inside_a_node_too() -> None:
    """Two of 1 MB, both ready at 1; half of a ring takes 1 s inside, all of it 0.1 s outside: the link inside is busy
    from 1 to 5, with the second reduce-scatter before the first all-gather."""
    both = Profile(tuple(dataclasses.replace(bucket, ready=1.0) for bucket in PROFILE.buckets), 1.0)
    outside = dataclasses.replace(LINK, rate=1e7)
    step = dense_step(both, outside, dataclasses.replace(LINK, rate=5e5))
    assert (step.total, step.wire, step.sent) == pytest.approx((5.0, 4.2, 2e6))


def test_an_all_gather_has_what_reduce_scatters_leave() -> None:
    """Half of a ring takes 1 s inside, all of it 0.25 s outside. The first bucket is scattered from 1 to 2 and back at
    2.25; it is gathered until 2.5, when the second one is ready, and goes on when that is scattered, from 3.5 to 4.25.
    The second one is back at 3.75, waits, and is gathered until 5.25."""
    second = dataclasses.replace(PROFILE.buckets[1], ready=2.5)
    profile = Profile((PROFILE.buckets[0], second), 2.5)
    step = dense_step(profile, dataclasses.replace(LINK, rate=4e6), dataclasses.replace(LINK, rate=5e5))
    assert step.total == pytest.approx(5.25)


def test_latency_inside_a_node_passes_beside_the_bytes_of_the_next() -> None:
    """A ring of 3 has 2 messages in each half: 0.2 s after the bytes, once before the others and once after them."""
    inside = Wire(workers=3, rate=4e6 / 3, latency=0.1, message=0.0)
    both = Profile(tuple(dataclasses.replace(bucket, ready=1.0) for bucket in PROFILE.buckets), 1.0)
    assert dense_step(both, dataclasses.replace(LINK, rate=1e15), inside).total == pytest.approx(1 + 4 * 0.5 + 0.2)
    one = Profile((PROFILE.buckets[0],), 1.0)
    assert dense_step(one, dataclasses.replace(LINK, rate=1e15), inside).total == pytest.approx(1 + 2 * 0.5 + 2 * 0.2)


def test_a_slow_link_inside_bounds_resnet50() -> None:
    """16 workers in 2 nodes of 8: 2 * 7/8 of 4 bytes an element over 100 Mbit/s, whatever joins the nodes."""
    shapes = list(models.facts("resnet50", small=False).shapes.items())
    profile = assigned(shapes, 0.0)
    inside = Link.parse("100mbit").wire(8)
    cluster = Cluster(16, Link.parse("100gbit").wire(2), inside)
    least = 2 * 7 / 8 * 4 * profile.numel / inside.rate
    assert least == pytest.approx(15.292, abs=1e-3)
    assert cluster.dense(profile).total == pytest.approx(least, rel=1e-3)
    assert uncompressed_by_a_method(cluster, profile) == pytest.approx(cluster.dense(profile).total, rel=2e-3)


def uncompressed_by_a_method(cluster: Cluster, profile: Profile) -> float:
    """Seconds of a step with ``none``, one bucket after the other."""
    nothing = (0.0,) * len(profile.buckets)
    codec = Codec(nothing, nothing, (None,) * len(profile.buckets))
    return cluster.compressed(profile, cluster.jobs(profile, Identity(), codec, "allreduce")).total


def test_two_levels_share_the_link_of_the_node_and_the_codec() -> None:
    """4 workers in 2 nodes: half of a ring over 1 MB inside, at 10 MB/s, on either side; a half of the codec each."""
    inside = Wire(workers=2, rate=1e7, latency=0.0, message=0.0)
    cluster = Cluster(4, LINK, inside)
    one = Profile((PROFILE.buckets[0],), 1.0)
    (made,) = cluster.jobs(one, TwoBit(), Codec((0.4,), (0.2,), (None,)), "allgather")
    assert (made.encode, made.decode, made.inside) == pytest.approx((0.2, 0.1, 0.05))
    assert made.traffic.sent == MB / 4 + 8 + 4
    assert cluster.dense(one).total == pytest.approx(1.0 + 0.05 + 1.0 + 0.05)


def test_a_cluster_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="nodes must be a divisor of the 5 workers, got 2"):
        Cluster(5, LINK)
    with pytest.raises(ConfigError, match="cores must be a number > 0, got 0"):
        Cluster(2, LINK, cores=0)


@pytest.mark.parametrize(
    ("cores", "factor"), [(0.25, 2.0), (0.5, 2.0), (1.0, 2.0), (1.6, 1.25), (2.0, 1.0), (8.0, 1.0)]
)
def test_two_threads_beside_one(cores: float, factor: float) -> None:
    assert slowdown(cores) == pytest.approx(factor)


seconds = st.floats(0, 10)
sizes = st.floats(0, 1e8)


some_jobs = st.builds(
    lambda encode, decode, dense, sent: PipelineJob(
        encode, decode, PredictedTraffic((Round("all_reduce", dense, dense),), exchange(sent).rounds)
    ),
    seconds,
    seconds,
    sizes,
    sizes,
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Profile, list[PipelineJob], Wire, float]:
    count = draw(st.integers(1, 4))
    times = sorted(draw(st.lists(seconds, min_size=count + 1, max_size=count + 1)))
    buckets = tuple(BucketProfile(((f"p{i}", (1000,)),), times[i]) for i in range(count))
    jobs = [draw(some_jobs) for _ in range(count)]
    latency, message, moving = (draw(st.floats(0, 1)) for _ in range(3))
    wire = Wire(draw(st.integers(2, 64)), draw(st.floats(1e3, 1e12)), latency, message, moving)
    return Profile(buckets, times[-1], draw(st.booleans())), jobs, wire, draw(st.floats(0.1, 8))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Profile, Cluster]:
    """Nodes of several workers, and buckets of different sizes."""
    count = draw(st.integers(1, 6))
    times = sorted(draw(st.lists(seconds, min_size=count + 1, max_size=count + 1)))
    buckets = tuple(BucketProfile(((f"p{i}", (draw(st.integers(1, MB)),)),), times[i]) for i in range(count))
    nodes, local = draw(st.integers(2, 64)), draw(st.integers(2, 64))
    wire, inside = (
        Wire(workers, draw(st.floats(1e3, 1e12)), draw(st.floats(0, 0.1)), draw(st.floats(0, 0.1)))
        for workers in (nodes, local)
    )
    return Profile(buckets, times[-1]), Cluster(nodes * local, wire, inside)


@settings(deadline=None, max_examples=300)
@given(clusters())
def test_no_link_carries_more_than_its_rate(case: tuple[Profile, Cluster]) -> None:
    """From any bucket on: the bytes of all that come after it, on either link, fit between it and the end."""
    profile, cluster = case
    step = cluster.dense(profile)
    tail = profile.seconds - profile.buckets[-1].ready
    slack = 1e-9 * (1 + step.total)
    assert cluster.inside is not None
    for first, bucket in enumerate(profile.buckets):
        nbytes = 4 * sum(each.numel for each in profile.buckets[first:])
        for wire in (cluster.wire, cluster.inside):
            least = 2 * (wire.workers - 1) / wire.workers * nbytes / wire.rate
            assert step.total >= bucket.ready + least + tail - slack


@settings(deadline=None, max_examples=300)
@given(clusters())
def test_uncompressed_buckets_side_by_side_are_never_slower_than_in_turn(case: tuple[Profile, Cluster]) -> None:
    profile, cluster = case
    in_turn = uncompressed_by_a_method(cluster, profile)
    assert cluster.dense(profile).total <= in_turn + 1e-9 * (1 + in_turn)
    if len(profile.buckets) == 1:
        assert cluster.dense(profile).total == pytest.approx(in_turn)


@settings(deadline=None, max_examples=300)
@given(clusters(), st.floats(1, 1000))
def test_faster_links_of_nodes_are_never_slower(case: tuple[Profile, Cluster], by: float) -> None:
    profile, cluster = case
    slow = cluster.dense(profile).total
    assert cluster.inside is not None
    for name, wire in (("wire", cluster.wire), ("inside", cluster.inside)):
        for better in (
            dataclasses.replace(wire, rate=wire.rate * by),
            dataclasses.replace(wire, latency=wire.latency / by),
        ):
            quicker = dataclasses.replace(cluster, **{name: better})
            assert quicker.dense(profile).total <= slow + 1e-9 * (1 + slow)


def test_workers_that_share_a_core_wait_for_what_moves_their_bytes() -> None:
    """One second of the wire in 1.4 takes a quarter of the half core, so codecs last 0.5 / (0.5 - 0.25 / 1.4)."""
    one = dataclasses.replace(PROFILE, buckets=(BucketProfile((("a", (1000,)),), 0.0),), seconds=0.0)
    shared = dataclasses.replace(LINK, cores=0.25)
    longer = 0.5 / (0.5 - 0.25 / 1.4)
    assert compressed_step(one, [job(0.1, 1e6, 0.3)], shared, cores=0.5).total == pytest.approx(1 + 0.4 * longer)
    assert compressed_step(one, [job(0.1, 1e6, 0.3)], shared, cores=2.0).total == pytest.approx(1.4)
    elsewhere = dataclasses.replace(one, busy=False)
    assert compressed_step(elsewhere, [job(0.1, 1e6, 0.3)], shared, cores=0.5).total == pytest.approx(1.4)


@settings(deadline=None, max_examples=100)
@given(cases(), st.floats(1, 1000))
def test_more_bandwidth_and_less_latency_are_never_slower(
    case: tuple[Profile, list[PipelineJob], Wire, float], by: float
) -> None:
    profile, jobs, wire, cores = case
    slow = compressed_step(profile, jobs, wire, cores).total
    slack = 1e-9 * (1 + slow)
    for better in (
        dataclasses.replace(wire, rate=wire.rate * by),
        dataclasses.replace(wire, latency=wire.latency / by),
        dataclasses.replace(wire, message=wire.message / by),
    ):
        assert compressed_step(profile, jobs, better, cores).total <= slow + slack
        assert dense_step(profile, better).total <= dense_step(profile, wire).total + slack


@settings(deadline=None, max_examples=100)
@given(cases(), st.floats(0, 1))
def test_fewer_bytes_and_a_faster_codec_are_never_slower(
    case: tuple[Profile, list[PipelineJob], Wire, float], by: float
) -> None:
    profile, jobs, wire, cores = case
    slow = compressed_step(profile, jobs, wire, cores).total
    (first, *rest) = jobs
    less = tuple(Round(each.kind, each.sent * by, each.received * by) for each in first.traffic.rounds)
    for better in (
        dataclasses.replace(first, traffic=PredictedTraffic(first.traffic.dense, less)),
        dataclasses.replace(first, encode=first.encode * by),
        dataclasses.replace(first, decode=first.decode * by),
    ):
        assert compressed_step(profile, [better, *rest], wire, cores).total <= slow + 1e-9 * (1 + slow)


@settings(deadline=None, max_examples=100)
@given(cases())
def test_a_step_is_never_shorter_than_its_parts(case: tuple[Profile, list[PipelineJob], Wire, float]) -> None:
    profile, jobs, wire, cores = case
    step = compressed_step(profile, jobs, wire, cores)
    slack = 1e-9 * (1 + step.total)
    assert step.total >= profile.seconds - slack
    assert step.total >= sum(job.encode + job.decode for job in jobs) - slack
    more = compressed_step(profile, jobs, wire, cores / 2)
    assert more.total >= step.total - slack or slowdown(cores / 2) < slowdown(cores)


@settings(deadline=None, max_examples=100)
@given(cases(), st.floats(0.1, 10))
def test_no_compression_takes_its_bytes_over_the_rate(
    case: tuple[Profile, list[PipelineJob], Wire, float], by: float
) -> None:
    profile, _, wire, _ = case
    step = dense_step(profile, wire)
    assert step.total >= max(profile.seconds, step.sent / wire.rate) - 1e-9 * (1 + step.total)
    shorter = profile.lasting(profile.seconds / (1 + by))
    assert dense_step(shorter, wire).total <= step.total + 1e-9 * (1 + step.total)


def test_profiles_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Profile.buckets must be at least one, got \(\)"):
        Profile((), 1.0)
    with pytest.raises(ConfigError, match=r"Profile.seconds must be times that do not decrease"):
        Profile(PROFILE.buckets, 1.5)
    assert Profile.from_dict(PROFILE.as_dict()) == PROFILE
    assert PROFILE.lasting(5.0) == Profile(
        (BucketProfile(PROFILE.buckets[0].params, 2.0), BucketProfile(PROFILE.buckets[1].params, 4.0)), 5.0, False
    )


def test_gradients_of_16_bits_travel_in_half_of_the_time() -> None:
    """DDP sums them in their own type."""
    wire = Wire(4, rate=1e6, latency=0.0, message=0.0)
    half = dataclasses.replace(
        PROFILE, buckets=tuple(dataclasses.replace(each, itemsize=2) for each in PROFILE.buckets)
    )
    whole, less = dense_step(PROFILE, wire), dense_step(half, wire)
    assert (less.wire, less.sent) == (pytest.approx(whole.wire / 2), pytest.approx(whole.sent / 2))
    assert Profile.from_dict(json.loads(json.dumps(half.as_dict()))) == half
    assert half.lasting(5.0).buckets[0].itemsize == 2
