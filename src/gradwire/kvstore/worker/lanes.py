"""Lists of keys that a worker pushes and pulls repeatedly: small keys of one server share one lane.

What is done for a key in a step is done once for a lane: its gradients are put side by side, encoded by one kernel call
with the residuals side by side, and travel as one push of a list that both sides know by a number. That holds as long
as the keys are always named together; a push of one of them puts them apart, with the same steps and residuals that
they would have had alone, and later they come together again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.errors import ConfigError
from gradwire.kvstore.protocol.buffers import lease
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import MAX_ITEMS
from gradwire.kvstore.protocol.sender import Sender, refuse_nonfinite
from gradwire.kvstore.protocol.small_keys import MAX_LISTS, ROOM, UNIT, Patience, named, side_by_side
from gradwire.kvstore.worker.connection import ScatterSink
from gradwire.kvstore.worker.worker_key import PushProgress, WorkerKey
from gradwire.types import align

__all__ = ["Lane", "Lanes", "Roster"]

DTYPES = (torch.float32, torch.float64, torch.float16)
"""The types of keys that may share a lane."""


class Lane:
    """Small keys of one server and one dtype, which travel as one unit.

    Args:
        number: by which the server knows the list.
        server: which.
        members: the keys, in the order of the list.
    """

    def __init__(self, number: int, server: int, members: Mapping[StoreKey, WorkerKey]) -> None:
        self.number, self.server = number, server
        self.keys, self.members = list(members), list(members.values())
        self.title = f"keys {named(self.keys)}"
        self.dtype = self.members[0].dtype
        numels = [each.shape.numel() for each in self.members]
        self.starts, self.numel = side_by_side(numels)
        self.progress = PushProgress()
        self.one = False
        self.patience = Patience()
        self._sender: Sender | None = None
        zeros = torch.zeros(UNIT, dtype=self.dtype)
        self._gaps = [zeros[: align(numel, UNIT) - numel] for numel in numels]

    def together(self) -> bool:
        """Return whether the keys are joined now; they are joined if possible."""
        if not self.one and self.patience.over() and self._alike():
            pushes = dict.fromkeys(push for each in self.members for push in each.progress.pushes)
            self.progress, self.one = PushProgress(self.members[0].step, list(pushes)), True
            for each in self.members:
                each.progress, each.lane = self.progress, self
        return self.one

    def part(self) -> None:
        """Separate the keys: each is as if it had always been alone."""
        for each in self.members:
            each.progress, each.lane = PushProgress(self.progress.step, list(self.progress.pushes)), None
        self.one = False
        self.patience.lose()
        self._part_residuals()

    def gather(self, grads: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """Join gradients end to end, in new memory or in ``out``."""
        flat = lease((self.numel,), self.dtype) if out is None else out
        pieces = [each for grad, gap in zip(grads, self._gaps, strict=True) for each in (grad.reshape(-1), gap)]
        with torch.no_grad():
            return torch.cat(pieces, out=flat)

    def sender(self, compression: Compression, seed: int, rank: int) -> Sender:
        """The sender that encodes all keys as one; its residual is theirs end to end."""
        if self._sender is None:
            self._sender = Sender(self.keys[0], torch.Size((self.numel,)), seed=seed, rank=rank)
            self._sender.use(compression)
            for key, each, start in zip(self.keys, self.members, self.starts, strict=True):
                if each.senders:
                    mine = each.sender(key, each.parts[0], seed, rank)
                    mine.use(compression)
                    for name, kept in self._sender.kept.items():
                        kept[start : start + each.shape.numel()].copy_(mine.kept[name].view(-1))
        self._sender.use(compression)
        return self._sender

    def sink(self, outs: Sequence[Tensor]) -> ScatterSink:
        """Make a sink that writes an answer to contiguous tensors of the lane's dtype, one for each key."""
        size = self.dtype.itemsize
        # By numpy: torch takes four times as long for a hundred tensors.
        arrays = [out.detach().numpy().reshape(-1).view(np.uint8) for out in outs]
        places = [(start * size, array) for start, array in zip(self.starts, arrays, strict=True)]
        return ScatterSink(places, self.numel * size)

    def encode(self, sender: Sender, grads: Sequence[Tensor], flat: Tensor) -> Tensor:
        """Encode the payload of all keys.

        Args:
            sender: of this lane.
            grads: one for each key.
            flat: the same side by side, float32; it is used up.

        Raises:
            ConfigError: a value is not finite; nothing was changed.
        """
        try:
            return sender.encode_own(flat)
        except ConfigError:
            residual = sender.kept.get("residual", torch.zeros(self.numel))
            for key, grad, start in zip(self.keys, grads, self.starts, strict=True):
                left = residual[start : start + grad.numel()].view(grad.shape)
                refuse_nonfinite(key, grad.detach().float() + left)
            raise

    def _alike(self) -> bool:
        first = self.members[0]
        return all(each.lane is None and each.step == first.step for each in self.members)

    def _part_residuals(self) -> None:
        sender, self._sender = self._sender, None
        if sender is None:
            return
        for key, each, start in zip(self.keys, self.members, self.starts, strict=True):
            mine = each.sender(key, each.parts[0], sender.seed, sender.rank)
            mine.use(sender.compression)
            mine.steps += sender.steps
            for name, kept in sender.kept.items():
                mine.kept[name].view(-1).copy_(kept[start : start + each.shape.numel()])


