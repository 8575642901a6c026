"""Work of the ranks in the tests of FSDP on every kind of mesh; each function is one launch."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from itertools import product
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_common
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

import gradwire
from gradwire.frontends.fsdp import FSDPState, compress_fsdp
from tests.integrations.checkpoint_jobs import through_a_file
from tests.integrations.fsdp_factor_jobs import divide
from tests.integrations.jobs import answers

LAYOUTS = ("flat", "replicate=", "native", "data x tensor")
FACTORS = (None, 1.0, 3.0)
DTYPES = ("float32", "bfloat16")
SETTINGS = tuple(product(LAYOUTS, FACTORS, DTYPES))
CONTEXT = "data x context"
"""Ranks of context parallelism hold the same rows as those of data parallelism: FSDP shards over both as over one."""
WIDTH = 48
CODE = {"compressor": "blockwise8"}


class Blocks(nn.Module):
    """Two layers that tensor parallelism cuts by columns and by rows, and one that it leaves whole."""

    def __init__(self, constant: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, 10, bias=False)
        self.constant = constant
        for param in self.parameters() if constant else ():
            nn.init.constant_(param, 2.0**-6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        return self.head(self.down(hidden if self.constant else hidden.relu()))


@functools.cache
def place(layout: str) -> tuple[DeviceMesh, DeviceMesh | None, DeviceMesh | None]:
    """Make, once, the mesh for ``fully_shard``, what ``replicate=`` gets, and the mesh of tensor parallelism."""
    if layout == "flat":
        return init_device_mesh("cpu", (dist.get_world_size(),)), None, None
    if layout == "data x tensor":
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
        return mesh["dp"], None, mesh["tp"]
    if layout == CONTEXT:
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp_shard", "cp"))
        return mesh["dp_shard", "cp"]._flatten("dp_shard_cp"), None, None
    if layout in ("native x context", "replicate x context"):
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "cp"))
        mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
        if layout == "native x context":
            return mesh["dp_replicate", "dp_shard_cp"], None, None
        return mesh["dp_shard_cp"], mesh["dp_replicate"], None
    if layout in ("replicate x shard x tensor", "native x tensor"):
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
        if layout == "native x tensor":
            return mesh["replicate", "shard"], None, mesh["tp"]
        return mesh["shard"], mesh["replicate"], mesh["tp"]
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return (mesh, None, None) if layout == "native" else (mesh["shard"], mesh["replicate"], None)


def build(layout: str, constant: bool = False, plain: bool = False, **options: Any) -> tuple[nn.Module, Any]:
    """A sharded model, and what ``replicate=`` gets.

    Args:
        plain: hybrid sharding is FSDP's own.
    """
    native = {
        "replicate=": "native",
        "replicate x shard x tensor": "native x tensor",
        "replicate x context": "native x context",
    }
    mesh, outer, tensor = place(native.get(layout, layout) if plain else layout)
    model: nn.Module = Blocks(constant)
    if tensor is not None:
        parallelize_module(model, tensor, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for name in ("up", "down"):
        layer = getattr(model, name)
        setattr(model, name, fully_shard(layer, mesh=mesh, **options))
    model = fully_shard(model, mesh=mesh, **options)
    if tensor is not None:
        # FSDP cuts the rows of a part whose rows tensor parallelism has cut before.
        assert any(isinstance(each, _StridedShard) for each in cast(Any, model).up.weight.placements)
    return model, outer


def data_rank(layout: str) -> int:
    """Ranks of one group of tensor parallelism compute with the same data."""
    return dist.get_rank() // 2 if "tensor" in layout else dist.get_rank()


def backward(model: nn.Module, layout: str, step: int = 0) -> None:
    rank = data_rank(layout)
    if isinstance(model, Blocks) and model.constant:
        model(torch.full((2, WIDTH), 0.25 * (rank + 1))).float().sum().backward()
        return
    generator = torch.Generator().manual_seed(100 * step + rank)
    model(torch.randn(8, WIDTH, generator=generator)).float().square().mean().backward()


def gradients(model: nn.Module) -> list[Tensor]:
    return [param.grad.full_tensor().clone() for param in model.parameters()]


def reduced(layout: str, factor: float | None, dtype: str, constant: bool, method: str | None) -> list[Tensor]:
    policy = MixedPrecisionPolicy(reduce_dtype=getattr(torch, dtype))
    model, outer = build(layout, constant, plain=method is None, mp_policy=policy)
    state = compress_fsdp(model, method, min_numel=0, replicate=outer) if method is not None else None
    # Gloo has no PREMUL_SUM: FSDP alone needs help there, and only there.
    divide(model, factor, summed=method is None)
    backward(model, layout)
    found = gradients(model)
    if state is not None:
        state.close()
    return found


class Experts(nn.Module):
    """A layer of which each half of the ranks has other experts, between two that all have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        self.weight = nn.Parameter(torch.randn(4, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        own = weight.to_local() if isinstance(weight, DTensor) else weight
        return self.last(torch.einsum("bi,eio->bo", self.first(x).relu(), own).relu())


@functools.cache
def two_meshes() -> tuple[DeviceMesh, DeviceMesh]:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "ep")), init_device_mesh("cpu", (4,))


