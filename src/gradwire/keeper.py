"""Who keeps what between steps: every residual and state under its parameter's name.

Law: a name finds its tensor whatever the buckets look like. A plan asks for contiguous tensors of the units it has;
what was kept under the members' names moves there, and the old storage is forgotten. What a shard's owner kept for a
cut that no longer exists goes back to that worker's own residual, times the world size, so that its share of the
mean stays the same and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradwire.comm._part import Piece, Unit
from gradwire.types import Key, State, tensor_id

__all__ = ["Keeper"]

K = TypeVar("K", bound=Hashable)


class Keeper:
    """The memories of one rank, by parameter name."""

    def __init__(self, world: int, device: torch.device, seed: int) -> None:
        self.world, self.device, self.seed = world, device, seed
        self.worker: dict[str, dict[str, Tensor]] = {}
        self.states: dict[str, State] = {}
        self.owned: dict[str, list[tuple[str, int, Tensor]]] = {}
        self._transient: set[str] = set()
        self._loaded: dict[tuple[str, str, int, int], Tensor] = {}

    def keep(self, unit: Unit) -> Mapping[str, Tensor]:
        """Flat tensors of the unit's memory, holding what its members had so far."""
        self._transient |= set(unit.memory.transient)
        return {buffer: self._gather(unit, self.worker.setdefault(buffer, {})) for buffer in unit.memory.buffers}

    def remember(self, unit: Unit) -> State:
        """The compressor's state of the unit, made on first use or when its shapes changed."""
        key = Key(seed=self.seed, tensor=tensor_id(f"{unit.name}[0]"))
        fresh = unit.compressor.init_state(unit.shape, key, self.device)
        state = self.states.setdefault(unit.name, fresh)
        if {name: tensor.shape for name, tensor in state.items()} != {n: t.shape for n, t in fresh.items()}:
            self.states[unit.name] = fresh
        return self.states[unit.name]

    def server(self, piece: Piece, buffers: Sequence[str]) -> Mapping[str, Tensor]:
        """Flat float32 tensors of zeros for a piece that this rank compresses a second time."""
        kept = {buffer: torch.zeros(piece.numel, device=self.device) for buffer in buffers}
        for buffer, flat in kept.items():
            for name, lo, view in covered(piece, flat):
                if (saved := self._loaded.pop((name, buffer, lo, view.numel()), None)) is not None:
                    view.copy_(saved)
                self.owned.setdefault(name, []).append((buffer, lo, view))
        return kept

    def retire(self, names: Sequence[str]) -> None:
        """The cut of these parameters is gone: hand what their owner kept back to its own worker."""
        for name in names:
            for buffer, lo, view in self.owned.pop(name, []):
                own, estimate = (self.worker.get(kind, {}).get(name) for kind in (buffer, "local"))
                if own is not None:
                    own[lo : lo + view.numel()].add_(view, alpha=self.world)
                elif estimate is not None:
                    # The estimates have what the owner did not send, and their mean has not: take it out of them.
                    estimate[lo : lo + view.numel()].sub_(view, alpha=self.world)

    def scale(self, factor: float) -> None:
        """Multiply all residuals of this rank, its own and those of its shards."""
        for tensor in self._residuals():
            tensor.mul_(factor)

    def norm(self) -> float:
        """The Euclidean norm of all residuals of this rank, its own and those of its shards; waits for the device."""
        tensors = self._residuals()
        return float(torch.stack([tensor.norm(dtype=torch.float32) for tensor in tensors]).norm()) if tensors else 0.0

    def state_dict(self) -> dict[str, Any]:
        """What is kept, but for what only takes a step back, by parameter name; the tensors are those in use."""
        worker = {buffer: tensors for buffer, tensors in self.worker.items() if buffer not in self._transient}
        owned = {name: [[buffer, lo, view] for buffer, lo, view in views] for name, views in self.owned.items()}
        return {"worker": worker, "states": self.states, "owned": owned}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Keep copies of what ``state_dict`` gave, in the tensors in use where there are any.

        What an owner kept for its shards waits until a plan asks for the same cut.
        """
        for buffer, tensors in saved["worker"].items():
            restore(self.worker.setdefault(buffer, {}), tensors, self.device)
        for name, state in saved["states"].items():
            restore(self.states.setdefault(name, {}), state, self.device)
        current = {
            (name, buffer, lo, view.numel()): view for name, views in self.owned.items() for buffer, lo, view in views
        }
        for name, views in saved["owned"].items():
            restore(current, {(name, buffer, lo, view.numel()): view for buffer, lo, view in views}, self.device)
        self._loaded = {key: view for key, view in current.items() if not self._in_use(key)}

    def _residuals(self) -> list[Tensor]:
        owned = [view for views in list(self.owned.values()) for buffer, _, view in views if buffer == "residual"]
        return [*self.worker.get("residual", {}).values(), *owned]

    def _in_use(self, key: tuple[str, str, int, int]) -> bool:
        name, *place = key
        return any([buffer, lo, view.numel()] == place for buffer, lo, view in self.owned.get(name, []))

    def _gather(self, unit: Unit, kept: dict[str, Tensor]) -> Tensor:
        flat = torch.zeros(unit.numel, dtype=unit.memory.kept_dtype, device=self.device)
        lo = 0
        for name, numel in unit.members:
            view = flat[lo : lo + numel]
            if name in kept:
                view.copy_(kept[name])
            kept[name], lo = view, lo + numel
        return flat


def restore(into: dict[K, Tensor], saved: Mapping[K, Tensor], device: torch.device) -> None:
    """Copy what was saved into the tensors of the same name and shape; make those that are missing."""
    for name, tensor in saved.items():
        if name in into and into[name].shape == tensor.shape:
            into[name].copy_(tensor)
        else:
            into[name] = tensor.to(device, copy=True)


def covered(piece: Piece, flat: Tensor) -> Iterator[tuple[str, int, Tensor]]:
    """The parameters that a piece covers: name, first element inside the parameter, and the view of ``flat``."""
    begin, end = 0, piece.start + piece.numel
    for name, numel in piece.unit.members:
        lo, hi = max(begin, piece.start), min(begin + numel, end)
        if lo < hi:
            yield name, lo - begin, flat[lo - piece.start : hi - piece.start]
        begin += numel