@dataclass
class Roster:
    """A list of keys, as a caller names them.

    Args:
        keys: of the list.
        lanes: those that its small keys take, each with the places of its keys in the list.
        rest: places of the others.
    """

    keys: list[StoreKey]
    lanes: list[tuple[Lane, list[int]]]
    rest: list[int]
    shapes: list[torch.Size]
    dtypes: list[torch.dtype]

    def singles(self, tensors: Any, *, contiguous: bool) -> list[Any] | None:
        """The one tensor of each key, out of lists of one; None if some key of a lane needs more than that.

        Args:
            tensors: as callers hand them in.
            contiguous: whether those of lanes have to be.
        """
        if not isinstance(tensors, list | tuple) or len(tensors) != len(self.keys):
            return None
        singles = [each[0] if isinstance(each, list | tuple) and len(each) == 1 else each for each in tensors]
        small = [singles[place] for _, places in self.lanes for place in places]
        fit = all(isinstance(each, Tensor) for each in small) and all(
            each.shape == shape
            and each.dtype is dtype
            and each.is_cpu
            and each.layout is torch.strided
            and (not contiguous or each.is_contiguous())
            for each, shape, dtype in zip(small, self.shapes, self.dtypes, strict=True)
        )
        return singles if fit else None

    def together(self) -> bool:
        """Return whether the keys of every lane are joined, or can be."""
        return all(lane.together() for lane, _ in self.lanes)

    def are_together(self) -> bool:
        """Return whether the keys of every lane are joined already."""
        return all(lane.one for lane, _ in self.lanes)


class Lanes:
    """The lists of keys that a worker has used.

    Args:
        keys: all that it knows.
    """

    def __init__(self, keys: Mapping[StoreKey, WorkerKey]) -> None:
        self._keys = keys
        self._lanes: dict[tuple[StoreKey, ...], Lane] = {}
        self._rosters: dict[tuple[Any, ...], Roster | None] = {}
        self.numbered: dict[int, Lane] = {}
        self.fresh: list[Lane] = []
        """The lanes that no server has been told of; the caller empties it."""

    def find(self, keys: Any) -> Roster | None:
        """Find a list that was used before; None if its keys go one by one."""
        if not isinstance(keys, list | tuple) or len(keys) < 2:
            return None
        try:
            name = tuple(keys)
            known = name in self._rosters
        except TypeError:
            return None
        if not known:
            self._note(name)
            return None
        roster = self._rosters[name]
        if roster is None:
            if not {*map(type, name)} <= {int, str}:
                return None
            roster = self._rosters[name] = self._roster(name)
        # 1, 1.0 and True are the same name of a list, and not the same keys.
        return roster if roster.lanes and list(map(type, keys)) == list(map(type, roster.keys)) else None

    def _note(self, name: tuple[Any, ...]) -> None:
        """Note the first use of a list, which may be the last."""
        if len(self._rosters) < MAX_LISTS:
            self._rosters[name] = None

    def _roster(self, keys: tuple[Any, ...]) -> Roster:
        places = {key: place for place, key in enumerate(keys)}
        lanes: list[tuple[Lane, list[int]]] = []
        if len(places) == len(keys):
            lanes = [(lane, [places[key] for key in lane.keys]) for lane in self._lanes_of(keys)]
        taken = {place for _, those in lanes for place in those}
        members = [each for lane, _ in lanes for each in lane.members]
        rest = [place for place in range(len(keys)) if place not in taken]
        return Roster(list(keys), lanes, rest, [each.shape for each in members], [each.dtype for each in members])

    def _lanes_of(self, keys: tuple[Any, ...]) -> list[Lane]:
        """The lanes of keys, in an order independent of the caller's: workers that name the same keys share them."""
        groups: dict[tuple[int, torch.dtype], dict[StoreKey, WorkerKey]] = {}
        for key in sorted(key for key in keys if key in self._keys):
            shared = self._keys[key]
            if shared.small(key) and not shared.sparse and shared.dtype in DTYPES and shared.shape.numel():
                groups.setdefault((shared.parts[0].server, shared.dtype), {})[key] = shared
        cuts = [(server, cut) for (server, _), members in groups.items() for cut in full(members)]
        return [lane for server, cut in cuts if len(cut) > 1 and (lane := self._lane(server, cut)) is not None]

    def _lane(self, server: int, members: Mapping[StoreKey, WorkerKey]) -> Lane | None:
        name = tuple(members)
        if name not in self._lanes:
            if len(self._lanes) >= MAX_LISTS:
                return None
            self._lanes[name] = Lane(len(self._lanes) + 1, server, members)
            self.numbered[self._lanes[name].number] = self._lanes[name]
            self.fresh.append(self._lanes[name])
        return self._lanes[name]


def full(members: Mapping[StoreKey, WorkerKey]) -> list[dict[StoreKey, WorkerKey]]:
    """Divide keys into lists that are as long as one message may be."""
    cuts: list[dict[StoreKey, WorkerKey]] = [{}]
    nbytes = 0
    for key, shared in members.items():
        size = align(shared.shape.numel(), UNIT) * shared.dtype.itemsize
        if nbytes + size > ROOM or len(cuts[-1]) == MAX_ITEMS:
            cuts.append({})
            nbytes = 0
        cuts[-1][key] = shared
        nbytes += size
    return cuts