def experts(per_parameter: bool) -> tuple[nn.Module, Any]:
    """Experts are cut over one dimension of the mesh and sharded over the other, all else is sharded over both.

    Args:
        per_parameter: true: both ways in one module, by ``shard_placement_fn``.
    """
    (mesh, every), model = two_meshes(), Experts()
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh["ep"], [Shard(0)]))
    if per_parameter:
        inner, outer = FSDPMeshInfo(mesh["fsdp"], shard_mesh_dim=0), FSDPMeshInfo(every, shard_mesh_dim=0)
        return fully_shard(
            model,
            mesh=every,
            shard_placement_fn=lambda param: _fsdp_common.ShardPlacementResult(  # Newer than torch 2.11.
                Shard(0), inner if isinstance(param, DTensor) else outer
            ),
        ), mesh
    for layer in (model.first, model.last):
        fully_shard(layer, mesh=every)
    return fully_shard(model, mesh=mesh["fsdp"]), mesh


def mixture(rank: int, folder: str) -> dict[Any, Any]:
    """Modules and parameters on two meshes, with a factor for all; and what is told of a mistake."""
    gc.freeze()
    told: dict[Any, Any] = {}
    for per_parameter, factor in product((False, True), FACTORS):
        for method, weights in ((None, None), ("none", None), ("blockwise8", None), ("none", "bf16")):
            model, _ = experts(per_parameter)
            state = compress_fsdp(model, method, min_numel=0, weights=weights) if method is not None else None
            divide(model, factor, summed=method is None)
            backward(model, "flat")
            told[per_parameter, factor, str(method if weights is None else weights)] = gradients(model)
            if state is not None:
                told[per_parameter, factor, "ratio", method] = state.metrics()["ratio"]
            if state is not None and weights is not None:
                told[per_parameter, factor, "ratio", "weights"] = state.metrics()["weights_ratio"]
            if state is not None:
                state.close()
    told["resumed"] = all(resumed_with(lambda: experts(True), "flat", f"{folder}/experts"))
    model, _ = experts(False)
    fresh = compress_fsdp(model, "topk", ratio=0.1, min_numel=0)
    saved = {**gradwire.read_checkpoint(f"{folder}/experts"), "world": 8}
    told |= answers({"reshard": lambda: fresh.load_state_dict(saved, on_resize="reshard")})
    return told


def matrix(rank: int, layouts: tuple[str, ...] = (*LAYOUTS, CONTEXT)) -> dict[Any, Any]:
    gc.freeze()  # Each set-up looks through all objects.
    return {
        (layout, factor, dtype): {
            (str(method), constant): reduced(layout, factor, dtype, constant, method)
            for constant in (False, True)
            for method in (None, "none", "blockwise8")
        }
        for layout in layouts
        for factor, dtype in product(FACTORS, DTYPES)
    }


CUBES = ("replicate x shard x tensor", "native x tensor", "replicate x context", "native x context")


def cube(rank: int) -> dict[Any, Any]:
    """Eight ranks in three dimensions."""
    return matrix(rank, CUBES)


def train(model: nn.Module, layout: str, steps: range, **how: bool) -> list[Tensor]:
    """Three micro-batches a step; only the last one is reduced, or only it between the replicas."""
    assert isinstance(model, FSDPModule)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for step in steps:
        for micro in range(3):
            if how.get("inside"):
                model.set_requires_all_reduce(micro == 2)
            else:
                model.set_requires_gradient_sync(micro == 2)
            backward(model, layout, 3 * step + micro)
        optimizer.step()
        optimizer.zero_grad()
    return [param.full_tensor().detach().clone() for param in model.parameters()]


def meta(layout: str) -> nn.Module:
    with torch.device("meta"):
        model, _ = build(layout)
    return model


def fill(model: nn.Module) -> None:
    values = Blocks().state_dict()
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(distribute_tensor(values[name], param.device_mesh, param.placements))


