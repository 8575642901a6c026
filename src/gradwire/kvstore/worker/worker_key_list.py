"""Lists of small keys in a worker: keys of one server and dtype that are repeatedly named together.

While they are joined, all that is done for a key in a step is done once for the list: its gradients are gathered,
encoded by one call with joined residuals, and sent as one unit under a number that the server knows.

Invariants:
    A push of a single key separates the keys of its list, with the steps and residuals that they would have had alone.
    Later they are joined again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.errors import ConfigError
from gradwire.kvstore.protocol.buffers import as_bytes, lease
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import MAX_ITEMS
from gradwire.kvstore.protocol.payloads import sent
from gradwire.kvstore.protocol.sender import Sender, refuse_nonfinite
from gradwire.kvstore.protocol.small_keys import (
    ALIGNMENT,
    MAX_BATCH,
    MAX_LISTS,
    SMALL,
    Backoff,
    element_offsets,
    quoted,
)
from gradwire.kvstore.worker.connection import ScatterSink
from gradwire.kvstore.worker.worker_key import PushedPart, PushProgress, WorkerKey
from gradwire.vocabulary import align

__all__ = ["KeyListRegistry", "WorkerKeyList"]

DTYPES = (torch.float32, torch.float64, torch.float16)
"""The dtypes of keys that may be joined."""


class WorkerKeyList:
    """A list of small keys of one server and one dtype, which are one unit while they are joined.

    Args:
        number: number of the list in messages to the server.

    Attributes:
        are_joined: true if the steps and residuals are kept here, false if each key keeps its own.
    """

    def __init__(self, number: int, server: int, members: Sequence[WorkerKey]) -> None:
        self.number, self.unit, self.server, self.members = number, [number], server, list(members)
        self.keys = [each.key for each in members]
        self.title = f"keys {quoted(self.keys)}"
        self.dtype = members[0].dtype
        numels = [each.shape.numel() for each in members]
        self.starts, self.numel = element_offsets(numels)
        self.small = self.numel * self.dtype.itemsize <= SMALL
        self.progress = PushProgress()
        self.are_joined = False
        self.backoff = Backoff()
        self._sender: Sender | None = None
        zeros = torch.zeros(ALIGNMENT, dtype=self.dtype, device="cpu")
        self._gaps = [zeros[: align(numel, ALIGNMENT) - numel] for numel in numels]

    def join(self) -> bool:
        """Join the keys if possible, and return whether they are joined now."""
        if not self.are_joined and self.backoff.expired() and self._are_alike():
            # Each once: keys that were separated have the earlier pushes of their list in common.
            pushes = dict.fromkeys(push for each in self.members for push in each.progress.pushes)
            self.progress, self.are_joined = PushProgress(self.members[0].step, list(pushes)), True
            for each in self.members:
                each.progress, each.joined = self.progress, self
        return self.are_joined

    def separate(self) -> None:
        """Separate the keys: each has the steps, pushes and residual that it would have had alone."""
        for each in self.members:
            each.progress, each.joined = PushProgress(self.progress.step, list(self.progress.pushes)), None
        self.are_joined = False
        self.backoff.start()
        self._return_residuals()

    def check_finite(self, grads: Sequence[Tensor]) -> None:
        """Refuse gradients that cannot be compressed.

        Raises:
            ConfigError: a value is not finite.
        """
        for key, grad in zip(self.keys, grads, strict=True):
            refuse_nonfinite(key, grad.detach())

    def encode(self, grads: Sequence[Tensor], compression: Compression) -> list[PushedPart]:
        """Encode the gradients of all keys as one.

        Args:
            grads: one for each key, of its shape and dtype, on the CPU.
            compression: one that is ``joinable``.

        Raises:
            ConfigError: a value is not finite and would be compressed; nothing was changed.
        """
        if compression.push is None:
            flat = lease((self.numel,), self.dtype)
            return [PushedPart(self.server, as_bytes(self.gather(grads, flat)))]
        sender = self.sender(compression)
        try:
            payload = sender.encode_own(self.gather(grads, sender.room()))
        except ConfigError:
            # The sender knows only the name of the first key: look for the key that has the value.
            residual = sender.kept.get("residual", torch.zeros(self.numel, dtype=torch.float32, device="cpu"))
            for member, grad, left in zip(self.members, grads, self._pieces(residual), strict=True):
                refuse_nonfinite(member.key, grad.detach().float() + left.view(grad.shape))
            raise
        return [PushedPart(self.server, sent(compression.push, (self.numel,), payload))]

    def receive(self, outs: Sequence[Tensor]) -> tuple[None, list[tuple[int, ScatterSink]]]:
        """Return where the answer is written: directly to contiguous tensors of the list's dtype, one for each key."""
        size = self.dtype.itemsize
        # By numpy, because views by torch take four times as long for a hundred tensors.
        arrays = [out.detach().numpy().reshape(-1).view(np.uint8) for out in outs]
        blocks = [(start * size, array) for start, array in zip(self.starts, arrays, strict=True)]
        return None, [(self.server, ScatterSink(blocks, self.numel * size))]

    def gather(self, grads: Sequence[Tensor], out: Tensor) -> Tensor:
        """Join gradients end to end, with zeros between them, in ``out``."""
        pieces = [each for grad, gap in zip(grads, self._gaps, strict=True) for each in (grad.reshape(-1), gap)]
        with torch.no_grad():
            return torch.cat(pieces, out=out)

    def sender(self, compression: Compression) -> Sender:
        """Find or make the sender that encodes all keys as one; its residual is theirs, joined end to end."""
        if self._sender is None:
            first = self.members[0]
            self._sender = Sender(first.key, torch.Size((self.numel,)), seed=first.seed, rank=first.rank)
            self._sender.use(compression)
            for name, kept in self._sender.kept.items():
                for member, piece in zip(self.members, self._pieces(kept), strict=True):
                    # What the keys have not sent yet goes on in the joined residual.
                    if member.senders:
                        piece.copy_(member.sender(member.parts[0], compression).kept[name].view(-1))
        self._sender.use(compression)
        return self._sender

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        """Split a joined tensor into the elements of each key."""
        shapes = [each.shape for each in self.members]
        return [flat[start : start + shape.numel()] for start, shape in zip(self.starts, shapes, strict=True)]

    def _are_alike(self) -> bool:
        """Return whether the keys can be joined: none of them is joined with others, and all are at the same step."""
        first = self.members[0]
        return all(each.joined is None and each.step == first.step for each in self.members)

    def _return_residuals(self) -> None:
        """Give each key its part of the joined residual, and drop the sender of the list."""
        joined, self._sender = self._sender, None
        if joined is None:
            return
        for member in self.members:
            # Random streams are numbered by steps, and go on as if the key had been alone.
            member.sender(member.parts[0], joined.compression).steps += joined.steps
        for name, kept in joined.kept.items():
            for member, piece in zip(self.members, self._pieces(kept), strict=True):
                member.senders[member.parts[0].start].kept[name].view(-1).copy_(piece)


