"""Work of the ranks in the tests of gradients that no method takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from gradwire.contrib.fsdp1 import compress_fsdp1
from gradwire.frontends.ddp import GradwireState, compress_ddp, gradwire_hook
from gradwire.frontends.fsdp import compress_fsdp
from gradwire.frontends.optimizer import compress_optimizer
from tests.heard import heard

WIDTH = 48


class Double(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False).double()
        self.spoilt = False
        """True: the gradient of the first row of ``other`` is not finite, and that of ``first`` is."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).double()
        hidden.register_hook(lambda grad: torch.nan_to_num(grad, 0.0, 0.0, 0.0))
        result = self.other(hidden)
        if self.spoilt:
            result.register_hook(lambda grad: grad * torch.tensor([torch.inf] + [1.0] * (WIDTH - 1)))
        return result


class Rotation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.complex64) @ self.weight).abs()


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(WIDTH, WIDTH), Rotation()

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.first(x))


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.other, self.first = nn.Embedding(90, WIDTH, sparse=True), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.other((x[:, :3].abs() * 30).long().clamp(max=89)).sum(1))


MODELS: dict[str, Callable[[], nn.Module]] = {"double": Double, "complex": Complex, "sparse": Sparse}


def made(kind: str, seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[kind]()


def loss(model: nn.Module, step: int, rank: int, size: int = 4) -> Tensor:
    return model(torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))).square().mean()


def values(tensor: Tensor) -> Tensor:
    """A tensor as the process group can gather it: whole, dense, real."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    dense = whole.to_dense() if whole.is_sparse else whole
    return (torch.view_as_real(dense) if dense.is_complex() else dense).detach().contiguous()


def alike(model: nn.Module) -> bool:
    """Return whether all ranks have the same bits."""
    for param in model.parameters():
        mine = values(param)
        all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(all_of_them, mine)
        if not all(torch.equal(each, mine) for each in all_of_them):
            return False
    return True


def bytes_of(model: nn.Module, world: int) -> int:
    """The bytes that a rank sends for dense gradients in one step of an uncompressed ring."""
    return sum(2 * (world - 1) * param.nbytes // world for param in model.parameters())


def _plain(rank: int, kind: str) -> Tensor:
    """The gradient that plain DDP gives the parameter in the first step."""
    model = DistributedDataParallel(made(kind))
    loss(model, 0, rank).backward()
    return values(model.module.other.weight.grad)


def train_ddp(rank: int, kind: str, method: str, steps: int = 4, **options: Any) -> dict[str, Any]:
    said = heard()
    model = DistributedDataParallel(made(kind))
    state = compress_ddp(model, method, min_numel=1, **options)
    optimizer, exact = torch.optim.SGD(model.parameters(), lr=1e-3), False
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, step, rank).backward()
        if step == 0:
            exact = torch.equal(values(model.module.other.weight.grad), _plain(rank, kind))
        optimizer.step()
    figures = state.metrics()
    state.close()
    return {
        "alike": alike(model),
        "exact": exact,
        "figures": figures,
        "said": [each for each in said if "as torch sends" in each],
        "bytes": steps * bytes_of(model, dist.get_world_size()),
    }


def train_loop(rank: int, kind: str, method: str) -> dict[str, Any]:
    """A plain loop; in its third step rank 0 does not use the parameter, and in its last nobody does."""
    model = made(kind, seed=rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    state, seen = compress_optimizer(optimizer, model, method, min_numel=1), []
    for step in range(4):
        optimizer.zero_grad()
        loss(model, step, rank).backward()
        if step == 3 or (step == 2 and rank == 0):
            model.other.weight.grad = None
        own = torch.zeros_like(values(model.other.weight)) if (g := model.other.weight.grad) is None else values(g)
        mean = own.clone()
        dist.all_reduce(mean.div_(2))
        optimizer.step()
        grad = model.other.weight.grad
        seen.append(grad is None if step == 3 else torch.equal(values(grad), mean))
    figures = state.metrics()
    state.close()
    return {"alike": alike(model), "seen": seen, "figures": figures}


def not_finite(rank: int, kind: str) -> dict[str, Any]:
    """A value that is not finite, on one rank, in a gradient that no method takes: all ranks take the step back."""
    model, scaler = DistributedDataParallel(made(kind)), torch.amp.GradScaler("cpu", init_scale=2.0)
    state = compress_ddp(model, "topk", ratio=0.1, min_numel=1, scaler=scaler)
    optimizer, norms = torch.optim.SGD(model.parameters(), lr=1e-3), []
    for step in range(3):
        optimizer.zero_grad()
        bad = step == 1 and rank == 1
        hook = model.module.other.weight.register_hook(lambda grad: grad * torch.inf) if bad else None
        scaler.scale(loss(model, step, rank)).backward()
        scaler.step(optimizer)
        scaler.update(2.0)
        if hook is not None:
            hook.remove()
        state.exchange.end_step()
        norms.append(state.metrics()["residual_norm"])
    told = state.metrics()["nonfinite_steps"]
    state.close()
    return {"alike": alike(model), "norms": norms, "nonfinite": told}


def auto_not_finite(rank: int) -> dict[str, Any]:
    """The same where auto leaves steps to DDP: each rank counts its own, and hears of the others'."""
    model = DistributedDataParallel(made("double"))
    state = compress_ddp(model, "auto", min_numel=1)
    for step in range(8):
        hook = model.module.other.weight.register_hook(lambda grad: grad * torch.inf) if step == 2 and rank else None
        loss(model, step, rank).backward()
        model.zero_grad()
        if hook is not None:
            hook.remove()
    state.change("none")
    told = state.metrics()["nonfinite_steps"]
    state.close()
    return {"nonfinite": told}


