"""Work of the ranks in the tests of compressing process groups; each function is one launch."""

from __future__ import annotations

import contextlib
import functools
from datetime import timedelta
from itertools import product
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import GroupError
from gradwire.frontends._compressing import CompressingGroup
from tests.integrations.fsdp_factor_jobs import divide
from tests.integrations.fsdp_rank_grid_jobs import Blocks, backward, gradients
from tests.integrations.jobs import answers, batch, model_of

CODES = ("bf16-fp32sum", "fp8-two-phase", "blockwise8", "qsgd:bits=4")
OPS = ("sum", "avg", "premul")
DTYPES = ("float32", "bfloat16")
KINDS = ("all_reduce", "reduce_scatter", "all_gather")
N = 12 * 2048
"""Every part of it is of whole blocks."""
CASES = tuple(product(KINDS, CODES, OPS, DTYPES))
FACTOR = 0.3
DIVIDED = tuple(product((1.0, 3.0), DTYPES))
"""Factors by which FSDP is told to divide, and dtypes in which it reduces."""


def operation(op: str) -> Any:
    return {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "premul": dist._make_nccl_premul_sum(FACTOR)}[op]


def value(rank: int, dtype: str) -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(rank)).to(getattr(torch, dtype))


def collectives(rank: int) -> dict[Any, Any]:
    """Each collective with each code: the error over the exact result's length, a checksum, and the bytes."""
    world, told = dist.get_world_size(), dict[Any, Any]()
    for code in CODES:
        group = gradwire.wrap_group(None, code, all_gather=code, min_numel=1000)
        for kind, op, dtype in product(KINDS, OPS, DTYPES):
            exact = torch.stack([value(each, dtype).double() for each in range(world)])
            factor = {"sum": 1.0, "avg": 1 / world, "premul": FACTOR}[op]
            before, given = group.metrics(), value(rank, dtype)
            wanted = factor * exact.sum(0)
            if kind == "all_reduce":
                dist.all_reduce(given, operation(op), group)
                found = given
            elif kind == "reduce_scatter":
                found, wanted = given.new_empty(N // world), wanted.view(world, -1)[rank]
                dist.reduce_scatter_tensor(found, given, operation(op), group)
                assert torch.equal(given, value(rank, dtype))
            else:
                found, wanted = given.new_empty(world * N), exact.view(-1)
                dist.all_gather_into_tensor(found, given, group)
            after = group.metrics()
            if kind == "all_gather" and hasattr(dist, "all_gather_single"):
                # Newer torch has the same under another name.
                dist.all_gather_single(torch.empty_like(found), given, group)
                again = group.metrics()["collectives"] - after["collectives"]
                assert again == after["collectives"] - before["collectives"] == 1
            told[kind, code, op, dtype] = {
                "error": float((found.double() - wanted).norm() / wanted.norm()),
                "found": found.clone() if kind != "reduce_scatter" else None,
                "compressed": after["collectives"] - before["collectives"],
                "sent": after["bytes_sent"] - before["bytes_sent"],
                "dense": after["dense_bytes"] - before["dense_bytes"],
            }
        group.close()
    return told


def outcomes(rank: int) -> dict[str, Any]:
    world, told = dist.get_world_size(), dict[str, Any]()
    group = gradwire.wrap_group(None, "bf16-fp32sum", min_numel=1000, timeout=30)
    told["passed"] = passed(rank, group)
    told["async"] = started(rank, group)
    told["deadlines"] = deadlines(rank, group)
    told["streams"] = streams(rank)
    told["functional"] = functional(rank, group)
    bad = torch.ones(2000)
    if rank == 1:
        bad[7] = float("inf")
    dist.all_reduce(bad, group=group)
    told["nan"] = bool(bad.isnan().all())
    with FakeTensorMode():
        # Nothing is known of how torch treats these; but they must not end the group.
        dist.all_reduce(torch.ones(2000), group=group)
    after = torch.ones(2000)
    dist.all_reduce(after, group=group)
    told["after nan"] = after.tolist() == [float(world)] * 2000
    told["rounded once"] = rounded_once(rank, group)
    apart = init_device_mesh("cpu", (world, 1), mesh_dim_names=("one", "two"))["one"].get_group()
    told["apart"] = [type(apart).__name__, apart.group_name != group.group_name, dist.group.WORLD is apart]
    told["refused"] = answers(
        {
            "memory": lambda: gradwire.wrap_group(None, "topk"),
            "rounds": lambda: gradwire.wrap_group(None, "powersgd"),
            "unknown": lambda: gradwire.wrap_group(None, "bf61"),
            "twice": lambda: gradwire.wrap_group(group, "bf16"),
            "ranks": lambda: gradwire.wrap_group(None, "bf16", min_numel=1000 + rank % 2),
            "least": lambda: gradwire.wrap_group(None, "bf16", min_numel=0),
            "no group": lambda: gradwire.wrap_group("gloo", "bf16"),
        }
    )
    group.close()
    count, plain = group.metrics()["collectives"], torch.full((2000,), 1 + 2.0**-12)
    dist.all_reduce(plain, group=group)
    told["closed"] = group.metrics()["collectives"] == count and float(plain[0]) == world * (1 + 2.0**-12)
    return told


def passed(rank: int, group: CompressingGroup) -> dict[str, bool]:
    """Calls that are not compressed give what the wrapped group gives, and are not counted."""
    world, count = dist.get_world_size(), group.metrics()["collectives"]
    small, large = torch.full((8,), 1 + 2.0**-12), torch.arange(4000)
    dist.all_reduce(small, group=group)
    dist.all_reduce(large, group=group)
    largest = torch.full((4000,), float(rank))
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    sent = torch.full((4000,), rank + 2.0**-12)
    dist.broadcast(sent, 1, group)
    dist.barrier(group)
    got = torch.empty(4000)
    if rank == 0:
        dist.send(torch.full((4000,), 3 + 2.0**-12), 1, group)
    elif rank == 1:
        dist.recv(got, 0, group)
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank}, group)
    rows = torch.empty(world * 4000)
    dist.all_gather_into_tensor(rows, torch.full((4000,), rank + 2.0**-12), group)
    collected = torch.full((world, 8), rank + 0.0)
    dist.gather(collected[rank], list(collected) if rank == 0 else None, 0, group)
    columns = torch.ones(2000, 2)[:, 0]
    dist.all_gather([torch.empty(2000) for _ in range(world)], columns.contiguous(), group)
    scaled, part = torch.ones(8), torch.empty(8)
    dist.all_reduce(scaled, operation("premul"), group)
    dist.reduce_scatter_tensor(part, torch.ones(8 * world), operation("premul"), group)
    doubles = torch.full((4000,), 1 + 2.0**-40, dtype=torch.float64)
    dist.all_reduce(doubles, group=group)
    return {
        "small": small.tolist() == [world * (1 + 2.0**-12)] * 8,
        "integers": torch.equal(large, world * torch.arange(4000)),
        "max": set(largest.tolist()) == {world - 1.0},
        "broadcast": set(sent.tolist()) == {1 + 2.0**-12},
        "received": rank != 1 or set(got.tolist()) == {3 + 2.0**-12},
        "objects": objects == [{"rank": each} for each in range(world)],
        "gathered": float(rows[-1]) == world - 1 + 2.0**-12,
        "collected": collected[:, 0].tolist() == (list(range(world)) if rank == 0 else [rank] * world),
        "scaled": torch.equal(scaled, part) and abs(float(scaled[0]) - FACTOR * world) < 1e-6,
        "doubles": float(doubles[0]) == world * (1 + 2.0**-40),
        "not counted": group.metrics()["collectives"] == count,
    }