@dataclass
class Grouping:
    """The keys of a call, divided into lists of small keys and other keys.

    Args:
        keys: the keys, in the order of the call.
        lists: the lists, each with the positions of its keys in the call.
        rest: positions of the other keys.
    """

    keys: list[StoreKey]
    lists: list[tuple[WorkerKeyList, list[int]]]
    rest: list[int]

    def __post_init__(self) -> None:
        self._small = [(at, key) for each, places in self.lists for at, key in zip(places, each.members, strict=True)]

    def singles(self, tensors: Any, *, contiguous: bool) -> list[Any] | None:
        """Find the one tensor of each key; None if the tensors of some small key do not fit its list.

        Args:
            tensors: tensors as the caller passed them, unchecked.
            contiguous: true if the tensors of small keys must be contiguous.
        """
        if not isinstance(tensors, list | tuple) or len(tensors) != len(self.keys):
            return None
        singles = [each[0] if isinstance(each, list | tuple) and len(each) == 1 else each for each in tensors]
        fit = all(
            isinstance(tensor := singles[at], Tensor)
            and tensor.shape == key.shape
            and tensor.dtype is key.dtype
            and tensor.is_cpu
            and tensor.layout is torch.strided
            and (not contiguous or tensor.is_contiguous())
            for at, key in self._small
        )
        return singles if fit else None

    def join(self) -> bool:
        """Join the keys of every list if possible, and return whether all are joined now."""
        return all(each.join() for each, _ in self.lists)

    def are_joined(self) -> bool:
        """Return whether the keys of every list are joined already."""
        return all(each.are_joined for each, _ in self.lists)