def ways(layout: str, way: str, method: str | None) -> list[Tensor]:
    """Train in one of the ways.

    Args:
        method: method for gradients; or "weights", which compresses these alone.
    """
    weights = {"compressor": "none", "weights": "bf16"} if method == "weights" else {"compressor": method}
    inside = {"inside": True} if way == "inside" else {}
    if way == "meta":
        model = meta(layout)
        if method is not None:
            compress_fsdp(model, min_numel=0, **weights)
        fill(model)
        return train(model, layout, range(2))
    options: dict[str, Any] = {"reshard_after_forward": False} if way == "kept" else {}
    if way == "resharded":
        options = {"reshard_after_forward": 2}
    model, outer = build(layout, **options)
    if way == "checkpointed":
        checkpoint_wrapper(model.up)
    if way == "compiled":
        for layer in (model.up, model.down):
            layer.compile(backend="aot_eager")
    if method is not None:
        compress_fsdp(model, min_numel=0, replicate=outer, **weights)
    return train(model, layout, range(2), **inside)


WAYS = {
    "flat": ("resharded",),
    "native": ("accumulated", "inside", "kept", "meta", "checkpointed", "compiled"),
    "data x tensor": ("accumulated", "kept", "checkpointed", "compiled"),
}
CASES = tuple((layout, way) for layout, names in WAYS.items() for way in names)


def trained(rank: int, folder: str) -> dict[Any, Any]:
    """Each way by FSDP alone and by ours, which compresses nothing, and something."""
    gc.freeze()
    told: dict[Any, Any] = {
        (layout, way): {str(method): ways(layout, way, method) for method in (None, "none", "fp16", "weights")}
        for layout, way in CASES
    }
    told["closed"] = closed()
    told["resumed"] = {layout: resumed(layout, folder) for layout in ("native", "data x tensor")}
    told["one rank"] = one_rank(rank)
    return told


def closed() -> dict[str, Any]:
    """A closed state leaves the module to the next one; both find it where fully_shard put it."""
    model, _ = build("native")
    before = [group.mesh_info for group in groups_of(model)]
    first = compress_fsdp(model, **CODE)
    first.close()
    again = compress_fsdp(model, "fp16", min_numel=0)
    backward(model, "native")
    said = answers({"": lambda: compress_fsdp(model, "fp16")})[""]
    again.close()
    return {"same": [group.mesh_info is was for group, was in zip(groups_of(model), before, strict=True)], "said": said}


def groups_of(model: nn.Module) -> list[Any]:
    return [
        group
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in module._get_fsdp_state()._fsdp_param_groups
    ]


def resumed(layout: str, folder: str) -> bool:
    """A distributed checkpoint of model and residuals: the next steps are those of the unbroken run, bit for bit."""

    return all(resumed_with(lambda: build(layout), layout, f"{folder}/{layout.replace(' ', '')}"))


def resumed_with(make: Callable[[], tuple[nn.Module, Any]], layout: str, path: str) -> list[bool]:
    """Compare the bits of each parameter from a checkpoint of all ranks and from the rank's own state."""

    def start() -> tuple[nn.Module, FSDPState]:
        model, outer = make()
        replicas = outer if layout == "replicate=" else None
        return model, compress_fsdp(model, "topk", ratio=0.1, min_numel=0, replicate=replicas)

    model, state = start()
    train(model, layout, range(2))
    dcp.save({"model": model, "gradwire": state}, checkpoint_id=path)
    own = through_a_file(state.state_dict())
    unbroken = train(model, layout, range(2, 4))
    same = []
    for source in ("checkpoint", "own"):
        again, fresh = start()
        dcp.load({"model": again}, checkpoint_id=path)
        fresh.load_state_dict(gradwire.read_checkpoint(path) if source == "checkpoint" else own)
        same += [torch.equal(*pair) for pair in zip(unbroken, train(again, layout, range(2, 4)), strict=True)]
    return same


def one_rank(rank: int) -> str:
    """A mistake of one rank is told to those, too, that hold other parts of the parameters."""
    model, _ = build("data x tensor")
    ratio = 0.1 if rank == 3 else 0.2
    return answers({"": lambda: compress_fsdp(model, "topk", ratio=ratio)})[""]


def load_parts(rank: int, folder: str) -> dict[str, str]:
    """The checkpoint of 2 x 2 ranks on 1 x 2, and where nothing is cut by tensor parallelism."""
    told = {}
    for layout in ("data x tensor", "flat"):
        model, _ = build(layout)
        state = compress_fsdp(model, "topk", ratio=0.1, min_numel=0)
        read = gradwire.read_checkpoint(f"{folder}/dataxtensor")
        told |= answers(
            {
                f"{layout} error": lambda s=state, r=read: s.load_state_dict(r),
                f"{layout} reshard": lambda s=state, r=read: s.load_state_dict(r, on_resize="reshard"),
            }
        )
        backward(model, layout)
    return told