def started(rank: int, group: CompressingGroup) -> dict[str, bool]:
    """Many at once, of several sizes, between others that pass through; waited for from the last to the first."""
    world = dist.get_world_size()
    tensors = [torch.full((1000 + 500 * (i % 3),), float(i)) for i in range(24)]
    small = [torch.full((4,), float(i)) for i in range(24)]
    works = []
    for tensor, other in zip(tensors, small, strict=True):
        works.append(dist.all_reduce(tensor, group=group, async_op=True))
        works.append(dist.all_reduce(other, group=group, async_op=True))
    parts = torch.empty(1000)
    works.append(dist.reduce_scatter_tensor(parts, torch.ones(1000 * world), group=group, async_op=True))
    for work in reversed(works):
        work.wait()
    future = dist.all_reduce(last := torch.ones(1000), group=group, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).wait()
    return {
        "tensors": all(set(tensor.tolist()) == {float(i * world)} for i, tensor in enumerate(tensors)),
        "small": all(set(other.tolist()) == {float(i * world)} for i, other in enumerate(small)),
        "parts": set(parts.tolist()) == {float(world)},
        "future": set(doubled.tolist()) == {2.0 * world} and set(last.tolist()) == {float(world)},
        "done": all(work.is_completed() for work in works[::2]),
    }


