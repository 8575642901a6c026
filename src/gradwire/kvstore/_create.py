"""Stores by MXNet's names."""

from __future__ import annotations

import inspect
from typing import Any

from gradwire._short_traceback import short_traceback
from gradwire.errors import ConfigError, nearest, require
from gradwire.kvstore.launch.roles import find_place, take_role
from gradwire.kvstore.local import DeviceStore, LocalStore
from gradwire.kvstore.protocol.store import KVStore
from gradwire.kvstore.worker.store import DistStore

__all__ = ["create"]

TYPES: dict[str, type[LocalStore | DistStore]] = {
    "local": LocalStore,
    "local_update_cpu": LocalStore,
    "local_allreduce_cpu": LocalStore,
    "device": DeviceStore,
    "local_allreduce_device": DeviceStore,
    "dist": DistStore,
    "dist_sync": DistStore,
    "dist_sync_device": DistStore,
    "dist_device_sync": DistStore,
    "dist_async": DistStore,
    "dist_async_device": DistStore,
    "dist_device_async": DistStore,
}


@short_traceback
def create(name: str = "local", **options: Any) -> KVStore:
    """Create a store by its type. In a process that MXNet's tracker started as a server or scheduler, run that role and
    exit.

    Args:
        name: "local" (also "local_update_cpu", "local_allreduce_cpu") sums what the senders of this process push;
            "device" (also "local_allreduce_device") compresses it before; "dist_sync" and "dist_async" (with "_device"
            in them, too) keep values on servers, which the environment names: see ``gradwire launch``.
        options: ``seed`` of the random streams of methods that have them; of a dist store also ``timeout`` in seconds,
            ``server_timeout``, the seconds that a server may be away, and ``bound``, the elements from which on a key
            is cut over all servers; of "dist_async" ``staleness``, how many steps a worker may be ahead of the slowest.

    Raises:
        ConfigError: an unknown type, or an option that a store of this type has not.

    Example:
        >>> create("device").type
        'device'
    """
    take_role()
    require(isinstance(name, str), "name", "a str", name)
    known = name.lower()
    if known not in TYPES:
        raise ConfigError(f"unknown type of store {name!r}: {nearest(known, TYPES)}")
    allowed = set(inspect.signature(TYPES[known]).parameters) - {"type"}
    for option in options:
        if option not in allowed:
            raise ConfigError(f"a store of type {name!r} has no option {option!r}: {nearest(option, allowed)}")
    if issubclass(TYPES[known], DistStore) and options.get("where") is None:
        options["where"] = find_place
    return TYPES[known](known, **options)
