"""Ways to connect ranks that share a GPU, and the processes of these ranks.

NCCL refuses two ranks on one GPU, unless they seem to be on different hosts: it compares a hash of the host and the
bus address of the GPU. With another ``NCCL_HOSTID`` for each rank it sends everything through sockets, as between
hosts. From 2.30 on an option allows it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gradwire.notices import log
from gradwire.testing.processes import run_ranks
from gradwire_lab.netlab.names import INTERFACE, LabNames
from gradwire_lab.netlab.system import enter

__all__ = ["REHEARSED", "WAYS", "RankPlace", "Way", "nccl_version", "run_joined"]

_SOCKETS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"}


@dataclass(frozen=True)
class Way:
    """A way to connect ranks.

    Args:
        name: name in the rows.
        backend: backend of torch.distributed.
        device: device of the tensors.
        variables: environment of each rank; ``{rank}`` in a value stands for its number.
        least: the oldest NCCL that knows it; None: any.
        most: ranks that one GPU takes at most; None: any number.
    """

    name: str
    backend: str
    device: str
    variables: Mapping[str, str] = field(default_factory=dict)
    least: tuple[int, ...] | None = None
    most: int | None = None


WAYS = (
    Way("hostid", "nccl", "cuda", {**_SOCKETS, "NCCL_HOSTID": "gradwire{rank}"}),
    Way(
        "multi_rank",
        "nccl",
        "cuda",
        {**_SOCKETS, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2"},
        least=(2, 30),
        most=2,
    ),
)
"""The ways over NCCL, in the order in which they are tried."""

REHEARSED = Way("rehearsed", "gloo", "cpu", {"GLOO_SOCKET_IFNAME": "lo"})
"""Gloo in the place of NCCL, and the CPU in that of the GPU."""


@dataclass(frozen=True)
class RankPlace:
    """The network in which ranks run, and how they behave there.

    Args:
        lab: lab of which each rank has a worker's namespace; None: all stay where they are.
        shared: namespace in which all ranks are; None: there is none.
        variables: more variables for each rank.
    """

    lab: LabNames | None = None
    shared: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


HERE = RankPlace()


def run_joined(
    way: Way,
    world: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float,
    patience: float | None = None,
    place: RankPlace = HERE,
) -> list[Any]:
    """Call ``function(rank, *args)`` on ranks that are connected in a way; return their results in the order of ranks.

    Args:
        way: way to connect them.
        world: number of ranks.
        function: importable by its module; its result is sent back.
        args: sent to every rank.
        timeout: seconds until all ranks must have finished.
        patience: seconds that a collective may take; None: as long as all of it.
        place: network in which they run.

    Raises:
        RankFailedError: a rank failed.
    """
    prepare = partial(_prepare, way, place)
    return run_ranks(world, function, *args, timeout=timeout, backend=way.backend, prepare=prepare, patience=patience)


def _prepare(way: Way, place: RankPlace, rank: int) -> None:
    """Give a rank its environment and its network, before it joins the group."""
    os.environ.update({name: text.format(rank=rank) for name, text in way.variables.items()})
    os.environ.update(place.variables)
    namespace = place.shared if place.lab is None else place.lab.worker(rank)
    if namespace is not None:
        enter(namespace)
    if place.lab is not None:
        os.environ.update(GLOO_SOCKET_IFNAME=INTERFACE, NCCL_SOCKET_IFNAME=INTERFACE)
    # Nothing that a method says about itself is news here, nor that torch will rename a collective.
    log.addHandler(logging.NullHandler())
    warnings.simplefilter("ignore")
    # Sums of products of bfloat16 that are rounded in between would differ from the CPU's.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def nccl_version() -> tuple[int, ...] | None:
    """The version of the NCCL that is loaded, which may be another one than torch was built with; None without NCCL."""
    if not torch.distributed.is_nccl_available():
        return None
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8").splitlines() if maps.exists() else []
    loaded = next((line.split()[-1] for line in lines if "/libnccl.so" in line), None)
    if loaded is None:
        return tuple(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    code = ctypes.c_int()
    ctypes.CDLL(loaded).ncclGetVersion(ctypes.byref(code))
    major, rest = divmod(code.value, 10_000)
    return major, *divmod(rest, 100)
