"""Distributed store, as a worker sees it.

Calls that name the same keys again and again send their small keys by lanes: the first such call finds nothing special;
from the second on gradients are gathered, encoded and sent once for all keys of a lane. Whatever is out of the ordinary
(a row-sparse gradient, several senders, another dtype) goes the way of single keys, which puts a lane's keys apart.

Each part of a key has its own residual at this worker; what the worker's own senders push is added up first and
compressed once, as MXNet's dist stores do. A push returns when it is on its way; a pull waits for this worker's last
push of the key to count.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire._files import replace_file
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, is_float32, is_int, require
from gradwire.kvstore.protocol.compression import OFF, Compression
from gradwire.kvstore.protocol.environment import WorkerPlace, bigarray_bound
from gradwire.kvstore.protocol.environment import server_timeout as told_timeout
from gradwire.kvstore.protocol.keys import BIGARRAY_BOUND, KeyPart, StoreKey, place
from gradwire.kvstore.protocol.merge import as_row_sparse, row_sparse
from gradwire.kvstore.protocol.optimizer_states import by_server, from_bytes, load_states, of_server, to_bytes
from gradwire.kvstore.protocol.payloads import require_alone, sent
from gradwire.kvstore.protocol.sender import refuse_nonfinite
from gradwire.kvstore.protocol.small_keys import Bundle, Bundles, joinable
from gradwire.kvstore.protocol.store import KVStore, UpdaterFunction, check_priority
from gradwire.kvstore.protocol.updater import OptimizerConfig
from gradwire.kvstore.worker.client import LASTING, Client, finish_at_exit
from gradwire.kvstore.worker.connection import Request
from gradwire.kvstore.worker.lanes import Lane, Lanes, Roster
from gradwire.kvstore.worker.worker_key import Pulling, PushProgress, WorkerKey, as_bytes, as_is, row_requests

__all__ = ["DistStore"]


class DistStore(KVStore):
    """A store whose values are on servers, shared by the workers of a group.

    Args:
        type: the name it was created by; with "async" in it every push counts at once.
        where: the worker's place; or what finds it, and then the store lasts as long as the process.
        timeout: seconds that any answer may take, > 0.
        bound: elements from which on a key is cut over all servers; None: MXNET_KVSTORE_BIGARRAY_BOUND, or 1,000,000.
        seed: of the random streams of methods that have them, the same on all workers.
        server_timeout: seconds that a server may be away, > 0, before what was asked of it fails with its name; None:
            GRADWIRE_SERVER_TIMEOUT, or, if that is not set, 8, and 30 of a server that keeps a snapshot.
        staleness: of an async store: how many steps of a key a worker may be ahead of the slowest before its pulls
            and pushes of that key wait, the same on all workers; None: any number.
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
    ) -> None:
        super().__init__(type)
        self._keys: dict[StoreKey, WorkerKey] = {}
        self._lanes = Lanes(self._keys)
        require(is_float32(timeout) and timeout > 0, "timeout", "seconds > 0", timeout)
        known = server_timeout is None or (is_float32(server_timeout) and server_timeout > 0)
        require(known, "server_timeout", "seconds > 0, or None", server_timeout)
        bounded = staleness is None or ("async" in type and is_int(staleness, 0))
        require(bounded, "staleness", "an integer >= 0, of a store whose type has 'async' in its name", staleness)
        self.bound = bigarray_bound(BIGARRAY_BOUND) if bound is None else bound
        self.place, self.seed = where() if callable(where) else where, seed
        self._config = self._barriers = 0
        self._optimizers = [0] * len(self.place.servers)
        self._optimizer_name: str | None = None
        self._client = Client(
            self.place.servers,
            self.place.rank,
            self.place.world,
            sync="async" not in type,
            timeout=timeout,
            keys=self.place.keys,
            server_timeout=told_timeout() if server_timeout is None else server_timeout,
        )
        # A process's own store lasts as long as the process, or its end would not be said: nobody must wait for that.
        LASTING.extend([self] if callable(where) else [])
        # After whatever ``where`` registered: what comes later is called earlier.
        atexit.register(finish_at_exit, weakref.ref(self), weakref.ref(self._client))
        self.staleness = staleness
        if staleness is not None:
            self._ask_all("staleness", {"steps": staleness}, "a bound on staleness", declare=True)

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def num_workers(self) -> int:
        return self.place.world

    def set_updater(self, updater: UpdaterFunction) -> None:
        raise ConfigError("a function cannot travel to the servers: use set_optimizer, or update_on_kvstore=False")

    def barrier(self) -> None:
        self._flush()
        self._barriers += 1
        self._ask_all("barrier", {"number": self._barriers}, f"barrier {self._barriers}")

    def get_num_dead_node(self, node_id: int = 0, timeout: float = 60.0) -> int:
        return len(self._client.dead()) + len(self._client.silent(timeout))

    def version(self, key: StoreKey) -> int:
        return self._shared(key).step

    def finish(self) -> None:
        """End pushing: the others make their steps without this worker from now on."""
        self._flush()
        self._ask_all("finish", {}, "finish")

    def close(self) -> None:
        """Close the connections."""
        LASTING[:] = [store for store in LASTING if store is not self]
        self._client.close()

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        roster = self._roster(key)
        singles = None if roster is None else roster.singles(value, contiguous=False)
        if roster is None or singles is None or not roster.together():
            super().push(key, value, priority)
            return
        check_priority(priority)
        mine = [(lane, [singles[place] for place in places]) for lane, places in roster.lanes]
        for lane, _ in mine:
            self._settle(lane.progress, lane.title)
        # Nothing is encoded before everything was looked at: the rest as any other push, each lane here.
        flats = [self._gathered(lane, grads, one=len(mine) == 1 and not roster.rest) for lane, grads in mine]
        if roster.rest:
            super().push([key[place] for place in roster.rest], [value[place] for place in roster.rest], priority)
        for (lane, grads), flat in zip(mine, flats, strict=True):
            self._push_lane(lane, self._lane_payload(lane, grads, flat), priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        roster = self._roster(key)
        outs = None if roster is None else roster.singles(out, contiguous=True)
        if roster is None or outs is None or not roster.are_together():
            super().pull(key, out, priority, ignore_sparse)
            return
        check_priority(priority)
        requests = [
            (lane.server, self._lane_pull(lane, [outs[i] for i in places], priority)) for lane, places in roster.lanes
        ]
        futures = self._client.ask_all(requests)
        try:
            if roster.rest:
                super().pull([key[i] for i in roster.rest], [out[i] for i in roster.rest], priority, ignore_sparse)
            self._wait_for_lanes(roster, futures)
        except BaseException:
            # What comes too late is not written into tensors that the caller has taken back.
            for future in futures:
                future.cancel()
            raise

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the states of all servers to a safetensors file; one worker does it for all, after a barrier.

        Args:
            fname: is replaced at once when all is written.
            dump_optimizer: also write its name and numbers.
        """
        requests = [Request("states", {}) for _ in self.place.servers]
        self._wait(requests, "the optimizer states")
        states: dict[StoreKey, dict[str, Any]] = {}
        config = None
        for server, request in enumerate(requests):
            theirs, config = from_bytes(bytes(request.answer or b""))
            states |= of_server(server, theirs)
        replace_file(
            Path(fname),
            lambda temporary: Path(temporary).write_bytes(to_bytes(states, config if dump_optimizer else None)),
        )

    def load_optimizer_states(self, fname: str) -> None:
        """Load the file of ``save_optimizer_states``: on all workers, or on one of them between two barriers.

        Args:
            fname: written with as many servers as there are now. With the name and numbers of an optimizer in it, all
                workers have to read it, as they all have to call ``set_optimizer``.

        Raises:
            ConfigError: no such file, another number of servers, or the states of another optimizer.
        """
        states, config = load_states(fname)
        if config is not None:
            name = self._optimizer_name
            require(name in (None, config.name), "the optimizer of fname", f"{name!r}, as the store's", config.name)
        split = [to_bytes(mine) for mine in by_server(states, len(self.place.servers), fname)]
        requests = [Request("restore", {}, torch.frombuffer(bytearray(mine), dtype=torch.uint8)) for mine in split]
        self._wait(requests, "the optimizer states")
        if config is not None:
            self._set_optimizer(config)
            self.applied_by(config)

    def _init(self, key: StoreKey, value: Tensor) -> None:
        if key in self._keys:
            raise ConfigError(f"key {key!r} must be initialised once: it has a value already, which a push changes")
        dense = (value.to_dense() if value.is_sparse else value).detach().cpu().contiguous()
        push, pull = self.compression.push, self.compression.pull
        alignment = 1 if push is None else push.alignment
        if pull is not None and pull.alignment == 0:
            alignment = 0
        if value.is_sparse and alignment:
            alignment = max(1, dense[:1].numel())
        parts = place(key, dense.numel(), len(self.place.servers), bound=self.bound, alignment=alignment)
        shared = WorkerKey(dense.shape, dense.dtype, value.is_sparse, parts)
        requests = []
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
                requests.append(Request("init", fields, as_bytes(dense.view(-1)[part.start : part.stop].clone())))
            else:
                requests.append(Request("init", {**fields, "chunk": 0, "chunks": 0}))
        versions = self._wait(requests, f"init of key {key!r}", [part.server for part in parts])
        # Not the newest: one that was killed in a push may have reached some servers, and the others wait for the rest.
        shared.progress.step = min(versions, default=0)
        shared.made = {part.start: version for part, version in zip(parts, versions, strict=True)}
        self._keys[key] = shared

    def _push_all(self, pairs: Sequence[tuple[StoreKey, Sequence[Tensor]]], priority: int) -> None:
        bundles = Bundles(partial(self._send, priority))
        try:
            for key, grads in pairs:
                shared = self._shared(key)
                if len(pairs) == 1 or not shared.small(key) or any(grad.is_sparse for grad in grads):
                    self._push(key, grads, priority)
                else:
                    shared = self._alone(key)
                    data = self._small_payload(key, shared, grads)
                    shared.progress.step += 1
                    bundles.add(shared.parts[0].server, key, shared.step, data)
        finally:
            # Also where a later key was refused: what was encoded is pushed.
            bundles.close()

    def _send(self, priority: int, server: int, bundle: Bundle) -> None:
        fields = {"items": bundle.items, **self._settings(server)}
        future = self._client.ask(server, Request("pushes", fields, bundle.data(), priority=priority))
        for unit, _, _ in bundle.items:
            those = self._lanes.numbered[unit[0]] if isinstance(unit, list) else self._keys[unit]
            those.progress.pushes.append(future)

    def _small_payload(self, key: StoreKey, shared: WorkerKey, grads: Sequence[Tensor]) -> Tensor:
        """The bytes of a small key's push, copied before the caller gets its gradients back."""
        if self.compression.push is None and len(grads) == 1 and as_is(grads[0], shared):
            return as_bytes(grads[0])
        return self._payload(key, shared, shared.parts[0], shared.total(grads, copied=False))[1]

    def _settings(self, server: int) -> dict[str, int]:
        """The fields that a push names: how its bytes were made, and the optimizer that it is for."""
        return {"config": 0 if self.compression == OFF else self._config, "optimizer": self._optimizers[server]}

    def _alone(self, key: StoreKey) -> WorkerKey:
        """Find a key that is pushed by itself, after errors of earlier pushes were raised."""
        shared = self._shared(key)
        if shared.lane is not None:
            shared.lane.part()
        self._settle(shared.progress, f"key {key!r}")
        return shared

    def _push(self, key: StoreKey, grads: Sequence[Tensor], priority: int) -> None:
        shared = self._alone(key)
        parts = shared.lacking()
        # Encoded before the step is counted: a push that is refused was not made.
        if all(grad.is_sparse for grad in grads) and shared.in_rows:
            some = (grads[0] if len(grads) == 1 else torch.stack(list(grads)).sum(0)).coalesce().cpu()
            payloads = [self._rows_payload(key, shared, part, shared.rows_of(part, some)) for part in parts]
        else:
            total = shared.total(grads, copied=self.compression.push is None)
            payloads = [self._payload(key, shared, part, total) for part in parts]
        shared.progress.step += 1
        for part, (rows, data) in zip(parts, payloads, strict=True):
            fields = {"key": key, "step": shared.step, "rows": rows, **self._settings(part.server)}
            request = Request("push", fields, data, priority=priority, log=(key, shared.step))
            shared.progress.pushes.append(self._client.ask(part.server, request))

    def _payload(self, key: StoreKey, shared: WorkerKey, part: KeyPart, total: Tensor) -> tuple[int, Tensor]:
        """The number -1, which means dense, and the bytes of a part's push."""
        piece = total.view(-1)[part.start : part.stop].view(shared.part_shape(part))
        if self.compression.push is not None:
            return -1, self._encoded(key, shared, part, piece)
        return -1, as_bytes(piece.to(shared.dtype))

    def _rows_payload(self, key: StoreKey, shared: WorkerKey, part: KeyPart, grad: Tensor) -> tuple[int, Tensor]:
        """The number of rows, and the bytes of a part's row-sparse push."""
        rows = grad.indices()[0].contiguous()
        plain = self.compression.push is None
        data = as_bytes(grad.values().to(shared.dtype)) if plain else self._encoded(key, shared, part, grad)
        return len(rows), torch.cat([as_bytes(rows), data])

    def _encoded(self, key: StoreKey, shared: WorkerKey, part: KeyPart, grad: Tensor) -> Tensor:
        compressor = self.compression.push
        assert compressor is not None
        sender = shared.sender(key, part, self.seed, self.rank)
        sender.use(self.compression)
        return sent(compressor, grad.values().shape if grad.is_sparse else grad.shape, sender.encode(grad))

    def _pull_all(self, pairs: Sequence[tuple[StoreKey, Sequence[Tensor]]], priority: int) -> None:
        values = self._values(pairs, priority, self.compression.pull)
        with torch.no_grad():
            for value, (_, outs) in zip(values, pairs, strict=True):
                for out in outs:
                    if out.is_sparse:
                        out.copy_(as_row_sparse(value))
                    elif out.data_ptr() != value.data_ptr() or not out.numel():
                        out.copy_(value)

    def _values(
        self, pairs: Sequence[tuple[StoreKey, Sequence[Tensor]]], priority: int, compressor: Compressor | None
    ) -> list[Tensor]:
        """Pull the values of keys into the given tensors where these can take them; answers may be compressed."""
        pulling, keys = Pulling(compressor, self._config, priority), [key for key, _ in pairs]
        values = [pulling.add(key, self._shared(key), outs) for key, outs in pairs]
        pulling.close()
        # A push that was refused would be waited for in vain.
        pushes = list(dict.fromkeys(future for key in keys for future in self._keys[key].progress.pushes))
        bound = "" if self.staleness is None else f", at most {self.staleness} steps ahead of the slowest worker,"
        what = f"the pull of {', '.join(map(repr, keys[:5]))}{bound}"
        try:
            self._wait(pulling.requests, what, pulling.servers, pushes)
        except BaseException:
            # Also at Ctrl-C, and where another key was refused.
            # What comes too late is not written into tensors that the caller has taken back.
            for request in pulling.requests:
                request.future.cancel()
            raise
        for key in keys:
            self._keys[key].progress.forget_answered()
        pulling.fill()
        return values

    def _pull_rows(self, key: StoreKey, out: Tensor, rows: Tensor, priority: int) -> None:
        shared = self._shared(key)
        if shared.in_rows:
            values = torch.empty((len(rows), *shared.shape[1:]), dtype=shared.dtype)
            requests, servers = row_requests(key, shared, rows.cpu(), values, priority)
            self._wait(requests, f"rows of key {key!r}", servers, shared.progress.pushes)
        else:
            values = self._values([(key, [])], priority, None)[0][rows.cpu()]
        with torch.no_grad():
            if out.is_sparse:
                out.copy_(row_sparse(rows.cpu(), values, shared.shape))
            else:
                out.zero_()[rows.to(out.device)] = values.to(out.device, out.dtype)

    def _shape(self, key: StoreKey) -> torch.Size:
        return self._shared(key).shape

    def _is_sparse(self, key: StoreKey) -> bool:
        return self._shared(key).sparse

    def _shared(self, key: StoreKey) -> WorkerKey:
        if key not in self._keys:
            raise ConfigError(f"key {key!r} must be initialised before it is used: call init first")
        return self._keys[key]

    def _set_compression(self, compression: Compression) -> None:
        require_alone(compression.push)
        self._config += 1
        self._ask_all("config", {"number": self._config, "config": compression.to_config()}, "a compression", True)

    def _set_optimizer(self, config: OptimizerConfig) -> None:
        setting = {"number": max(self._optimizers) + 1, "name": config.name, "numbers": dict(config.numbers)}
        told = [dict(setting) for _ in self.place.servers]
        requests = [Request("optimizer", fields, declare=True) for fields in told]
        # To a worker that came later a server says by which number it knows the setting.
        self._optimizers, self._optimizer_name = self._wait(requests, "an optimizer"), config.name
        for fields, known in zip(told, self._optimizers, strict=True):
            fields["number"] = known

    def _ask_all(self, op: str, fields: dict[str, Any], what: str, declare: bool = False) -> None:
        self._wait([Request(op, fields, declare=declare) for _ in self.place.servers], what)

    def _wait(
        self,
        requests: Sequence[Request],
        what: str,
        servers: Sequence[int] | None = None,
        first: Sequence[Future[int]] = (),
    ) -> list[int]:
        places = range(len(requests)) if servers is None else servers
        futures = self._client.ask_all(list(zip(places, requests, strict=True)))
        return self._client.wait([*first, *futures], what)[len(first) :]

    def _flush(self) -> None:
        open_keys = {key: shared for key, shared in self._keys.items() if shared.progress.pushes}
        pushes = dict.fromkeys(future for shared in open_keys.values() for future in shared.progress.pushes)
        for shared in open_keys.values():
            shared.progress.pushes = []
        self._client.wait(list(pushes), f"a push of key {', '.join(map(repr, list(open_keys)[:5]))}")

    # Lists of keys -------------------------------------------------------------------------------------------------

    def _settle(self, progress: PushProgress, title: str) -> None:
        """Raise the errors of earlier pushes, before another push."""
        if self.staleness is not None:
            self._client.wait(progress.pushes, f"a push of {title}")
        progress.forget_answered()

    def _roster(self, key: Any) -> Roster | None:
        roster = self._lanes.find(key) if joinable(self.compression) else None
        if self._lanes.fresh:
            self._declare(self._lanes.fresh)
            self._lanes.fresh = []
        return roster

    def _declare(self, lanes: Sequence[Lane]) -> None:
        requests = [
            (lane.server, Request("join", {"number": lane.number, "keys": lane.keys}, declare=True)) for lane in lanes
        ]
        self._client.wait(self._client.ask_all(requests), "a list of keys")

    def _gathered(self, lane: Lane, grads: Sequence[Tensor], *, one: bool) -> Tensor:
        """Join gradients end to end; they are checked, unless the call does nothing but encode this ``one`` lane."""
        if self.compression.push is None:
            return lane.gather(grads)
        flat = lane.gather(grads, lane.sender(self.compression, self.seed, self.rank).room())
        if not one:
            for key, grad in zip(lane.keys, grads, strict=True):
                refuse_nonfinite(key, grad.detach())
        return flat

    def _lane_payload(self, lane: Lane, grads: Sequence[Tensor], flat: Tensor) -> Tensor:
        if self.compression.push is None:
            return as_bytes(flat)
        sender = lane.sender(self.compression, self.seed, self.rank)
        return sent(self.compression.push, flat.shape, lane.encode(sender, grads, flat))

    def _push_lane(self, lane: Lane, data: Tensor, priority: int) -> None:
        lane.progress.step += 1
        self._send(priority, lane.server, Bundle.of([lane.number], lane.progress.step, data))

    def _lane_pull(self, lane: Lane, outs: Sequence[Tensor], priority: int) -> Request:
        fields = {"items": [[[lane.number], lane.progress.step]]}
        return Request("pulls", fields, out=lane.sink(outs), priority=priority)

    def _wait_for_lanes(self, roster: Roster, futures: Sequence[Future[int]]) -> None:
        # A push that was refused would be waited for in vain.
        pushes = [push for lane, _ in roster.lanes for push in lane.progress.pushes]
        bound = "" if self.staleness is None else f", at most {self.staleness} steps ahead of the slowest worker,"
        self._client.wait([*pushes, *futures], f"the pull of {roster.lanes[0][0].title}{bound}")
        for lane, _ in roster.lanes:
            lane.progress.forget_answered()