def resume(rank: int, folder: str) -> dict[str, Any]:
    """Six steps in one go, and three and three with a new model between them."""
    whole, parts = _steps(rank, made("double"), range(6), None)[0], None
    model = made("double")
    _, parts = _steps(rank, model, range(3), parts)
    torch.save(parts, Path(folder) / f"{rank}.pt")
    _steps(rank, model, range(3, 6), torch.load(Path(folder) / f"{rank}.pt"))
    pairs = zip(whole.parameters(), model.parameters(), strict=True)
    return {"same": all(torch.equal(one, other) for one, other in pairs), "alike": alike(model)}


def _steps(rank: int, model: nn.Module, steps: range, state: Mapping[str, Any] | None) -> tuple[nn.Module, Any]:
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.001)  # type: ignore[arg-type]
    exchange = compress_ddp(wrapped, "topk", ratio=0.1, min_numel=1)
    if state is not None:
        exchange.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in steps:
        optimizer.zero_grad()
        loss(wrapped, step, rank).backward()
        optimizer.step()
    saved = exchange.state_dict()
    exchange.close()
    return model, saved


def sharded(rank: int, kind: str, form: str, method: str) -> dict[str, Any]:
    """FSDP2, FSDP2 between replicas, or FSDP1, with a module of its own for the parameter."""
    model, world = made(kind), dist.get_world_size()
    size = bytes_of(model, world)
    if form == "fsdp1":
        device = torch.device("cpu")
        model.other = FullyShardedDataParallel(model.other, device_id=device)
        model = FullyShardedDataParallel(model, device_id=device)
        state: Any = compress_fsdp1(model, method, min_numel=1)
    else:
        shape, names = ((world, 1), ("replicate", "shard")) if form == "replicas" else ((world,), ("shard",))
        mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)
        for each in (model.other, model):
            fully_shard(each, mesh=mesh)
        state = compress_fsdp(model, method, min_numel=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(3):
        optimizer.zero_grad()
        loss(model, step, rank).backward()
        optimizer.step()
    figures = state.metrics()
    state.close()
    same = True if form == "fsdp1" else alike(model)
    return {"alike": same, "figures": figures, "bytes": 3 * size, "name": next(iter(state.uncompressed))}


def sharded_not_finite(rank: int) -> dict[str, Any]:
    """A value that is not finite reaches the owner of one shard: all ranks take the step back."""
    model, scaler = made("double"), torch.amp.GradScaler("cpu", init_scale=2.0)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for each in (model.other, model):
        fully_shard(each, mesh=mesh)
    state = compress_fsdp(model, "twobit", threshold=1e-4, min_numel=1, scaler=scaler)
    norms = []
    for step in range(2):
        model.spoilt = step == 1 and rank == 1
        scaler.scale(loss(model, step, rank)).backward()
        state.exchange.end_step()
        norms.append(state.metrics()["residual_norm"])
    told = state.metrics()["nonfinite_steps"]
    state.close()
    return {"norms": norms, "nonfinite": told}


class OwnTable(nn.Module):
    """A table of which each rank has a part of its own, and a layer that all ranks share."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer, self.own = nn.Linear(WIDTH, WIDTH), nn.Module()
        self.own.table = nn.Parameter(torch.ones(3 + rank, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.own.table.sum(0)


def ignored(rank: int) -> dict[str, Any]:
    """Parameters that DDP was told to ignore: nobody sends them, whatever they are."""
    told: dict[str, Any] = {}
    for form in ("compress_ddp", "exclude", "plain form", "before DDP"):
        torch.manual_seed(0)
        net = OwnTable(rank)
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["own.table"])
        model, state = DistributedDataParallel(net), None
        if form == "before DDP":
            del model
            state = GradwireState(net, "qsgd", min_numel=1)
            model = DistributedDataParallel(net)
        elif form == "plain form":
            state = GradwireState(model.module, "qsgd", min_numel=1)
        else:
            patterns = {"exclude": ["own.*"]} if form == "exclude" else {}
            state = compress_ddp(model, "qsgd", min_numel=1, **patterns)
        if "compress" not in form and form != "exclude":
            model.register_comm_hook(state, gradwire_hook)
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(rank))
        model(x).sum().backward()
        told[form] = {
            "own": torch.equal(net.own.table.grad, torch.full_like(net.own.table, 4.0)),
            "alike": alike(net.layer),
            "sent": state.metrics()["dense_bytes"],
            "layer": bytes_of(net.layer, 2),
            "kept": sorted(state.sizes),
        }
        state.close()
    return told
