"""Grid of the ranks of a sharded model: which of them hold other rows, which the same rows, which other parts.

Invariants:
    * A rank has a line of ranks along which the rows of a parameter are cut, perhaps one along which they are repeated,
      and perhaps others along which tensor parallelism has cut the parameter before.
    * Gradients are reduced along the first two only. So a rank's residuals belong to its part along the other lines,
      and a checkpoint has a place for each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.auto.step_record import Moment, moment
from gradwire.engine.exchange import Exchange
from gradwire.engine.shards import Sharded
from gradwire.errors import require
from gradwire.frontends._meshes import lines_of, ranks_of
from gradwire.frontends.ownership import release
from gradwire.frontends.setup import agree_along, backend_of
from gradwire.frontends.sharded import multiplier
from gradwire.metrics import Metrics
from gradwire.transport.channel import Channel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["InnerReduceScatter", "RankGrid", "agreed_along", "cut_of", "grid_of"]


@dataclass(frozen=True)
class RankGrid:
    """The place of this rank in the grid.

    Args:
        shard: the mesh of one dimension over whose ranks the rows are cut.
        replicate: group over the ranks with the same rows, or what the caller gave in its place; None: there is none.
        native: true: FSDP would average over the replicas by itself.
        part_groups: groups of the dimensions along which ranks hold other parts of the parameters.
        part: number of this rank's part of the parameters, 0 <= part < parts.
        parts: number of parts.
    """

    shard: DeviceMesh
    replicate: Any = None
    native: bool = False
    part_groups: Sequence[dist.ProcessGroup] = field(default=())
    part: int = 0
    parts: int = 1


def grid_of(
    infos: Sequence[Any], sharded: Mapping[str, Any], replicate: DeviceMesh | Literal[False] | None
) -> RankGrid:
    """Find the place of this rank on the mesh of a module.

    Args:
        infos: mesh information of FSDP for each module, of which the largest mesh counts; none: the parameters say
            where they lie.
        sharded: the model's parameters, by name.
        replicate: mesh that the caller gave.
    """
    info: Any = max(infos, key=lambda each: each.mesh.size()) if infos else None
    mesh: DeviceMesh = info.mesh if info is not None else next(iter(sharded.values())).device_mesh
    shard, outer = mesh, replicate if replicate is not False else None
    native = info is not None and info.replicate_mesh_dim is not None and mesh.ndim == 2
    if native:
        shard = one_line(mesh, info.shard_mesh_dim)
        if replicate is None:
            outer = one_line(mesh, info.replicate_mesh_dim)
    ours = set(ranks_of(mesh)) | (set(ranks_of(outer)) if outer is not None and hasattr(outer, "mesh") else set())
    whole = max((param.device_mesh for param in sharded.values()), key=lambda each: each.ndim)
    beside, part, parts = list[dist.ProcessGroup](), 0, 1
    for dim, line in enumerate(lines_of(whole)):
        if not ours.issuperset(line):
            beside.append(whole.get_group(dim))
            part, parts = part * len(line) + line.index(dist.get_rank()), parts * len(line)
    return RankGrid(shard, outer, native, beside, part, parts)


def one_line(mesh: DeviceMesh, dim: int) -> DeviceMesh:
    """View one dimension of a mesh as a mesh of its own."""
    names = mesh.mesh_dim_names
    return mesh if mesh.ndim == 1 else mesh[cast(Any, names)[dim]]


def cut_of(name: str, param: Any, world: int) -> Sharded:
    """Describe how FSDP divides a parameter, of which tensor parallelism may have left this rank a part."""
    return Sharded(name, tuple(param._orig_size), world, param.fsdp_placement.dim)


def agreed_along(make: Callable[[], Exchange], groups: Iterable[dist.ProcessGroup], device: torch.device) -> Exchange:
    """Make the exchange of this rank's line, after those of the lines beside it have made the same one.

    Without that, a mistake of one rank would be an error on the ranks of its line only, and the others would
    train on, or wait for them.

    Args:
        groups: groups that cross the lines, in the same order on all ranks.

    Raises:
        Exception: whatever ``make`` raised here, or a GroupError for what it raised elsewhere.
    """
    made, failure = list[Exchange](), None
    try:
        made.append(make())
    except Exception as error:
        # Not raised yet, so that the ranks of every group hear of it and do not wait.
        failure = error
    try:
        channels = (Channel(group, Metrics()) for group in groups)
        agree_along(channels, "set-up", lambda: made[0].describe([]), device, failure)
    except Exception:
        for exchange in made:
            # It was made here, and the error is that of another line: nobody will use it.
            release(exchange)
        raise
    return made[0]


class InnerReduceScatter:
    """A reduce-scatter like FSDP's own, with the reductions that the backend of the group does not have.

    FSDP asks for a sum with a factor (``PREMUL_SUM``) where ``set_gradient_divide_factor`` was called; only NCCL has
    it. Here the sum is multiplied by the factor where it is.

    Args:
        theirs: reduce-scatter that FSDP called before.
        timed: returns whether the time of a result is wanted.

    Attributes:
        done: time of the last result; None on a CPU, where the thread that computes has waited for it.
    """

    def __init__(self, theirs: Any, timed: Callable[[], bool] = lambda: False) -> None:
        # FSDP asks for the memory of its gradients here.
        self.theirs, self.allocate, self._timed = theirs, theirs.allocate, timed
        self.done: Moment = None

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Any:
        """Reduce as FSDP's own function would."""
        if op == dist.ReduceOp.PREMUL_SUM and backend_of(group, input_tensor.device) == "gloo":
            require(not async_op, "async_op of FSDP's reduce-scatter", "False on Gloo with a divide factor", async_op)
            self.theirs(output_tensor, input_tensor, group, dist.ReduceOp.SUM)
            output_tensor.mul_(multiplier(op, group.size()))
            made = None
        else:
            made = self.theirs(output_tensor, input_tensor, group, op, async_op)
        self.done = moment(input_tensor.device) if input_tensor.is_cuda and self._timed() else None
        return made
