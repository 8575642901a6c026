"""Distributed store in a worker.

A call is divided into units: single keys, and lists of small keys that are joined. A list is made when a call names the
same keys a second time. Each unit encodes its gradients; the bytes, with the unit's name and step, are distributed over
messages to the servers. A call that a list cannot take (a row-sparse gradient, several senders, another dtype) uses
single keys, which separates the keys of the list.

Each part of a key has its own residual in this worker. The gradients of the worker's own senders are summed first and
compressed once, as in MXNet's dist stores. A push returns when it is queued; a pull waits until this worker's last push
of the key counts.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, GradwireError, as_python, is_float32, is_int, require
from gradwire.kvstore.protocol.buffers import as_bytes
from gradwire.kvstore.protocol.compression import OFF, Compression
from gradwire.kvstore.protocol.environment import WorkerPlace, bigarray_bound
from gradwire.kvstore.protocol.environment import server_timeout as default_server_timeout
from gradwire.kvstore.protocol.keys import StoreKey, found, place
from gradwire.kvstore.protocol.merge import as_row_sparse
from gradwire.kvstore.protocol.messages import DTYPES
from gradwire.kvstore.protocol.optimizer_states import (
    by_server,
    from_bytes,
    load_states,
    of_server,
    save_states,
    to_bytes,
)
from gradwire.kvstore.protocol.payloads import require_alone
from gradwire.kvstore.protocol.small_keys import UnitBatches, joinable, packed, quoted
from gradwire.kvstore.protocol.store import KVStore, UpdaterFunction, check_priority
from gradwire.kvstore.protocol.updater import OptimizerConfig
from gradwire.kvstore.system import SYSTEM, System
from gradwire.kvstore.worker.client import Client
from gradwire.kvstore.worker.connection import Request
from gradwire.kvstore.worker.pulling import Pulling, row_requests
from gradwire.kvstore.worker.worker_key import PushedPart, PushProgress, WorkerKey, WorkerUnit
from gradwire.kvstore.worker.worker_key_list import KeyListRegistry, WorkerKeyList
from gradwire.modes import ordinary, ordinary_modes
from gradwire.notices import log

__all__ = ["DistStore"]


Lists: TypeAlias = Sequence[tuple[WorkerKeyList, Sequence[Tensor]]]
"""Lists of joined keys, each with one tensor for each key."""

Units: TypeAlias = Sequence[tuple[WorkerUnit, Sequence[Tensor]]]
"""Keys and lists of joined keys, each with its tensors."""

PROCESS_STORES: list[KVStore] = []
"""Stores that last as long as this process."""


class DistStore(KVStore):
    """A store whose values are on servers, shared by the workers of a group.

    Args:
        type: name by which the store was created; with "async" in it every push counts at once.
        where: the worker's place, or a function that finds it; then the store lasts as long as the process.
        timeout: seconds that any answer may take, > 0.
        bound: elements from which on a key is cut over all servers; None: MXNET_KVSTORE_BIGARRAY_BOUND, or 1,000,000.
        seed: seed of the methods' random streams, the same on all workers.
        server_timeout: seconds, > 0, that a server may be disconnected before its requests fail; None:
            GRADWIRE_SERVER_TIMEOUT, or, if that is not set, 8, and 30 of a server that keeps a snapshot.
        staleness: number of steps that a worker of an async store may be ahead of the slowest before its pulls and
            pushes of a key wait, the same on all workers; None: there is no bound.
        system: machine that the worker runs on.
    """

    def __init__(
        self,
        type: str,  # noqa: A002
        where: WorkerPlace | Callable[[], WorkerPlace],
        *,
        timeout: float = 120.0,
        bound: int | None = None,
        seed: int = 0,
        staleness: int | None = None,
        server_timeout: float | None = None,
        system: System = SYSTEM,
    ) -> None:
        super().__init__(type)
        self._keys: dict[StoreKey, WorkerKey] = {}
        self._lists = KeyListRegistry(self._keys)
        require(is_float32(timeout) and timeout > 0, "timeout", "seconds > 0", timeout)
        known = server_timeout is None or (is_float32(server_timeout) and server_timeout > 0)
        require(known, "server_timeout", "seconds > 0, or None", server_timeout)
        bounded = staleness is None or ("async" in type and is_int(staleness, 0))
        require(bounded, "staleness", "an integer >= 0, of a store whose type has 'async' in its name", staleness)
        self.bound = bigarray_bound() if bound is None else bound
        self.place, self.seed = where() if callable(where) else where, seed
        self._config = self._barriers = 0
        self._finished = False
        self._optimizers = [0] * len(self.place.servers)
        self._optimizer_name: str | None = None
        self._client = Client(
            self.place,
            sync="async" not in type,
            timeout=timeout,
            server_timeout=default_server_timeout() if server_timeout is None else server_timeout,
            system=system,
        )
        # A store that found its own place lasts as long as the process, so that the servers are told of its end.
        PROCESS_STORES.extend([self] if callable(where) else [])
        # Registered after the functions that ``where`` registered, and so called before them.
        system.at_exit(finish_at_exit, weakref.ref(self))
        self.staleness = as_python(staleness)
        if staleness is not None:
            self._ask_all("staleness", {"steps": self.staleness}, "a bound on staleness", declare=True)

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def num_workers(self) -> int:
        return self.place.world

    @property
    def updates(self) -> bool:
        return self._optimizer_name is not None

    def set_updater(self, updater: UpdaterFunction) -> None:
        raise ConfigError("a function cannot travel to the servers: use set_optimizer, or update_on_kvstore=False")

    def barrier(self) -> None:
        # The servers must have all pushes before others pass the barrier.
        self._flush()
        number = self._barriers + 1
        self._ask_all("barrier", {"number": number}, f"barrier {number}")
        # Only now: a worker for which the others came too late comes to the same barrier again.
        self._barriers = number

    def get_num_dead_node(self, node_id: int = 0, timeout: float = 60.0) -> int:
        return len(self._client.dead()) + len(self._client.silent(timeout))

    def version(self, key: StoreKey) -> int:
        return found(self._keys, key).step

    def finish(self) -> None:
        """End pushing: the others make their steps without this worker from now on.

        Raises:
            GroupError: a server with a snapshot could not write all that this worker has pushed to it.
        """
        # The other workers make their next steps without this one, so its last pushes must be in.
        self._flush()
        self._ask_all("finish", {}, "finish")
        # Only now: the servers have saved all that was pushed.
        self._finished = True

    def close(self, *, saved: bool = True) -> None:
        """Close the connections.

        Args:
            saved: true: wait first, 10 s longer than a server may be away, until the servers have in their snapshots
                what this worker has pushed, because it will not repeat it; if they do not, a warning is logged.
        """
        PROCESS_STORES[:] = [store for store in PROCESS_STORES if store is not self]
        if saved and not self._finished and self._client.snapshots():
            self._client.hurry()
            try:
                self._flush()
                self._ask_all("keep", {}, "closing the store")
            except GradwireError as error:
                log.warning("the store was closed before the servers had saved what was pushed: %s", error)
        self._client.close()

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        check_priority(priority)
        lists, names, values = self._divide(key, value, pull=False)
        self._push_all(self._gradients(names, values), priority, lists)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        check_priority(priority)
        lists, names, outs = self._divide(key, out, pull=True)
        self._pull_all(self._outputs(names, outs, ignore_sparse), priority, lists)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the states of all servers to a safetensors file; one worker does it for all, after a barrier.

        Args:
            fname: path of the file, which is replaced when all is written.
            dump_optimizer: true if the optimizer's name and numbers are written, too.
        """
        requests = [Request("states", {}) for _ in self.place.servers]
        self._ask(list(enumerate(requests)), "the optimizer states")
        states: dict[StoreKey, dict[str, Any]] = {}
        config = None
        for server, request in enumerate(requests):
            theirs, config = from_bytes(bytes(request.answer or b""))
            states |= of_server(server, theirs)
        save_states(fname, states, config if dump_optimizer else None)

    def load_optimizer_states(self, fname: str) -> None:
        """Load the file of ``save_optimizer_states``: on all workers, or on one of them between two barriers.

        Args:
            fname: path of a file that was written with the same number of servers. If it contains the name and numbers
                of an optimizer, all workers must load it, as they all must call ``set_optimizer``.

        Raises:
            ConfigError: no such file, another number of servers, or the states of another optimizer.
        """
        states, config = load_states(fname)
        if config is not None:
            name = self._optimizer_name
            require(name in (None, config.name), "the optimizer of fname", f"{name!r}, as the store's", config.name)
        split = [to_bytes(mine) for mine in by_server(states, len(self.place.servers), fname)]
        requests = [Request("restore", {}, torch.frombuffer(bytearray(mine), dtype=torch.uint8)) for mine in split]
        self._ask(list(enumerate(requests)), "the optimizer states")
        if config is not None:
            self._set_optimizer(config)
            self.applied_by(config)

    @ordinary_modes()
    def _init(self, key: StoreKey, value: Tensor) -> None:
        require(value.dtype in DTYPES.values(), f"the dtype of key {key!r}", "one of " + ", ".join(DTYPES), value.dtype)
        dense = (value.to_dense() if value.is_sparse else value).detach().cpu().contiguous()
        push, pull = self.compression.push, self.compression.pull
        alignment = 1 if push is None else push.alignment
        if pull is not None and pull.alignment == 0:
            alignment = 0
        if value.is_sparse and alignment:
            alignment = max(1, dense[:1].numel())
        parts = place(key, dense.numel(), len(self.place.servers), bound=self.bound, alignment=alignment)
        shared = WorkerKey(key, dense.shape, dense.dtype, value.is_sparse, parts, self.seed, self.rank)
        requests: list[tuple[int, Request]] = []
        for part in parts:
            fields = {
                "key": key,
                "shape": list(shared.part_shape(part)),
                "dtype": str(dense.dtype).removeprefix("torch."),
                "start": part.start,
                "total": dense.numel(),
                "sparse": value.is_sparse,
            }
            if self.rank == 0:
                request = Request("init", fields, as_bytes(dense.view(-1)[part.start : part.stop].clone()))
            else:
                request = Request("init", {**fields, "chunk": 0, "chunks": 0})
            requests.append((part.server, request))
        versions = self._ask(requests, f"init of key {key!r}")
        # The oldest: a worker that was killed in a push may have reached some servers, and the rest is waited for.
        shared.progress.step = min(versions, default=0)
        shared.made = {part.start: version for part, version in zip(parts, versions, strict=True)}
        self._keys[key] = shared

    def _divide(self, key: Any, tensors: Any, *, pull: bool) -> tuple[Lists, Any, Any]:
        """Divide the arguments of a call into lists that are joined, and the keys and tensors that are left.

        Args:
            key: keys as the caller passed them, unchecked.
            tensors: tensors as the caller passed them, unchecked.
            pull: true if the tensors are overwritten; a pull does not join keys.
        """
        grouping = self._lists.find(key) if joinable(self.compression) else None
        if self._lists.undeclared:
            self._declare()
        singles = None if grouping is None else grouping.singles(tensors, contiguous=pull)
        if grouping is None or singles is None or not (grouping.are_joined() if pull else grouping.join()):
            return [], key, tensors
        lists = [(each, [singles[place] for place in places]) for each, places in grouping.lists]
        return lists, [key[place] for place in grouping.rest], [tensors[place] for place in grouping.rest]

    def _declare(self) -> None:
        """Tell the servers about new lists."""
        requests = [
            (each.server, Request("join", {"number": each.number, "keys": each.keys}, declare=True))
            for each in self._lists.undeclared
        ]
        self._ask(requests, "a list of keys")
        # Only now: what could not be declared is declared with the next call.
        self._lists.undeclared = []

    @ordinary_modes()
    def _push_all(self, pairs: Sequence[tuple[StoreKey, Sequence[Tensor]]], priority: int, lists: Lists = ()) -> None:
        if self._optimizer is not None and self.updates:
            for key, grads in pairs:
                self._check_update(self._optimizer, found(self._keys, key), grads)
        if self.compression.push is not None and len(lists) + len(pairs) > 1:
            # Nothing is encoded before everything was checked. A list that is alone is checked while it is encoded.
            for each, grads in lists:
                each.check_finite(grads)
        units: Units = [*lists, *((found(self._keys, key).separate(), grads) for key, grads in pairs)]
        pushed: list[StoreKey] = []
        with UnitBatches(partial(self._send, priority)) as batches:
            for unit, grads in units:
                self._settle(unit)
                # Encoded before the step is counted, because a push that is refused was not made.
                try:
                    parts = unit.encode(grads, self.compression)
                except ConfigError as error:
                    # What was encoded before it is pushed, and counts: its residuals have changed.
                    if not pushed:
                        raise
                    raise ConfigError(f"{error}; of this call {quoted(pushed)} were pushed") from error
                pushed += unit.keys
                unit.progress.step += 1
                for part in parts:
                    batches.add(part.server, part.data.numel(), (unit, unit.progress.step, part), small=unit.small)

    def _check_update(self, config: OptimizerConfig, key: WorkerKey, grads: Sequence[Tensor]) -> None:
        """Refuse gradients that the servers cannot apply as they are meant.

        Raises:
            ConfigError: an optimizer for a value of integers; or rows of a dense key that is cut inside of rows, with
                ``lazy_update``: such a key takes them as a dense gradient, by which every row is updated.
        """
        config.check_value(key.key, key.dtype)
        if config.lazy and not key.in_rows and any(grad.is_sparse for grad in grads):
            raise ConfigError(
                f"value of key {key.key!r} must be dense with lazy_update, got a row-sparse one: the key was "
                f"initialised with a dense value of {key.shape.numel():,} elements, which is cut over "
                f"{len(key.parts)} servers inside of rows. Initialise it with a row-sparse value, or keep it whole: "
                f"MXNET_KVSTORE_BIGARRAY_BOUND is {self.bound:,} elements"
            )

    def _settle(self, unit: WorkerUnit) -> None:
        """Raise the errors of earlier pushes of a unit, and wait for them where staleness is bounded."""
        if self.staleness is not None or self._client.bounded:
            # A push is answered when the slowest worker is near enough.
            self._client.wait(unit.progress.pushes, f"a push of {unit.title}")
        unit.progress.forget_answered()

    def _send(self, priority: int, server: int, batch: list[tuple[WorkerUnit, int, PushedPart]]) -> None:
        """Send a message with units, their steps and their bytes."""
        parts = [part for _, _, part in batch]
        data = parts[0].data if len(parts) == 1 and not parts[0].borrowed else packed([part.data for part in parts])
        fields = {
            "items": [[unit.unit, step, part.data.numel(), part.rows] for unit, step, part in batch],
            "config": 0 if self.compression == OFF else self._config,
            "optimizer": self._optimizers[server],
        }
        future = self._client.ask(server, Request("push", fields, data, priority=priority))
        for unit, _, _ in batch:
            unit.progress.pushes.append(future)

    def _pull_all(self, pairs: Sequence[tuple[StoreKey, Sequence[Tensor]]], priority: int, lists: Lists = ()) -> None:
        given: Units = [*lists, *((found(self._keys, key), outs) for key, outs in pairs)]
        units = [(unit, [ordinary(out) for out in outs]) for unit, outs in given]
        values = self._values(units, priority, self.compression.pull)
        with torch.no_grad():
            for value, (_, outs) in zip(values, units, strict=True):
                # The tensors of a list have their values already.
                if value is not None:
                    copy_value(value, outs)

    @ordinary_modes()
    def _values(self, units: Units, priority: int, compressor: Compressor | None) -> list[Tensor | None]:
        """Pull the values of units into their tensors where these have the form of the values.

        Returns:
            A tensor for each key, which has its value: one of its own, or another one; None for a list.
        """
        pulling = Pulling(compressor, self._config, priority)
        values = pulling.add(units)
        bound = "" if self.staleness is None else f", at most {self.staleness} steps ahead of the slowest worker,"
        what = f"the pull of {quoted([key for unit, _ in units for key in unit.keys])}{bound}"
        self._ask(pulling.requests, what, [unit.progress for unit, _ in units])
        pulling.fill()
        return values

    def _rows(self, key: StoreKey, rows: Tensor, priority: int) -> Tensor:
        known = found(self._keys, key)
        if not known.in_rows:
            (value,) = self._values([(known, [])], priority, None)
            assert value is not None
            return value[rows.cpu()]
        values = torch.empty((len(rows), *known.shape[1:]), dtype=known.dtype, device="cpu")
        self._ask(row_requests(known, rows.cpu(), values, priority), f"rows of key {key!r}", [known.progress])
        return values

    def _set_compression(self, compression: Compression) -> None:
        require_alone(compression.push)
        number = self._config + 1
        self._ask_all("config", {"number": number, "config": compression.to_config()}, "a compression", True)
        # Only now: pushes go on with the compression before where a server has refused this one.
        self._config = number

    def _set_optimizer(self, config: OptimizerConfig) -> None:
        setting = {"number": max(self._optimizers) + 1, "name": config.name, "numbers": dict(config.numbers)}
        fields = [dict(setting) for _ in self.place.servers]
        requests = [Request("optimizer", each, declare=True) for each in fields]
        # A server answers with its own number of the setting, which differs where this worker came later than others.
        self._optimizers, self._optimizer_name = self._ask(list(enumerate(requests)), "an optimizer"), config.name
        for each, number in zip(fields, self._optimizers, strict=True):
            each["number"] = number

    def _ask_all(self, op: str, fields: dict[str, Any], what: str, declare: bool = False) -> None:
        """Send the same request to all servers, and wait for the answers."""
        self._ask([(server, Request(op, fields, declare=declare)) for server in range(len(self.place.servers))], what)
        # One server may have been restarted after it had answered, while another had not.
        self._client.check_kept()

    def _ask(self, requests: Sequence[tuple[int, Request]], what: str, after: Sequence[PushProgress] = ()) -> list[int]:
        """Send requests to servers, and wait for the answers.

        Args:
            requests: requests, each with the index of its server.
            what: description of the requests, for an error.
            after: keys whose earlier pushes must not have failed: a request would wait for a refused push in vain.
        """
        futures = self._client.ask_all(requests)
        pushes = list(dict.fromkeys(push for progress in after for push in progress.pushes))
        try:
            results = self._client.wait([*pushes, *futures], what)[len(pushes) :]
        except BaseException:
            # Also at Ctrl-C. An answer that comes too late is not written into tensors that the caller has taken back.
            for future in futures:
                future.cancel()
            raise
        for progress in after:
            progress.forget_answered()
        return results

    def _flush(self) -> None:
        """Wait until all pushes were answered."""
        open_keys = {key: known for key, known in self._keys.items() if known.progress.pushes}
        pushes = dict.fromkeys(future for known in open_keys.values() for future in known.progress.pushes)
        for known in open_keys.values():
            # Before the wait: an error of a push is raised once.
            known.progress.pushes = []
        self._client.wait(list(pushes), f"a push of key {', '.join(map(repr, list(open_keys)[:5]))}")


def copy_value(value: Tensor, outs: Sequence[Tensor]) -> None:
    """Copy the value of a key to the tensors that do not have it yet."""
    for out in outs:
        if out.is_sparse:
            out.copy_(as_row_sparse(value))
        elif out.data_ptr() != value.data_ptr() or not out.numel():
            out.copy_(value)


def finish_at_exit(of: weakref.ref[DistStore]) -> None:
    """Tell the servers at exit that this worker has finished, because the others would wait for its next push.

    A script that was ended by an exception does not: its later steps are missing, as those of a killed process.
    """
    store = of()
    if store is None or hasattr(sys, "last_value") or store._client.forked or store._client.closed:
        return
    store._client.hurry()
    try:
        store.finish()
    except Exception as error:
        # The process ends in any case.
        log.error("the servers could not be told that this worker has finished: %s", error)
    store.close(saved=False)
