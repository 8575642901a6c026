"""Prediction of a step from its parts: the backward pass beside the communication thread.

    bucket b is ready        when backward has computed and copied its gradients
    the thread takes it      when it is ready and the bucket before it is done
    encode, rounds, decode   one after the other; what is uncompressed travels meanwhile
    the step ends            the tail of backward after the last bucket is back

Both kinds of steps are the queue of ``timeline.py``, with which ``auto`` predicts and reads steps, too. The seconds of
a bucket are measured there, and made up of their parts here.

A thread that computes gets the whole core while the other one waits or the network works. Where both compute and
a worker has less than two cores, both are slowed down alike. Where the workers of a machine share its cores, moving
their bytes slows codecs down, too. Without a method DDP starts each bucket's all-reduce when it is ready: the link
works them off in order, and the latency of one passes beside the bytes of the next. In nodes the link inside is such a
queue, too, which each bucket passes twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradwire.auto.link_cost import Wire
from gradwire.auto.timeline import Timeline
from gradwire.auto.traffic import PredictedTraffic, dense_traffic
from gradwire_lab.advise.profile import BucketProfile, Profile

__all__ = ["PipelineJob", "PipelineStep", "compressed_step", "dense_step", "slowdown", "stretch"]


@dataclass(frozen=True)
class PipelineJob:
    """The work of the communication thread for one bucket.

    Args:
        encode: seconds of the processor before the first message.
        decode: seconds of it after that.
        traffic: rounds of messages.
        inside: seconds of a node's own reduce-scatter before it, and again of the all-gather after it.
    """

    encode: float
    decode: float
    traffic: PredictedTraffic
    inside: float = 0.0


@dataclass(frozen=True)
class PipelineStep:
    """A predicted step; the terms before the total overlap, so they do not add up to it.

    Args:
        compute: seconds without an exchange.
        encode: seconds of encoding all buckets.
        wire: seconds of all rounds, latencies included.
        decode: seconds of decoding all buckets.
        total: seconds of the step.
        sent: bytes of the busiest worker; of workers in nodes, those that the busiest node sends to the others.
    """

    compute: float
    encode: float
    wire: float
    decode: float
    total: float
    sent: float


def slowdown(cores: float) -> float:
    """The factor by which two threads of a worker slow down if they compute at the same time.

    Args:
        cores: cores of the machine over its workers, > 0. Times of one thread were measured while all workers computed.

    >>> slowdown(4.0), slowdown(2.0), slowdown(1.5), slowdown(1.0), slowdown(0.5)
    (1.0, 1.0, 1.3333333333333333, 2.0, 2.0)
    """
    return max(1.0, 2 / cores) / max(1.0, 1 / cores)


def dense_step(profile: Profile, wire: Wire, inside: Wire | None = None) -> PipelineStep:
    """Predict a step of DDP without compression.

    Args:
        profile: profile of the backward pass.
        wire: the link.
        inside: the link between the workers of a node; None: workers are not in nodes.
    """
    node, line = _Node(inside), Timeline()
    busy = sent = 0.0
    arrived = []
    for bucket in profile.buckets:
        rounds = dense_traffic(bucket.numel, wire.workers, bucket.itemsize)
        line = line.after(node.scattered(bucket), sum(wire.transfer(each) for each in rounds))
        arrived.append(line.now + sum(wire.alpha(each) for each in rounds))
        busy += sum(wire.seconds(each) for each in rounds)
        sent += sum(each.sent for each in rounds)
    back = max(node.gathered(bucket, there) for bucket, there in zip(profile.buckets, arrived, strict=True))
    late = max(0.0, back - profile.buckets[-1].ready)
    return PipelineStep(profile.seconds, 0.0, busy + node.busy, 0.0, profile.seconds + late, sent)


class _Node:
    """The link inside a node, which every bucket passes twice; each pass loads both directions, because it is a ring.

    Reduce-scatters queue for it as buckets come, and go first, because nothing else can begin without them. All-gathers
    queue for the time that is left between; the latency of each passes beside the bytes of the next.

    Args:
        link: link between the node's workers; None: each worker is a node, and passes nothing.
    """

    def __init__(self, link: Wire | None) -> None:
        self._link, self._taken, self._free = link, [(0.0, 0.0)], 0.0
        self.busy = 0.0

    def scattered(self, bucket: BucketProfile) -> float:
        """The time at which a bucket is reduce-scattered; to be asked in the order in which the buckets come."""
        moving, latency = self._half(bucket)
        begin = max(self._taken[-1][1], bucket.ready)
        self._taken.append((begin, begin + moving))
        self.busy += 2 * (moving + latency)
        return begin + moving + latency

    def gathered(self, bucket: BucketProfile, now: float) -> float:
        """The time at which a bucket that is back from the other nodes is gathered; to be asked when all are
        reduce-scattered.
        """
        left, latency = self._half(bucket)
        now = max(self._free, now)
        for begin, end in self._taken:
            if now < end:
                between = max(0.0, begin - now)
                if left <= between:
                    break
                left, now = left - between, end
        self._free = now + left
        return self._free + latency

    def _half(self, bucket: BucketProfile) -> tuple[float, float]:
        """The seconds for the bytes of half a ring, and its latency."""
        if self._link is None:
            return 0.0, 0.0
        rounds = dense_traffic(bucket.numel, self._link.workers, bucket.itemsize)
        moving = sum(self._link.transfer(each) for each in rounds) / 2
        latency = sum(self._link.alpha(each) for each in rounds) / 2
        return moving, latency


def stretch(cores: float, transport: float, share: float) -> float:
    """The factor by which codecs slow down because the processor also moves the bytes of workers that are outside their
    own codec; transport leaves codecs at least half of the processor.

    Args:
        cores: cores of the machine over its workers, > 0.
        transport: cores of a worker that its transport keeps busy while bytes move.
        share: share of the step in which bytes move, 0 to 1.

    >>> stretch(4.0, 0.5, 1.0), stretch(1.0, 0.5, 0.5), stretch(0.5, 0.25, 0.5)
    (1.0, 1.3333333333333333, 1.3333333333333333)
    """
    left = max(cores / 2, cores - transport * share)
    return max(1.0, 1 / left) / max(1.0, 1 / cores)


def compressed_step(profile: Profile, jobs: Sequence[PipelineJob], wire: Wire, cores: float = math.inf) -> PipelineStep:
    """Predict a step of a method with one communication thread.

    Args:
        profile: profile of the backward pass.
        jobs: one for each bucket.
        wire: the link.
        cores: cores of a worker.
    """
    alone = _sequence(profile, jobs, wire, cores)
    moving = sum(wire.transfer(each) for job in jobs for each in (*job.traffic.dense, *job.traffic.rounds))
    share = min(1.0, moving / alone) if alone else 0.0
    longer = stretch(cores, wire.cores, share) if profile.busy else 1.0
    slower = [replace(job, encode=longer * job.encode, decode=longer * job.decode) for job in jobs]
    rounds = [each for job in jobs for each in (*job.traffic.dense, *job.traffic.rounds)]
    return PipelineStep(
        profile.seconds,
        sum(job.encode for job in slower),
        sum(wire.seconds(each) for each in rounds) + sum(2 * job.inside for job in jobs),
        sum(job.decode for job in slower),
        _sequence(profile, slower, wire, cores),
        sum(each.sent for each in rounds),
    )


def _sequence(profile: Profile, jobs: Sequence[PipelineJob], wire: Wire, cores: float) -> float:
    """The seconds of a step whose buckets follow each other beside the backward pass."""
    factor, last = slowdown(cores) if profile.busy else 1.0, profile.buckets[-1].ready
    line = Timeline()
    for bucket, job in zip(profile.buckets, jobs, strict=True):
        now = line.start(bucket.ready) + job.inside
        slowed = _slowed(now, job.encode, last + line.stood, factor)
        encoded = now + job.encode + slowed
        free = [now + wire.transfer(each) for each in job.traffic.dense]
        dense = [end + wire.alpha(each) for end, each in zip(free, job.traffic.dense, strict=True)]
        there = max([encoded, *free]) + sum(wire.seconds(each) for each in job.traffic.rounds)
        now = max([there, *dense])
        decoding = _slowed(now, job.decode, last + line.stood + slowed, factor)
        line = line.ended(bucket.ready, now + job.decode + decoding + job.inside, slowed=slowed + decoding)
    return max(line.now, last + line.stood) + (profile.seconds - last)


def _slowed(now: float, seconds: float, last: float, factor: float) -> float:
    """The seconds by which work on the communication thread and the backward pass beside it slow each other down.

    Args:
        now: time at which the work begins.
        seconds: seconds that it takes alone.
        last: time at which the backward pass has the last bucket.
        factor: factor by which both threads are slower together.
    """
    return min(max(0.0, last - now), seconds) * (factor - 1)
