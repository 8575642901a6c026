"""Clusters as the model sees them: single workers, or nodes of several workers, with the links between them.

In nodes the exchange has two levels, as the strategy ``hierarchical`` and ``compress_fsdp(replicate=...)`` do it: a
node's workers reduce-scatter a bucket uncompressed over the link inside, each of g workers exchanges its g-th with its
like in the other nodes, and they gather what came back. The link of a node carries what its workers send together,
and each encodes a g-th.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradwire.auto.link_cost import Wire
from gradwire.auto.traffic import shared, traffic
from gradwire.compressors.base import Compressor
from gradwire.engine.strategies.base import Strategy
from gradwire.errors import is_int, require
from gradwire.transport.collective_round import ring
from gradwire_lab.advise.codec import Codec
from gradwire_lab.advise.pipeline import PipelineJob, PipelineStep, compressed_step, dense_step
from gradwire_lab.advise.profile import Profile
from gradwire_lab.netlab.link import PAYLOAD_SHARE

__all__ = ["Cluster", "worlds"]


@dataclass(frozen=True)
class Cluster:
    """The machines on which a step runs, and the links between them.

    Args:
        workers: number of workers in all, >= 2.
        wire: link between workers, or between nodes; its number of workers is that of the ends that it joins.
        inside: link between the workers of a node; None: each worker is a node.
        cores: cores of a worker for each of its threads, > 0.

    Raises:
        ConfigError: workers that cannot be dealt out to the nodes.
    """

    workers: int
    wire: Wire
    inside: Wire | None = None
    cores: float = math.inf

    def __post_init__(self) -> None:
        require(is_int(self.workers, 2), "workers", "an integer >= 2", self.workers)
        nodes = self.wire.workers
        require(self.workers % nodes == 0, "nodes", f"a divisor of the {self.workers} workers", nodes)
        require(self.cores > 0, "cores", "a number > 0", self.cores)
        local = 1 if self.inside is None else self.inside.workers
        require(local * nodes == self.workers, "nodes", f"{self.workers} workers over {local} of a node", nodes)

    @property
    def meeting(self) -> int:
        """The number of participants that exchange compressed messages."""
        return self.wire.workers

    @property
    def local(self) -> int:
        """The number of workers of a node."""
        return self.workers // self.meeting

    def at(self, bits: float) -> Cluster:
        """Return the cluster with another link between the participants."""
        return replace(self, wire=self.wire.at_rate(bits / 8 * PAYLOAD_SHARE))

    def dense(self, profile: Profile) -> PipelineStep:
        """Predict a step without compression."""
        return dense_step(profile, self.wire, self.inside)

    def jobs(self, profile: Profile, compressor: Compressor, codec: Codec, strategy: str) -> list[PipelineJob]:
        """The work of a method for each bucket; it does not depend on the links between the participants."""
        jobs = []
        columns = zip(profile.buckets, codec.encode, codec.decode, codec.message, strict=True)
        for bucket, encode, decode, used in columns:
            divided = shared(bucket.params, compressor, self.meeting, None, strategy, used)
            sent = traffic(divided, self.meeting)
            jobs.append(PipelineJob(encode / self.local, decode / self.local, sent, self._inside(bucket.numel)))
        return jobs

    def compressed(self, profile: Profile, jobs: Sequence[PipelineJob]) -> PipelineStep:
        """Predict a step with a method."""
        return compressed_step(profile, jobs, self.wire, self.cores)

    def _inside(self, numel: int) -> float:
        """Half of a ring inside a node: its reduce-scatter, or its all-gather."""
        return 0.0 if self.inside is None else self.inside.seconds(ring(4 * numel, self.local)) / 2


def worlds(strategy: Strategy, compressor: Compressor, workers: int) -> Sequence[int]:
    """The numbers of workers with which a codec is measured, so that more can be extrapolated on a line.

    >>> from gradwire.compressors.ternary.twobit import TwoBit
    >>> from gradwire.engine.strategies.allgather import AllGather
    >>> worlds(AllGather(), TwoBit(), 10_000), worlds(AllGather(), TwoBit(), 6)
    ((4, 8), (6,))
    """
    few, many = (strategy.coded(compressor, each) for each in (4, 8))
    if few == many:
        return (min(workers, 4),)
    # What does not grow with each worker shows only where there are many: shards get small, and calls more.
    near, far = (4, 8) if many[1] > few[1] else (8, 64)
    return (workers,) if workers <= far else (near, far)