class KeyListRegistry:
    """A registry of the calls with several keys that a worker has made, and of the lists that they led to.

    A list is made when a call names the same keys a second time.

    Args:
        keys: all keys of the worker, to which more may be added.

    Attributes:
        undeclared: lists that no server has been told about; the caller empties it.
    """

    def __init__(self, keys: Mapping[StoreKey, WorkerKey]) -> None:
        self._keys = keys
        self._lists: dict[tuple[StoreKey, ...], WorkerKeyList] = {}
        self._groupings: dict[tuple[Any, ...], Grouping | None] = {}
        self.undeclared: list[WorkerKeyList] = []

    def find(self, keys: Any) -> Grouping | None:
        """Find the grouping of keys that were named together before; None if there is none, or it has no list."""
        if not isinstance(keys, list | tuple) or len(keys) < 2:
            return None
        try:
            name = tuple(keys)
            known = name in self._groupings
        except TypeError:
            return None
        if not known:
            self._note(name)
            return None
        grouping = self._groupings[name]
        if grouping is None:
            if not {*map(type, name)} <= {int, str}:
                return None
            grouping = self._groupings[name] = self._group(name)
        # 1, 1.0 and True are equal as names of a call, and not the same keys.
        return grouping if grouping.lists and list(map(type, keys)) == list(map(type, grouping.keys)) else None

    def _note(self, name: tuple[Any, ...]) -> None:
        """Note the first use of keys together; it may be the only one."""
        # Bounded, because a script may name other keys in every call.
        if len(self._groupings) < MAX_LISTS:
            self._groupings[name] = None

    def _group(self, keys: tuple[Any, ...]) -> Grouping:
        places = {key: place for place, key in enumerate(keys)}
        lists: list[tuple[WorkerKeyList, list[int]]] = []
        if len(places) == len(keys):
            lists = [(each, [places[key] for key in each.keys]) for each in self._lists_of(keys)]
        taken = {place for _, those in lists for place in those}
        return Grouping(list(keys), lists, [place for place in range(len(keys)) if place not in taken])

    def _lists_of(self, keys: tuple[Any, ...]) -> list[WorkerKeyList]:
        """Find or make the lists for some keys. They do not depend on the caller's order, so all workers share them."""
        groups: dict[tuple[int, torch.dtype], list[WorkerKey]] = {}
        for key in sorted(key for key in keys if key in self._keys):
            each = self._keys[key]
            if each.small and not each.sparse and each.dtype in DTYPES and each.shape.numel():
                groups.setdefault((each.parts[0].server, each.dtype), []).append(each)
        chunks = [(server, chunk) for (server, _), members in groups.items() for chunk in full_lists(members)]
        found = [self._list(server, chunk) for server, chunk in chunks if len(chunk) > 1]
        return [each for each in found if each is not None]

    def _list(self, server: int, members: Sequence[WorkerKey]) -> WorkerKeyList | None:
        name = tuple(each.key for each in members)
        if name not in self._lists:
            if len(self._lists) >= MAX_LISTS:
                return None
            self._lists[name] = WorkerKeyList(len(self._lists) + 1, server, members)
            self.undeclared.append(self._lists[name])
        return self._lists[name]


def full_lists(members: Sequence[WorkerKey]) -> list[list[WorkerKey]]:
    """Divide keys into lists, each as long as one message may be."""
    lists: list[list[WorkerKey]] = [[]]
    nbytes = 0
    for each in members:
        size = align(each.shape.numel(), ALIGNMENT) * each.dtype.itemsize
        if nbytes + size > MAX_BATCH or len(lists[-1]) == MAX_ITEMS:
            lists.append([])
            nbytes = 0
        lists[-1].append(each)
        nbytes += size
    return lists
