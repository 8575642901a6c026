"""Links of a given rate between ranks, as far as the kernel lets this process make some.

A namespace for each rank, joined by a bridge, is the best: each rank has a link of its own in both directions. Where
the kernel has no bridge or no pairs of devices, all ranks share one namespace, whose loopback is as fast as all their
links together.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gradwire.errors import ConfigError
from gradwire_lab.nccl.way import HERE, RankPlace
from gradwire_lab.netlab import Link, Netlab, NetlabError, remove
from gradwire_lab.netlab.names import LabNames
from gradwire_lab.netlab.system import require_system, run

__all__ = ["Shaped", "shaped"]

_LEAST_BURST = 128 * 1024
"""Bytes: packets of the loopback are as long as 64 KiB."""


@dataclass(frozen=True)
class Shaped:
    """A network for ranks, or the reason why there is none.

    Args:
        place: network in which the ranks run.
        how: "namespaces", "loopback", or "not shaped".
        refusal: message of the kernel; empty: the links have the rate.
    """

    place: RankPlace
    how: str
    refusal: str = ""


@contextmanager
def shaped(world: int, rate: str) -> Iterator[Shaped]:
    """Make a network in which each rank has a link of a rate; it goes away at the end of the block.

    Args:
        world: number of ranks, >= 2.
        rate: such as ``1gbit``; ``none``: the loopback as it is.

    Raises:
        ConfigError: no such rate.
    """
    link = Link.parse(rate).in_lab()
    if link.rate is None:
        yield Shaped(HERE, "not shaped")
        return
    try:
        lab = Netlab(world, rate)
    except (ConfigError, NetlabError) as error:
        said = str(error)
    else:
        with lab:
            yield Shaped(RankPlace(lab=lab.names), "namespaces")
        return
    try:
        name = _shared_loopback(Link(world * link.rate))
    except (ConfigError, NetlabError) as error:
        more = "" if str(error) == said else f"; one namespace: {error}"
        yield Shaped(HERE, "not shaped", f"no link could be shaped: {said}{more}")
        return
    try:
        yield Shaped(RankPlace(shared=name.hub), "loopback")
    finally:
        remove(name.id)


def _shared_loopback(link: Link) -> LabNames:
    """Make a namespace with a shaped loopback.

    Raises:
        ConfigError: this process may make none.
        NetlabError: the kernel refused it.
    """
    require_system()
    names = LabNames(secrets.token_hex(3), 1)
    try:
        run(["ip", "netns", "add", names.hub])
        run(["ip", "-n", names.hub, "link", "set", "lo", "up"])
        held = f"burst {max(link.bucket, _LEAST_BURST)} latency 200ms"
        run(["tc", "-n", names.hub, *f"qdisc add dev lo root tbf rate {link.rate}bit {held}".split()])
    except NetlabError:
        with suppress(OSError):
            remove(names.id)
        raise
    return names
