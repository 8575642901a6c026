"""Islands: several ranks that hold one copy of the model together, in shards of ``fully_shard``.

Invariants:
    * A rank exchanges its own shard with its peers: the ranks that hold the same shard in the other islands.
    * The ranks of an island do the same with their shards: if the gradient, the change or the mean of one is not
      finite, that of all counts as such, and if one fails, all of them raise. Its peers are one in each island, so what
      an island decides of its own change all islands hear of through the shards.

Failure modes:
    Without the first of these rules a step that one shard leaves out would be half a step of the model. A rank that
    fails sends nothing to the rest of its island, which would wait for it until its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from gradwire.engine.exchange import Exchange
from gradwire.errors import ConfigError, GroupError, Verbatim, require
from gradwire.frontends.ownership import on_rank
from gradwire.frontends.setup import agree_along, kind_of, private_channel
from gradwire.optim.local._crew import ALONE, HOST, Crew
from gradwire.transport.channel import Channel

__all__ = ["MAIN", "THREAD", "Island"]

MAIN, THREAD = 0, 1
"""Threads that send messages inside the island: the caller's and that of the exchange, each on its own channel."""


class Island:
    """This rank's island, and its peers in the others.

    Args:
        islands: mesh of one dimension over the peers, or their process group; None at a meeting, where nobody knows
            them beforehand.
        rank: this rank; None: as the default group counts.

    Attributes:
        group: the process group of the peers; None at a meeting.
        facts: values that must be the same on the peers, once the parameters were checked.
        crew: the ranks of the island as one worker of a meeting, after ``set_up``; elsewhere this rank alone.

    Raises:
        ConfigError: the argument is neither, or lacks this rank.
    """

    def __init__(self, islands: Any, rank: int | None = None) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        allowed = (
            "a DeviceMesh of one dimension over the ranks that hold the same shard in the other islands, such as "
            "mesh['islands'], or the group of these ranks"
        )
        known = isinstance(islands, DeviceMesh | dist.ProcessGroup | None)
        require(known, "islands", allowed, Verbatim(kind_of(islands)))
        self.group: dist.ProcessGroup | None = None
        rank = dist.get_rank() if rank is None else rank
        ranks = [rank]
        if isinstance(islands, DeviceMesh):
            require(islands.ndim == 1, "islands", allowed, Verbatim(f"one of {islands.ndim} dimensions"))
            ranks, self.group = islands.mesh.tolist(), islands.get_group()
        elif islands is not None:
            ranks, self.group = dist.get_process_group_ranks(islands), islands
        require(rank in ranks, "islands", f"{allowed}, with this rank, {rank}", ranks)
        self.ranks: list[int] = sorted(ranks)
        self.facts: dict[str, Any] = {}
        self._mesh: Any = None
        self._device = torch.device("cpu")
        self._crews: list[Crew] = []
        self.crew = ALONE

    @property
    def shard(self) -> dict[str, list[int]]:
        """The place of this rank's shard, which its state belongs to."""
        return {"at": list(self._mesh.get_coordinate()), "of": list(self._mesh.shape)}

    def check(self, params: Mapping[str, Any]) -> None:
        """Refuse parameters that are not all shards of one mesh, or a mesh that has peers of this rank in it.

        Raises:
            ConfigError: the message names a parameter, or the ranks.
        """
        plain = [name for name, param in params.items() if not hasattr(param, "device_mesh")]
        first = next((param for param in params.values() if hasattr(param, "device_mesh")), None)
        if first is not None:
            # Before anything is refused, because the island hears of the refusal through its mesh.
            self._mesh, self._device = first.device_mesh, on_rank(first).device
        sharded = "DTensors with islands, all of them, as after fully_shard(model, mesh=mesh['shard'])"
        require(not plain, "parameters", sharded, Verbatim(f"plain tensors: {', '.join(plain[:3])}"))
        mesh = self._mesh
        ours = mesh.mesh.flatten().tolist()
        for name, param in params.items():
            theirs = param.device_mesh.mesh
            require(
                torch.equal(theirs, mesh.mesh), f"mesh of {name}", f"that of all parameters, {ours}", theirs.tolist()
            )
            require(not param.is_meta, f"device of {name}", "one with memory: call to_empty first", "meta")
        shared = sorted(set(self.ranks) & set(ours))
        if shared != [dist.get_rank()]:
            raise ConfigError(
                f"islands must be a mesh without the other ranks of the model's mesh, got ranks {self.ranks} where the "
                f"model lies on {ours}: with mesh = init_device_mesh(..., mesh_dim_names=('islands', 'shard')) shard "
                "the model over mesh['shard'] alone, and give mesh['islands']"
            )
        cut = {name: [list(param.shape), [str(each) for each in param.placements]] for name, param in params.items()}
        self.facts.update(shard=self.shard, cut=cut)

    def set_up(
        self,
        make: Callable[[], None],
        made: Callable[[], Exchange],
        facts: Mapping[str, Any],
        timeout: object,
        threads: int,
        wait: float | None,
    ) -> None:
        """Set up the exchange with the peers; an error there is raised on the whole island, and so on all islands.

        Args:
            make: makes the exchange, which ``made`` returns then.
            facts: other values that must be the same on the ranks of an island.
            timeout: seconds that a message may take, as an option gives it.
            threads: 1; 2 if exchanges run on a thread of their own.
            wait: seconds for which the others may wait for the first rank, which waits at a meeting; None: there is
                none.

        Raises:
            ConfigError: an error of ``make`` here.
            GroupError: an error on another rank of the island, or ranks of it differ.
        """
        failure: Exception | None = None
        try:
            make()
        except Exception as error:
            if self._mesh is None:
                raise
            failure = error

        def describe() -> str:
            exchange = made()
            place = [exchange.channel.rank, exchange.channel.world]
            same = {**facts, "islands": {**self.facts, "shard": None}, "this island, of": place}
            return exchange.describe([], **same)

        for _ in range(threads):
            self._crews.append(self._crew(timeout, self._device))
        if wait is not None:
            # On the host: what they tell each other comes from the place.
            self.crew = self._crew(wait, HOST)
        agree_along(self._crews[0].channels, "set-up of an island", describe, self._device, failure)

    def _crew(self, timeout: object, device: torch.device) -> Crew:
        at, ranks = self._mesh.get_coordinate(), self._mesh.mesh
        # The first rank along each dimension of the mesh, from the place of this one.
        firsts = [int(ranks[(*at[:dim], 0, *at[dim + 1 :])]) for dim in range(ranks.dim())]
        return Crew([(self._line(dim, timeout, device), first) for dim, first in enumerate(firsts)], at, device)

    def _line(self, dim: int, timeout: object, device: torch.device) -> Channel:
        """The channel along a dimension of the mesh; the simulation of meetings has another."""
        return private_channel(self._mesh.get_group(dim), timeout, device)

    def largest(self, number: int, thread: int = MAIN) -> int:
        """The largest of the numbers that the ranks of the island give.

        Args:
            thread: the thread that asks.
        """
        return int(self._crews[thread].largest(number))

    def all_shards(self, exchange: Callable[[Callable[[bool], bool]], bool], thread: int = MAIN) -> bool:
        """Exchange on all ranks of the island; return whether it was well on all of them.

        Args:
            exchange: calls the function that it is given with whether its own part was well, and gets whether all were;
                so it can undo its part before it returns.

        Raises:
            GroupError: the exchange of another shard of the island failed.
        """
        told = list[bool]()

        def everywhere(well: bool) -> bool:
            told.append(well)
            worst = self.largest(0 if well else 1, thread)
            if worst > 1:
                raise GroupError("the exchange of another shard of this island failed: its rank has the reason")
            return worst == 0

        try:
            return exchange(everywhere)
        except Exception:
            if not told:
                self.largest(2, thread)
            raise
