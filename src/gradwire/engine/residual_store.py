"""Residuals and codec state that survive a step, stored by parameter name.

Invariants:
    * State is keyed by parameter name and never by bucket: DDP rebuilds its buckets after the first step.
    * When a plan is made, the values of a unit's parameters are copied into contiguous tensors of the plan, and the old
      tensors are dropped in the same call.
    * If the shards of an exchange are cut elsewhere, the owner adds its shard's residual, multiplied by the world size,
      to its own residual, because the next mean divides by it. So its share of the mean stays the same and nothing is
      lost.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gradwire.engine.part import Piece, Unit
from gradwire.kernels.stored import add_to, copy_into, multiply, part_of, read
from gradwire.vocabulary import Key, State, align, tensor_id

__all__ = ["ResidualStore", "used_here"]

APART = 16
"""Elements to a multiple of which units that share a tensor begin: vectors are loaded faster from there."""

PATIENCE = 3
"""Steps in which loaded shards wait for their cut: DDP rebuilds its buckets after the first."""

Shard = tuple[str, str, int, int]
"""A part that an owner keeps: parameter, buffer, first element and number of elements."""


class ResidualStore:
    """The memories of one rank, by parameter name.

    Attributes:
        patience: steps for which loaded shards still wait for their cut; 0: none does.
        buckets_apart: buckets that have a step of their own each, for which loaded shards wait longer.
    """

    def __init__(self, world: int, device: torch.device, seed: int) -> None:
        self.world, self.device, self.seed = world, device, seed
        self.patience, self.buckets_apart = 0, 1
        self.worker: dict[str, dict[str, Tensor]] = {}
        self.states: dict[str, State] = {}
        self.sessions: dict[str, State] = {}
        self.owned: dict[str, list[tuple[str, int, Tensor]]] = {}
        self._transient: set[str] = set()
        self._squared: set[str] = set()
        self._loaded: dict[Shard, Tensor] = {}

    def keep_all(self, units: Sequence[Unit]) -> list[Mapping[str, Tensor]]:
        """Return the tensors of the units' memories, by buffer, with the values that their members had so far; numbers
        of one name and form lie in one tensor, so that one call takes them.
        """
        for unit in units:
            self._transient |= set(unit.memory.transient)
            self._squared |= set(unit.memory.squared)
        kept: list[dict[str, Tensor]] = [{} for _ in units]
        forms = dict.fromkeys((buffer, unit.memory.form) for unit in units for buffer in unit.memory.buffers)
        for buffer, form in forms:
            those = [i for i, unit in enumerate(units) if buffer in unit.memory.buffers and unit.memory.form == form]
            gap = form.grain if form.block else APART
            ends = list(accumulate(align(units[i].numel, gap) for i in those))
            whole = form.zeros(ends[-1], self.device)
            for i, end in zip(those, ends, strict=True):
                begin = end - align(units[i].numel, gap)
                flat = part_of(whole, begin, begin + units[i].numel)
                self._gather(units[i], flat, self.worker.setdefault(buffer, {}))
                kept[i][buffer] = flat
        return list(kept)

    def remember(self, unit: Unit) -> State:
        """Return the compressor's state of the unit, made on first use or when its shapes changed."""
        key = Key(seed=self.seed, tensor=tensor_id(f"{unit.name}[0]"))
        fresh = unit.compressor.init_state(unit.shape, key, self.device)
        state = self.states.setdefault(unit.name, fresh)
        if {name: tensor.shape for name, tensor in state.items()} != {n: t.shape for n, t in fresh.items()}:
            self.states[unit.name] = fresh
        return self.states[unit.name]

    def recall(self, unit: Unit, fresh: State) -> State:
        """Return the tensors that a session keeps for a unit between steps, ``fresh`` at first."""
        return self.sessions.setdefault(unit.name, fresh)

    def servers(self, pieces: Sequence[tuple[Piece, Sequence[str]]]) -> list[Mapping[str, Tensor]]:
        """Return, for pieces that this rank compresses a second time, flat float32 tensors under the given names."""
        total = sum(align(piece.numel, APART) * len(buffers) for piece, buffers in pieces)
        whole, end, found = torch.zeros(total, dtype=torch.float32, device=self.device), 0, list[Mapping[str, Tensor]]()
        for piece, buffers in pieces:
            kept = {}
            for buffer in buffers:
                kept[buffer], end = whole[end : end + piece.numel], end + align(piece.numel, APART)
                for name, lo, part in covered(piece):
                    view = kept[buffer][part]
                    # A loaded shard fits a plan only where that cuts at the same elements; others wait for
                    # ``give_up_waiting``.
                    if (saved := self._loaded.pop((name, buffer, lo, view.numel()), None)) is not None:
                        view.copy_(used_here(saved))
                    self.owned.setdefault(name, []).append((buffer, lo, view))
            found.append(kept)
        return found

    def retire(self, names: Iterable[str]) -> None:
        """Hand the tensors that owners kept for these parameters back to their own workers, because the cut is void."""
        for name in names:
            for buffer, lo, view in self.owned.pop(name, []):
                self._hand_back(name, buffer, lo, view)

    def give_up_waiting(self, names: Container[str] | None = None, lane: Iterable[Piece] = ()) -> None:
        """Take loaded shards as this worker's own, because the cut that they wait for does not come again.

        What the plans of now keep for the same parameters stays with these plans.

        Args:
            names: names of the parameters; None: all.
            lane: pieces; a shard that lies in one of them waits on.
        """
        inside = [(name, lo, lo + part.stop - part.start) for piece in lane for name, lo, part in covered(piece)]
        for name, buffer, lo, numel in list(self._loaded):
            waits = any(name == own and begin <= lo and lo + numel <= end for own, begin, end in inside)
            if (names is None or name in names) and not waits:
                self._hand_back(name, buffer, lo, self._loaded.pop((name, buffer, lo, numel)))

    def wait_less(self) -> None:
        """Count a step in which loaded shards have waited; after the last one they are given up."""
        self.patience -= 1
        if self.patience == 0:
            self.give_up_waiting()

    def _hand_back(self, name: str, buffer: str, lo: int, view: Tensor) -> None:
        used_here(view)
        own, estimate = (self.worker.get(kind, {}).get(name) for kind in (buffer, "local"))
        if own is not None:
            # The shard counted whole in the mean, and a worker's residual counts one part in ``world``.
            add_to(own, lo, view, self.world)
        elif estimate is not None:
            # The estimates have what the owner did not send, and their mean has not: take it out of them.
            estimate[lo : lo + view.numel()].sub_(view, alpha=self.world)

    def scale(self, factor: float, names: Container[str] | None = None) -> None:
        """Multiply the residuals of these parameters, or of all if None: the worker's own and those of its shards.

        Estimates stay, and so does what an owner has not sent of their changes: together they are the mean.
        """
        for tensor in self._residuals(
            [name for name in self.worker.get("residual", {}) if names is None or name in names]
        ):
            multiply(tensor, factor)

    def rescale(self, factor: float, names: Container[str] | None = None) -> None:
        """Multiply all tensors kept for elements by the change of the gradients' unit.

        Args:
            names: names of the parameters; None: all.
        """
        for buffer, tensors in self.worker.items():
            for name, tensor in tensors.items():
                if names is None or name in names:
                    multiply(tensor, factor * factor if buffer in self._squared else factor)
        for (name, *_), tensor in self._shards().items():
            if names is None or name in names:
                tensor.mul_(factor)

    def norm(self) -> float:
        """The Euclidean norm of the residuals of this rank, those of its shards included; it waits for the device."""
        norms = [read(tensor).norm(dtype=torch.float32) for tensor in self._residuals()]
        return float(torch.stack(norms).norm()) if norms else 0.0

    @property
    def nbytes(self) -> int:
        """The bytes of all residuals of this rank."""
        return sum(tensor.nbytes for tensor in self._residuals())

    def any_unsent(self) -> bool:
        """Return whether anything waits in the residuals of this rank or of its shards; it waits for the device."""
        return any(bool(read(tensor).any()) for tensor in self._residuals(self.worker.get("residual", {})))

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors in use, by parameter name, without those that only serve to undo a step."""
        worker = {buffer: dict(tensors) for buffer, tensors in self.worker.items() if buffer not in self._transient}
        owned: dict[str, dict[str, dict[str, Tensor]]] = {}
        for (name, buffer, lo, _), view in self._shards().items():
            views = owned.setdefault(name, {}).setdefault(buffer, {})
            # One that waits for its cut and one of the cut of now may begin at the same element.
            views[str(lo)] = added(views[str(lo)], view) if str(lo) in views else view
        states = {name: dict(state) for name, state in self.states.items()}
        return {"worker": worker, "states": states, "sessions": dict(self.sessions), "owned": owned}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Copy a ``state_dict``, and keep nothing else; earlier plans must not be used again.

        What an owner kept for its shards waits until a plan asks for the same cut, or ``give_up_waiting``.
        """
        self.worker = {buffer: self._copied(tensors) for buffer, tensors in saved.get("worker", {}).items()}
        self.states = {name: self._copied(state) for name, state in saved.get("states", {}).items()}
        self.sessions = {name: self._copied(state) for name, state in saved.get("sessions", {}).items()}
        self.owned = {}
        self._loaded = {
            (name, buffer, int(lo), view.numel()): view.to(self.device, copy=True)
            for name, buffers in saved.get("owned", {}).items()
            for buffer, views in buffers.items()
            for lo, view in views.items()
        }
        self.patience = PATIENCE * self.buckets_apart

    def narrow(self, buffers: Container[str]) -> None:
        """Keep these buffers only, and no state of a method, because another method follows."""
        # First, because loaded shards are handed back to residuals, which may be among the buffers that stay.
        self.give_up_waiting()
        self.worker = {buffer: tensors for buffer, tensors in self.worker.items() if buffer in buffers}
        self.states, self.sessions = {}, {}

    def changing(self, names: Collection[str]) -> dict[str, Tensor]:
        """All tensors that an exchange of these parameters may change, under unique names."""
        found = {
            f"worker/{buffer}/{name}": tensors[name]
            for buffer, tensors in self.worker.items()
            for name in names
            if buffer not in self._transient and name in tensors
        }
        # The state of one shard of a parameter has the shard's number after the name.
        found |= {
            f"states/{name}/{key}": tensor
            for name, state in self.states.items()
            for key, tensor in state.items()
            if name.partition("#")[0] in names
        }
        found |= {
            f"sessions/{name}/{key}": tensor
            for name, state in self.sessions.items()
            for key, tensor in state.items()
            if name in names
        }
        shards = {f"owned/{name}/{buffer}/{lo}": view for name, buffer, lo, view in self._views() if name in names}
        return found | shards

    def tensors_of(self, name: str) -> list[Tensor]:
        """Collect all tensors kept for the elements of a parameter, its part of the owned shards included."""
        own = [
            tensors[name]
            for buffer, tensors in self.worker.items()
            if buffer not in self._transient and name in tensors
        ]
        return own + [view for _, _, view in self.owned.get(name, [])]

    @property
    def keeps(self) -> bool:
        """Return whether anything is kept for the elements of some gradient."""
        return any(self.worker.values()) or bool(self.owned)

    def _views(self) -> Iterator[tuple[str, str, int, Tensor]]:
        return ((name, *kept) for name, views in list(self.owned.items()) for kept in views)

    def _shards(self) -> dict[Shard, Tensor]:
        """Yield every owned shard, also those that wait for their cut."""
        owned = {(name, buffer, lo, view.numel()): view for name, buffer, lo, view in self._views()}
        return {**self._loaded, **owned}

    def _residuals(self, names: Container[str] | None = None) -> list[Tensor]:
        own = [kept for name, kept in self.worker.get("residual", {}).items() if names is None or name in names]
        shards = self._shards().items()
        return own + [
            view for (name, buffer, *_), view in shards if buffer == "residual" and (names is None or name in names)
        ]

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.device, copy=True) for name, tensor in tensors.items()}

    def _gather(self, unit: Unit, flat: Tensor, kept: dict[str, Tensor]) -> None:
        """Move the members' values of a unit to ``flat``, and store its parts under their names."""
        lo = 0
        for name, numel in unit.members:
            view = part_of(flat, lo, lo + numel)
            if name in kept:
                copy_into(view, used_here(kept[name]), numel)
            kept[name], lo = view, lo + numel


def added(one: Tensor, other: Tensor) -> Tensor:
    """Add two flat tensors that begin together."""
    longer, shorter = (one, other) if one.numel() > other.numel() else (other, one)
    total = longer.clone()
    total[: shorter.numel()].add_(shorter)
    return total


def covered(piece: Piece) -> Iterator[tuple[str, int, slice]]:
    """Yield the parameters that a piece covers: name, first element inside the parameter, place in the piece."""
    begin, end = 0, piece.start + piece.numel
    for name, numel in piece.unit.members:
        lo, hi = max(begin, piece.start), min(begin + numel, end)
        if lo < hi:
            yield name, lo - begin, slice(lo - piece.start, hi - piece.start)
        begin += numel


def used_here(tensor: Tensor) -> Tensor:
    """Return the tensor, whose memory is not reused before this stream has finished with it.

    What a checkpoint was loaded into was allocated on another stream than that of the exchange, and is dropped here.
    """
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor
