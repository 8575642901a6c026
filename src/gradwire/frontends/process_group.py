"""Wrapping of a process group into one that compresses what is large, for torch's groups and for those of torchft."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, cast

import torch
import torch.distributed as dist

from gradwire._short_traceback import short_traceback
from gradwire.engine.settings import valid_timeout
from gradwire.errors import require
from gradwire.frontends._compressing import Carrier, CompressingGroup, codes_of, described, travels_as_it_is
from gradwire.frontends.setup import backend_of, backends_of, check_initialised, kind_of, private_group
from gradwire.metrics import Metrics
from gradwire.transport.channel import Channel
from gradwire.transport.handshake import agree

__all__ = ["wrap_group"]

_numbers: weakref.WeakKeyDictionary[dist.ProcessGroup, itertools.count[int]] = weakref.WeakKeyDictionary()
"""The number of the next group around each one. It is not kept by names: in a process that lives on while others start
again it would differ from theirs, and so would common random streams."""


@short_traceback
def wrap_group(
    group: dist.ProcessGroup | None = None,
    compressor: Any = "bf16",
    *,
    all_gather: Any = None,
    min_numel: int = 16384,
    timeout: float | None = None,
    default: bool = False,
) -> CompressingGroup:
    """Make a process group over the same ranks whose large floating-point collectives are compressed.

        sum_i x_i  becomes  D(C(sum_i D(C(x_i)))),  the inner sum in float32

    It goes wherever a process group goes: to ``DistributedDataParallel``, a ``DeviceMesh``, ``replicate``, or to
    ``all_reduce`` itself. ``all_reduce`` and ``reduce_scatter_tensor`` with SUM, AVG or PREMUL_SUM are compressed;
    everything else passes through: what is small, integers, MAX, broadcasts, barriers, messages between two ranks.
    All ranks of ``group`` must call it, in the same order, and issue collectives from one thread each.

    Args:
        group: the one to wrap; None is the default group. Or a ``torchft.ProcessGroupGloo``: then what is returned goes
            to ``torchft.Manager``, and what that sends between replicas is compressed, however many there are.
        compressor: "bf16-fp32sum" (2 bytes an element; "bf16" is the same), "fp8-two-phase" (1 byte), or a
            method of one message and fixed size that can be cut and needs no memory, such as "blockwise8" or
            "qsgd:bits=4".
        all_gather: a method for ``all_gather_into_tensor``; None leaves it as it is, because what is gathered are
            often weights, in checkpoints, too.
        min_numel: elements from which on a tensor is compressed, >= 1; for ``reduce_scatter_tensor`` of the input.
        timeout: seconds that a collective may take; None: as long as those of ``group``.
        default: make it the default group, which all calls without a group use, and meshes of all ranks.

    Returns:
        The group; ``group.metrics()`` tells what went over the wire, ``group.close()`` ends the compression.

    Raises:
        ConfigError: a method that cannot be used so, or a wrong option.
        GroupError: ranks were given different arguments.

    Note:
        At two ranks each sends its payload once and both add what they decode: one rounding in place of two. There a
        tensor in bfloat16 travels as it is with "bf16-fp32sum", which is as exact and costs as much. A value that is
        not finite makes the result NaN on all ranks. Gloo lacks PREMUL_SUM, which FSDP asks for after
        ``set_gradient_divide_factor``; this group has it on Gloo, too, also for what passes through.

    Example:
        >>> import torch, torch.distributed as dist, gradwire
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> group = gradwire.wrap_group(None, "fp8-two-phase")
        >>> dist.all_reduce(torch.ones(100_000), group=group)
        >>> group.metrics()["bytes_sent"]  # a group of one sends nothing
        0
        >>> dist.destroy_process_group()
    """
    if hasattr(group, "configure"):
        # Replicas of torchft need no default group.
        from gradwire.frontends._torchft import wrap_replicas

        codes = codes_of(compressor, all_gather, min_numel)
        return cast(CompressingGroup, wrap_replicas(group, *codes, min_numel, timeout, default))
    check_initialised()
    inner = group if group is not None else dist.group.WORLD
    require(isinstance(inner, dist.ProcessGroup), "group", "a process group of which this rank is one", kind_of(inner))
    inner = cast(dist.ProcessGroup, inner)
    wrapped = isinstance(inner, CompressingGroup)
    require(not wrapped, "group", "one that does not compress: give the group that was wrapped", "one of wrap_group")
    device = torch.device("cuda" if backends_of(inner).get("cuda") == "nccl" else "cpu")
    number = _numbers.setdefault(inner, itertools.count())
    name = f"{inner.group_name}/gradwire/{next(number)}"
    lent = private_group(inner, timeout, device)
    made: list[Carrier] = []

    def describe() -> str:
        require(valid_timeout(timeout), "timeout", "a number of seconds > 0 or None", timeout)
        code, gathered = codes_of(compressor, all_gather, min_numel)
        made.append(Carrier(Channel(lent.group, Metrics()), code, gathered, device, name))
        return described(code, gathered, min_numel, default)

    try:
        # Before torch knows the group: ranks of other settings would send messages of other sizes.
        agree(Channel(lent.group, Metrics()), "wrap_group", describe, device)
    except BaseException:
        # All ranks have the same error, so the group is free on all of them.
        lent.give_back()
        raise
    carrier = made[0]
    lent.hold(carrier.channel)
    same = travels_as_it_is(carrier.code, inner.size())
    ours = CompressingGroup(inner, carrier, min_numel, same, gloo=backend_of(inner, device) == "gloo")
    # Last: from here on torch may pass calls to it.
    register(ours, inner, name)
    if default:
        dist.distributed_c10d._update_default_pg(ours)
    return ours


def register(ours: CompressingGroup, inner: dist.ProcessGroup, name: str) -> None:
    """Let torch know the group under this name, with the backends of the one it wraps."""
    c10d = cast(Any, dist.distributed_c10d)
    world, types = c10d._world, dist.Backend.backend_type_map
    backend, store = world.pg_map[inner]
    for device in inner._device_types:
        each = inner._get_backend(device)
        ours._register_backend(device, types.get(each.name(), dist.ProcessGroup.BackendType.CUSTOM), each)
    ours._set_default_backend(types.get(backend, dist.ProcessGroup.BackendType.CUSTOM))
    ours.own_name = name
    # As torch's own _register_pg_in_world, which versions before 2.13 lack.
    world.pg_map[ours], world.pg_names[ours] = (backend, store), name
    world.pg_backend_config[ours] = world.pg_backend_config[inner]
    world.pg_group_ranks[ours] = dict(world.pg_group_ranks[inner])
    world.pg_to_tag[ours] = tag = f"ptd:{name}"
    world.tags_to_pg.setdefault(tag, []).append(ours)
    c10d._register_process_group(name, ours)
