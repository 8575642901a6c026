"""Stores of one process: "local" sums what several senders of this process push, "device" also compresses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import MultiRound, reduce_fields
from gradwire.errors import ConfigError, require
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey, found
from gradwire.kvstore.protocol.merge import Merger, add_dense, as_row_sparse, merged_rows, row_sparse
from gradwire.kvstore.protocol.optimizer_states import load_states, save_states
from gradwire.kvstore.protocol.replica import Replica, follows
from gradwire.kvstore.protocol.sender import Sender, encode_all
from gradwire.kvstore.protocol.store import KVStore, UpdaterFunction
from gradwire.kvstore.protocol.updater import OptimizerConfig, Updater
from gradwire.memory.base import check_rounds
from gradwire.modes import ordinary_modes

__all__ = ["DeviceStore", "LocalStore"]


@dataclass
class LocalKey:
    """A key: its value, and the state of its senders and of its sums."""

    value: Tensor
    sparse: bool
    merger: Merger
    senders: list[Sender] = field(default_factory=list)
    replica: Replica | None = None

    @property
    def shape(self) -> torch.Size:
        return self.value.shape


class LocalStore(KVStore):
    """A store in this process that sums uncompressed gradients."""

    compresses = False

    def __init__(self, type: str = "local", seed: int = 0) -> None:  # noqa: A002
        super().__init__(type)
        self.seed = seed
        self._keys: dict[StoreKey, LocalKey] = {}
        self._updater: UpdaterFunction | None = None

    @property
    def updates(self) -> bool:
        return self._updater is not None

    def set_updater(self, updater: UpdaterFunction) -> None:
        require(callable(updater), "updater", "a function of key, merged and stored", updater)
        self._updater = updater

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        updater = self._own_updater()
        save_states(fname, updater.state_dict(), updater.config if dump_optimizer else None)

    def load_optimizer_states(self, fname: str) -> None:
        updater = self._own_updater()
        states, config = load_states(fname)
        if config is not None:
            updater.use(config)
        updater.load_state_dict(states)

    def _own_updater(self) -> Updater:
        if not isinstance(self._updater, Updater):
            raise ConfigError("a store has optimizer states after set_optimizer, and not before")
        return self._updater

    @ordinary_modes()
    def _init(self, key: StoreKey, value: Tensor) -> None:
        dense = value.to_dense() if value.is_sparse else value.clone(memory_format=torch.contiguous_format)
        self._keys[key] = LocalKey(dense, value.is_sparse, Merger(dense.shape, dense.device))

    @ordinary_modes()
    def _push_all(self, pairs: Sequence[tuple[StoreKey, Sequence[Tensor]]], priority: int) -> None:
        if isinstance(self._updater, Updater):
            for key, _ in pairs:
                self._updater.config.check_value(key, found(self._keys, key).value.dtype)
        for key, grads in pairs:
            self._push(key, grads)

    def _push(self, key: StoreKey, grads: Sequence[Tensor]) -> None:
        entry, pull = found(self._keys, key), self.compression.pull
        if self.compression.push is None:
            merged = add_dense(grads, entry.shape, entry.value.device)
        else:
            merged = self._compressed_sum(entry, key, grads)
        if pull is None or not follows(pull, entry.shape, entry.value.dtype):
            # It would miss this step; a later one begins from the value as it is then.
            entry.replica = None
        else:
            # Before the value changes: those who have pulled it hold this one.
            entry.replica = entry.replica or Replica(key, entry.value)
        if self._updater is None:
            entry.value.copy_(merged)
        elif isinstance(self._updater, Updater):
            sparse = all(grad.is_sparse for grad in grads)
            rows = merged_rows([grad.indices()[0].to(merged.device) for grad in grads]) if sparse else None
            self._updater(key, merged, entry.value, rows)
        else:
            # A function of the user's own.
            with torch.enable_grad():
                self._updater(key, merged, entry.value)
        if entry.replica is not None:
            assert pull is not None
            entry.replica.follow(entry.value, pull, replaced=self._updater is None)

    def _compressed_sum(self, entry: LocalKey, key: StoreKey, grads: Sequence[Tensor]) -> Tensor:
        push = self.compression.push
        assert push is not None
        capabilities.check_world(push, len(grads))
        senders = self._senders(entry, key, grads)
        if any(grad.is_sparse for grad in grads):
            rows = [
                each.indices()[0] if each.is_sparse else torch.arange(len(each), device=each.device) for each in grads
            ]
            grads = [each if each.is_sparse else all_rows(each) for each in grads]
            return entry.merger.merge_rows(self.compression, encode_all(senders, grads), rows)
        if isinstance(push, MultiRound):
            return averaged(push, senders, grads).mul_(len(senders)).to(entry.value.device)
        return entry.merger.merge(self.compression, encode_all(senders, grads))

    def _senders(self, entry: LocalKey, key: StoreKey, grads: Sequence[Tensor]) -> list[Sender]:
        # One for each place in the push, because each has a residual of its own.
        for rank, grad in enumerate(grads[len(entry.senders) :], len(entry.senders)):
            entry.senders.append(Sender(key, entry.shape, seed=self.seed, rank=rank, device=grad.device))
        senders = entry.senders[: len(grads)]
        for sender in senders:
            sender.use(self.compression)
            # The first has been in every push; another one is new, or was left out of some.
            sender.catch_up(senders[0])
        return senders

    @torch.no_grad()
    def _pull_all(self, pairs: Sequence[tuple[StoreKey, Sequence[Tensor]]], priority: int) -> None:
        for key, outs in pairs:
            entry = found(self._keys, key)
            value = entry.value if entry.replica is None else entry.replica.held
            rows = as_row_sparse(value) if any(out.is_sparse for out in outs) else value
            for out in outs:
                out.copy_(rows if out.is_sparse else value)

    def _rows(self, key: StoreKey, rows: Tensor, priority: int) -> Tensor:
        value = found(self._keys, key).value
        return value[rows.to(value.device)]

    def _set_compression(self, compression: Compression) -> None:
        return

    def _set_optimizer(self, config: OptimizerConfig) -> None:
        if isinstance(self._updater, Updater) and self._updater.config.name == config.name:
            self._updater.use(config)
        else:
            self._updater = Updater(config)


class DeviceStore(LocalStore):
    """A store in this process that compresses each sender's gradients before they are summed, as MXNet's "device"."""

    compresses = True

    def _set_compression(self, compression: Compression) -> None:
        if compression.push is not None and compression.memory is not None:
            check_rounds(compression.memory, compression.push)


def all_rows(grad: Tensor) -> Tensor:
    """Convert a dense gradient to a row-sparse one with every row."""
    return row_sparse(torch.arange(len(grad), device=grad.device), grad, grad.shape)


def averaged(compressor: MultiRound, senders: Sequence[Sender], grads: Sequence[Tensor]) -> Tensor:
    """Compute the mean over the senders by a method of several rounds, with all senders in this process."""
    running: list[Iterator[tuple[tuple[Tensor, ...], int, str]]]
    running = [sender.rounds(grad) for sender, grad in zip(senders, grads, strict=True)]
    payload: tuple[Tensor, ...] = ()
    for told in zip(*running, strict=True):
        payload, _, how = told[0]
        reduce_fields([theirs[field] for theirs, field, _ in told], how)
    mean = torch.zeros(senders[0].shape, dtype=torch.float32, device=senders[0].device)
    compressor.add_decoded(payload, mean)
    capabilities.settle(compressor, mean)
    return mean
