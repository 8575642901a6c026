"""Meshes of a sharded model: mistakes that would mix up replicas, or leave them separate, are reported at set-up.

Invariants:
    The ranks of a model's mesh hold different rows, those of ``replicate`` the same rows.

Failure modes:
    A rank that is in neither mesh trains something else, such as a stage of a pipeline, or is a replica that nobody
    averages. Only the names of the mesh's other dimensions can tell the two apart. Where they do not, there is a
    warning and no error.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from gradwire.errors import ConfigError, require
from gradwire.frontends.setup import kind_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["ANY_MESH", "check_mesh", "check_replicas", "line_of", "lines_of", "ranks_of", "replicas_left_out"]

DATA = {"data", "ddp", "dp", "fsdp", "hsdp", "replica", "replicas", "replicate", "shard"}
"""Parts of names of dimensions whose ranks train the same parameters on other data."""
MODEL = {"pipeline", "pp", "stage", "stages", "tensor", "tp"}
"""Parts of names of dimensions whose ranks hold other parameters, or compute with the same data."""
ANY_MESH = "gradwire.wrap_group compresses what goes over the groups of any mesh"
"""The way for meshes that ``compress_fsdp`` does not take."""


def ranks_of(mesh: DeviceMesh) -> list[int]:
    """The global ranks of a mesh."""
    return mesh.mesh.flatten().tolist()


def lines_of(mesh: DeviceMesh) -> list[list[int]]:
    """The global ranks along each dimension of a mesh, on the lines on which this rank is; none if it is on none."""
    here = (mesh.mesh == dist.get_rank()).nonzero()
    if len(here) != 1:
        return []
    at = here[0].tolist()
    return [mesh.mesh[(*at[:dim], slice(None), *at[dim + 1 :])].tolist() for dim in range(mesh.ndim)]


def line_of(replicate: Any) -> bool:
    """Return whether this is a mesh of one dimension with this rank in it, so that its group can be asked for."""
    from torch.distributed.device_mesh import DeviceMesh

    return isinstance(replicate, DeviceMesh) and replicate.ndim == 1 and dist.get_rank() in ranks_of(replicate)


def check_mesh(lies: Mapping[str, tuple[Any, Any]], mesh: DeviceMesh, alone: bool) -> None:
    """Refuse parameters that are not sharded, or not over the same ranks as all others.

    Some may be sharded over fewer of these ranks, if they are cut over the rest in another way, as experts are.

    Args:
        lies: parameters by name, each with what FSDP knows of its mesh.
        mesh: mesh over which rows are to be cut.
        alone: true: there are no replicas; only then parameters may lie on fewer ranks.

    Raises:
        ConfigError: a parameter is not sharded, or not over the same ranks as all others; the message names it.
    """
    ours = ranks_of(mesh)
    for name, (param, info) in lies.items():
        sharded = getattr(info, "shard_process_group", None)
        require(
            sharded is not None, f"mesh of {name}", f"one with shards, as after fully_shard; {ANY_MESH}", "replicas"
        )
        theirs = dist.get_process_group_ranks(sharded)
        whole = sorted(ranks_of(param.device_mesh)) == sorted(ours)
        fewer = alone and whole and info.mesh.ndim == 1 and not any(each.is_replicate() for each in param.placements)
        allowed = f"that of all parameters, ranks {ours}, or cut over the rest of them in another way; {ANY_MESH}"
        require(theirs == ours or fewer, f"mesh of {name}", allowed, f"ranks {theirs}")


def check_replicas(replicate: Any, mesh: DeviceMesh) -> None:
    """Refuse a mesh whose ranks do not hold replicas of this rank's rows, before one is overwritten by another.

    Whether all of them have the same shard is compared by the ranks themselves.

    Raises:
        ConfigError: the argument is no mesh, has more than one dimension, lacks this rank, or shares other ranks with
            the model's mesh.
    """
    from torch.distributed.device_mesh import DeviceMesh

    allowed = "a DeviceMesh of one dimension over the ranks that hold the same rows, such as mesh['replicate']"
    if isinstance(replicate, dist.ProcessGroup):
        allowed += f" or DeviceMesh.from_group(group, {mesh.device_type!r})"
    mistaken = replicate if isinstance(replicate, str | bool) else kind_of(replicate)
    require(isinstance(replicate, DeviceMesh), "replicate", allowed, mistaken)
    require(replicate.ndim == 1, "replicate", allowed, f"one of {replicate.ndim} dimensions")
    me, ranks, ours = dist.get_rank(), ranks_of(replicate), ranks_of(mesh)
    require(me in ranks, "replicate", f"a mesh with the rank that gives it, {me}", f"one of ranks {ranks}")
    shared = sorted(set(ranks) & set(ours))
    if shared != [me]:
        raise ConfigError(
            "replicate must be a mesh without the other ranks of the model's mesh, which hold other "
            f"rows, got ranks {ranks} where the model lies on {ours}; give the other dimension of the mesh, such as "
            "mesh['replicate'] where the model is sharded over mesh['shard']"
        )


def replicas_left_out(mesh: DeviceMesh, replicate: DeviceMesh | None) -> str | None:
    """Advise what to do if ranks of the job take no part and may hold replicas.

    Returns:
        A sentence; None: all ranks take part, or those that do not hold other parameters.

    Raises:
        ConfigError: a dimension of the mesh is named as one of data parallelism, and nobody averages over it.
    """
    ours = set(ranks_of(mesh)) | set(ranks_of(replicate) if replicate is not None else ())
    root, world = root_of(mesh), dist.get_world_size()
    size = mesh.size() * (replicate.size() if replicate is not None else 1)
    if size == world:
        return None
    names = uncovered(root, ours)
    data = [name for name in names if not DATA.isdisjoint(words(name))]
    if data:
        given = f"mesh[{data[0]!r}]" if len(names) == 1 else f"a mesh of one dimension over {' and '.join(names)}"
        raise ConfigError(
            f"replicate must be {given}, or False if the replicas are averaged elsewhere or are meant to differ, got "
            f"{ranks_of(replicate) if replicate is not None else None}: the model is sharded over ranks "
            f"{ranks_of(mesh)}, and nobody would average over {', '.join(data)}"
        )
    apart = names and all(not MODEL.isdisjoint(words(name)) for name in names)
    if apart and root.size() == world:
        return None
    return (
        f"{size} of {world} ranks reduce this model's gradients; it is sharded over ranks {ranks_of(mesh)}. "
        "If others train the same parameters they drift apart: give replicate=, a mesh over the ranks that hold "
        "the same rows; replicate=False says that it is meant"
    )


def root_of(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh from which this one was sliced, or the mesh itself."""
    find = getattr(mesh, "_get_root_mesh", None)
    return find() if find is not None else mesh


def uncovered(root: DeviceMesh, ours: Container[int]) -> list[str]:
    """The names of the dimensions along which there are other ranks than those of this mesh."""
    lines = zip(root.mesh_dim_names or (), lines_of(root), strict=False)
    return [name for name, line in lines if any(rank not in ours for rank in line)]


def words(name: str) -> set[str]:
    """Split the name of a dimension into parts: ``dp_replicate`` is of ``dp`` and ``replicate``."""
    return set(re.split(r"[^a-z]+", name.lower()))