def rounded_once(rank: int, group: CompressingGroup) -> dict[str, bool]:
    """Sums and means in bfloat16 are those in float32, rounded once; also of DDP's gradients."""
    world = dist.get_world_size()
    one = torch.full((2000,), float(rank == 0))
    dist.all_reduce(one, group=group)
    given = [value(each, "bfloat16")[: 3000 * world] for each in range(world)]
    total = torch.stack(given).float().sum(0)
    found = {"one": set(one.tolist()) == {1.0}}
    for op, factor in (("SUM", 1), ("AVG", world), ("half of a mean", 2 * world)):
        how = dist._make_nccl_premul_sum(1 / factor) if factor > world else getattr(dist.ReduceOp, op)
        wanted, whole, part = (total / factor).bfloat16(), given[rank].clone(), given[rank].new_empty(3000)
        dist.all_reduce(whole, how, group)
        dist.reduce_scatter_tensor(part, given[rank], how, group)
        found |= {f"all_reduce, {op}": torch.equal(whole, wanted)}
        found |= {f"reduce_scatter, {op}": torch.equal(part, wanted.view(world, -1)[rank])}
    model = DistributedDataParallel(nn.Linear(3000 * world, 1, bias=False))
    state = gradwire.compress_ddp(model, "bf16", strategy="two_phase", min_numel=1)
    model(given[rank].float()).backward()
    found["two_phase"] = torch.equal(cast(Tensor, model.module.weight.grad)[0], (total / world).bfloat16().float())
    state.close()
    return found


def deadlines(rank: int, group: CompressingGroup) -> dict[str, Any]:
    """A wait that ends before the others have come; the collective goes on."""
    given, raised = torch.ones(2000), ""
    work: Any = dist.all_reduce(given, group=group, async_op=True) if rank == 0 else None
    for seconds in (timedelta(milliseconds=20), 0.02) if rank == 0 else ():
        try:
            work.wait(seconds)
            raised = "nothing"
        except GroupError as error:
            raised = str(error)
        assert not work.is_completed()
        assert work.exception() is None
    dist.barrier()
    work = work or dist.all_reduce(given, group=group, async_op=True)
    arrived = work.wait(timedelta(seconds=60)) and work.wait(timedelta(0)) and work.is_success()
    return {"raised": raised, "arrived": arrived and set(given.tolist()) == {float(dist.get_world_size())}}


