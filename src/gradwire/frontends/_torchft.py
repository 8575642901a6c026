"""Process group of torchft that compresses what its manager sends between replicas, which come and go.

Invariants:
    * torchft connects a group anew each time its replicas change, and nothing from before is kept. The codecs are
      stateless, so they keep nothing, either.
    * What is compressed has connections of its own, as in every wrapped group.
    * All replicas compare their settings whenever they meet, because different settings would mean messages of
      different sizes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import Work

from gradwire._extras import needs
from gradwire.compressors.base import Compressor
from gradwire.errors import require
from gradwire.frontends._compressing import Carrier, CompressingGroup, described, travels_as_it_is
from gradwire.metrics import Metrics
from gradwire.notices import log
from gradwire.transport.handshake import agree
from gradwire.transport.replica_channel import ReplicaChannel

with needs("torchft"):
    from torchft.process_group import ProcessGroupGloo, ProcessGroupWrapper

__all__ = ["wrap_replicas"]


CPU = torch.device("cpu")


class Reported(Work):
    """A collective whose error its future has, and not ``wait``.

    torchft's manager reads both, and makes the future that its DDP returns only after a ``wait`` that raises nothing.

    Args:
        work: the collective.
    """

    def __init__(self, work: Any) -> None:
        cast(Any, super()).__init__()
        self._work = work

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done; return whether it went well."""
        try:
            return bool(self._work.wait() if timeout is None else self._work.wait(timeout))
        except RuntimeError as error:
            # The manager goes by what is returned; the error itself is in the future.
            log.debug("a collective between replicas failed: %s", error)
            return False

    def is_completed(self) -> bool:
        """Return whether it is done, or has failed."""
        return bool(self._work.is_completed())

    def get_future(self) -> Any:
        """Return a future that is set when it is done, or has its error."""
        return self._work.get_future()


class CompressingReplicas(ProcessGroupWrapper):
    """A process group for ``torchft.Manager``. Made by ``gradwire.wrap_group``."""

    _pg: Any

    def __init__(self, plain: ProcessGroupGloo, code: Compressor, gathered: Compressor | None, min_numel: int) -> None:
        super().__init__(plain._timeout)
        self._code, self._gathered, self._least = code, gathered, min_numel
        # A second group for what is compressed, so that nothing else of a rank overtakes its second phase.
        self._groups = {"plain": plain, "gradwire": ProcessGroupGloo(plain._timeout)}
        self._counters, self._collectives = Metrics(), 0
        self._carrier: Carrier | None = None

    def configure(self, store_addr: str, *args: Any, **options: Any) -> None:
        """Connect with the replicas that are there now.

        Args:
            store_addr: address and prefix of the store at which they meet.
            args, options: arguments of torchft's manager: the replica's name, its rank, their number, and so on.

        Raises:
            GroupError: the replicas were given different arguments, or one of them is gone already.
        """
        # The replicas of the meeting before may be gone, and nothing of it may be used any more.
        self._disconnect()
        for name, group in self._groups.items():
            group.configure(f"{store_addr}/{name}", *args, **options)
        inner, channel = self._groups["plain"].parent, ReplicaChannel(self._groups["gradwire"].parent, self._counters)
        agree(channel, "configure", lambda: described(self._code, self._gathered, self._least, default=False), CPU)
        # The manager names each meeting in the prefix, alike on all replicas; their addresses differ from run to run.
        meeting = store_addr.partition("/")[2]
        self._carrier = Carrier(channel, self._code, self._gathered, CPU, meeting)
        same = travels_as_it_is(self._code, channel.world)
        self._pg = CompressingGroup(inner, self._carrier, self._least, same, gloo=True)

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Reduce a tensor over the replicas, in place. An error is the future's: ``wait`` returns False."""
        return Reported(super().allreduce(tensors, opts))

    def _disconnect(self) -> None:
        carrier, self._carrier = self._carrier, None
        self._pg = None
        if carrier is not None:
            self._collectives += carrier.step
            # What it waits for never comes if a replica is gone, and ends when that one's connection does.
            self._groups["gradwire"].abort(errored=False)
            carrier.worker.close()

    def abort(self, errored: bool = True) -> None:
        """Give up all connections."""
        self._disconnect()
        for group in self._groups.values():
            group.abort(errored)

    def shutdown(self) -> None:
        """End the compression and give up all connections."""
        self._disconnect()
        for group in self._groups.values():
            group.shutdown()

    def errored(self) -> Exception | None:
        """Return the error of a compressed collective since the replicas met; None if there was none."""
        return None if self._carrier is None else self._carrier.channel.failed

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a collective may take, from the next meeting on."""
        super().set_timeout(timeout)
        for group in self._groups.values():
            group.set_timeout(timeout)

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name under which torchft registers it."""
        return f"{self._groups['plain'].getBackendName()}-gradwire"

    def metrics(self) -> dict[str, Any]:
        """Return figures of all compressed collectives: bytes sent and received, uncompressed bytes,
        and seconds by phase.
        """
        now = 0 if self._carrier is None else self._carrier.step
        return {"collectives": self._collectives + now, **self._counters.as_dict()}


def wrap_replicas(
    group: Any, code: Compressor, gathered: Compressor | None, min_numel: int, timeout: float | None, default: bool
) -> CompressingReplicas:
    """Make the group for a manager out of one of torchft's, with settings that were checked.

    Raises:
        ConfigError: the group is not torchft's Gloo group, or an option is given that such a group cannot have.
    """
    kind = type(group).__name__
    require(type(group) is ProcessGroupGloo, "group", "a torchft.ProcessGroupGloo, if it is torchft's", kind)
    require(timeout is None, "timeout", "left out: that of torchft's group counts", timeout)
    require(not default, "default", "False for a group of torchft, whose replicas are jobs of their own", default)
    return CompressingReplicas(group, code, gathered, min_numel)