def streams(rank: int) -> dict[str, Any]:
    """The same sum by groups of the same and of other ranks, with a method that draws random numbers."""
    world, pairs = dist.get_world_size(), [dist.new_group([0, other]) for other in range(1, dist.get_world_size())]
    found = {}
    for name, ranks, inner in (
        ("all", range(world), None),
        ("all again", range(world), None),
        *((f"0 and {other}", (0, other), pair) for other, pair in enumerate(pairs, 1)),
    ):
        if rank in ranks:
            group = gradwire.wrap_group(inner, "qsgd:bits=4", min_numel=1000)
            for number in ("first", "second"):
                given = value(0, "float32")
                dist.all_reduce(given, group=group)
                found[name, number] = given / len(ranks)
            group.close()
    return found


def functional(rank: int, group: CompressingGroup) -> dict[str, bool]:
    """Functional collectives reach the group by its name, also where they are compiled."""
    world, count = dist.get_world_size(), group.metrics()["collectives"]
    given = torch.full((4000,), 1 + 2.0**-12)
    eager = funcol.all_reduce(given, "sum", group)
    scattered = funcol.reduce_scatter_tensor(given[: 4000 // world * world], "sum", 0, group)
    eager, scattered = (funcol.wait_tensor(each) for each in (eager, scattered))
    compiled = torch.compile(lambda x: funcol.all_reduce(x, "sum", group) + 0, backend="aot_eager")(given)
    return {
        "untouched": float(given[0]) == 1 + 2.0**-12,
        "eager": set(eager.tolist()) == {float(world)},
        "scattered": set(scattered.tolist()) == {float(world)},
        "compiled": set(compiled.tolist()) == {float(world)},
        "counted": (group.metrics()["collectives"] - count) == 3,
    }


def distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)


def ddp(rank: int, group: Any, seconds: int = 3) -> list[Tensor]:
    model = DistributedDataParallel(model_of(), process_group=group, bucket_cap_mb=0.03)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(seconds):
        optimizer.zero_grad()
        x, y = batch(step, rank)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [param.detach().clone() for param in model.parameters()]


def sharded(mesh: DeviceMesh, way: Any = fully_shard, factor: float | None = None, **options: Any) -> list[Tensor]:
    """Compute the gradients of a model that is sharded, or replicated, over this mesh.

    Args:
        mesh: mesh of plain groups, or of those that compress.
        way: ``fully_shard`` or ``replicate``.
        factor: divisor of FSDP; None: the number of ranks.
        options: options of ``way``, and ``summed``, without which Gloo's own group cannot divide by a factor.
    """
    model, summed = Blocks(), options.pop("summed", False)
    for layer in (model.up, model.down):
        way(layer, mesh=mesh, **options)
    way(model, mesh=mesh, **options)
    if factor is not None:
        divide(model, factor, summed)
    backward(model, "flat")
    found = [param.grad for param in model.parameters()]
    return (
        [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in found]
        if way is replicate
        else (gradients(model))
    )


def models(rank: int) -> dict[str, Any]:
    """Under what training uses: the distance from the same without compression, and how much was compressed."""
    told: dict[str, Any] = {}
    wrap = functools.partial(gradwire.wrap_group, compressor="bf16-fp32sum", min_numel=256)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    plain = {
        "ddp": ddp(rank, None),
        "flat": sharded(init_device_mesh("cpu", (4,))),
        "native": sharded(mesh),
        "replicate": sharded(init_device_mesh("cpu", (4,)), replicate),
    }
    whole = wrap(None)
    inside, between = wrap(mesh["shard"].get_group()), wrap(mesh["replicate"].get_group())
    line = DeviceMesh.from_group(whole, "cpu")
    both = DeviceMesh.from_group([between, inside], "cpu", mesh=mesh.mesh, mesh_dim_names=("replicate", "shard"))
    groups: dict[str, tuple[Any, Any]] = {
        "ddp": (lambda: ddp(rank, whole), [whole]),
        "flat": (lambda: sharded(line), [whole]),
        "native": (lambda: sharded(both), [inside, between]),
        "replicate": (lambda: sharded(line, replicate), [whole]),
    }
    for name, (run, used) in groups.items():
        before = [group.metrics() for group in used]
        found = run()
        after = [group.metrics() for group in used]
        told[name] = {
            "distance": distance(found, plain[name]),
            "found": found,
            "ratios": [
                (new["dense_bytes"] - old["dense_bytes"]) / max(new["bytes_sent"] - old["bytes_sent"], 1)
                for new, old in zip(after, before, strict=True)
            ],
        }
    for name, place, wrapped, used in (("flat", line, None, [whole]), ("native", both, mesh, [inside, between])):
        reference = init_device_mesh("cpu", (4,)) if wrapped is None else wrapped
        for factor, dtype in DIVIDED:
            options = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=getattr(torch, dtype))}
            count = [group.metrics()["collectives"] for group in used]
            found = sharded(place, factor=factor, **options)
            told[name, factor, dtype] = {
                "distance": distance(found, sharded(reference, factor=factor, summed=True, **options)),
                "compressed": [group.metrics()["collectives"] - old for group, old in zip(used, count, strict=True)],
            }
    group = wrap(None, default=True)
    tensor = torch.full((4000,), 1 + 2.0**-12)
    dist.all_reduce(tensor)
    found = sharded(init_device_mesh("cpu", (4,)))
    before = group.metrics()["collectives"]
    trained = ddp(rank, None)
    after = group.metrics()["collectives"]
    told["default"] = {
        "ddp": distance(trained, plain["ddp"]),
        "ddp's": after - before,
        # Of a mesh of two dimensions torch makes groups of its own, which do not compress.
        "native": distance(sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s"))), plain["native"]),
        "untouched": group.metrics()["collectives"] == after,
        "rounded": set(tensor.tolist()) == {4.0},
        "distance": distance(found, plain["flat"]),
        "collectives": group.metrics()["collectives"],
        "backend": dist.get_backend(),
    }
    dist.new_group([0, 1, 2, 3])
    return told


def alone(rank: int) -> list[str]:
    """The error of rank 0 where nobody else takes part."""
    group = gradwire.wrap_group(None, "bf16-fp32sum", min_numel=1000, timeout=2)
    calls = {
        "waits": lambda: dist.all_reduce(torch.ones(4000), group=group),
        "waits later": lambda: cast(Any, dist.all_reduce(torch.ones(4000), group=group, async_op=True)).wait(),
        "functional": lambda: funcol.all_reduce(torch.ones(4000), "sum", cast(Any, group)) + 0,
    }
    heard = []
    for call in calls.values() if rank == 0 else ():
        try:
            call()
            heard.append("nothing")
        except GroupError as error:
            heard.append(str(error))
    if rank == 0:
        work = cast(Any, dist.all_reduce(torch.ones(4000), group=group, async_op=True))
        with contextlib.suppress(RuntimeError):
            work.get_future().wait()
        heard.append(str(work.exception() or "nothing"))
    return heard


def of_wrong_size(rank: int) -> dict[str, float]:
    """The values of an output after a call that must be refused, and after a right one."""
    group = gradwire.wrap_group(None, "bf16-fp32sum", all_gather="bf16", min_numel=1000)
    world, out, left = dist.get_world_size(), torch.full((2000,), 9.0), {}
    for name, call in {
        "long": lambda: dist.reduce_scatter_tensor(out, torch.ones(2000 * world + 500), group=group),
        "short": lambda: dist.reduce_scatter_tensor(out, torch.ones(2000 * world - 10 * world), group=group),
        "gathered": lambda: dist.all_gather_into_tensor(torch.zeros(2000 * world), torch.ones(1990), group=group),
    }.items():
        try:
            call()
            left[name] = -1.0
        except RuntimeError:
            left[name] = float(out.sum())
    dist.reduce_scatter_tensor(out, torch.ones(2000 * world), group=group)
    return {**left, "right": float(out.sum())}
