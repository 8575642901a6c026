"""Work of the ranks in the tests of a loss in chunks; each function is one launch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from gradwire.frontends.fsdp import FSDPState, compress_fsdp
from tests.integrations.fsdp_jobs import gradients

WORDS, WIDTH, CHUNKS, STEPS = 20, 16, 4, 3

SETTINGS = {
    "once": {"each": False},
    "each chunk": {"each": True},
    "bfloat16": {"each": False, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
}
"""Ways to reduce the last layer: after the last chunk, or after each of them; and in which precision."""


class Words(nn.Module):
    """A language model whose last layer the loss calls, chunk by chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The hidden states that the last layer gets."""
        hidden: Tensor = self.norm(self.blocks(self.words(tokens)))
        return hidden


class Chunks(torch.autograd.Function):
    """The backward pass of the hidden states, whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        _, gradient, loss = given
        ctx.save_for_backward(gradient)
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return ctx.saved_tensors[0], None, None


def model_on(mesh: DeviceMesh, **options: Any) -> Words:
    """Sharded as trainers shard it: the last norm and the last layer together."""
    torch.manual_seed(0)
    model = Words()
    for block in (model.blocks[0], model.blocks[2]):
        fully_shard(block, mesh=mesh, **options)
    fully_shard([model.norm, model.last], mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def batch(rank: int) -> tuple[Tensor, Tensor]:
    data = torch.Generator().manual_seed(rank)
    tokens = torch.randint(WORDS, (2, 2 * CHUNKS + 1), generator=data)
    return tokens[:, :-1], tokens[:, 1:]


def loss_in_chunks(model: Words, tokens: Tensor, targets: Tensor, *, each: bool) -> Tensor:
    """The loss by whose backward pass the rest of the model gets its gradients; the last layer has its own then."""
    last, hidden = model.last, model(tokens)
    assert isinstance(last, FSDPModule)
    parts = [part.detach().requires_grad_() for part in hidden.chunk(CHUNKS, 1)]
    total = torch.zeros(())
    last.set_reshard_after_forward(False)
    last.set_reshard_after_backward(False)
    for number, (part, wanted) in enumerate(zip(parts, targets.chunk(CHUNKS, 1), strict=True), 1):
        last.set_requires_gradient_sync(each or number == CHUNKS, recurse=False)
        loss = loss_of(model, part, wanted) / CHUNKS
        loss.backward()
        total += loss.detach()
    last.set_reshard_after_forward(True)
    last.set_reshard_after_backward(True)
    last.reshard()
    found: Tensor = Chunks.apply(hidden, torch.cat([part.grad for part in parts], 1), total)  # type: ignore[no-untyped-call]
    return found


def loss_of(model: Words, hidden: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model.last(hidden).float().flatten(0, 1), wanted.flatten())


def steps_of(model: Words, rank: int, *, each: bool) -> list[dict[str, Tensor]]:
    """The gradients of equal steps, for nothing is trained."""
    found = []
    for _ in range(STEPS):
        model.zero_grad()
        loss_in_chunks(model, *batch(rank), each=each).backward()
        found.append({name: grad.clone() for name, grad in gradients(model).items()})
    return found


def whole_loss(rank: int) -> dict[str, Tensor]:
    """The mean gradient of a model that is in one piece, by a loss in one piece."""
    torch.manual_seed(0)
    model = Words()
    tokens, targets = batch(rank)
    loss_of(model, model(tokens), targets).backward()
    found = {}
    for name, param in model.named_parameters():
        assert param.grad is not None
        dist.all_reduce(param.grad)
        found[name] = param.grad / dist.get_world_size()
    return found


def flat(rank: int) -> dict[str, Any]:
    """By FSDP alone, and with a state that compresses nothing, and one that keeps back much."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    told: dict[str, Any] = {"reference": whole_loss(rank)}
    for name, setting in SETTINGS.items():
        options = {key: value for key, value in setting.items() if key != "each"}
        each = bool(setting["each"])
        told[name] = {"alone": steps_of(model_on(mesh, **options), rank, each=each)}
        for method in ("none", "topk"):
            model = model_on(mesh, **options)
            state = compress_fsdp(model, method, min_numel=0)
            told[name][method] = steps_of(model, rank, each=each)
            told[name][f"{method}, steps"] = state.metrics()["steps"]
            told[name][f"{method}, waits"] = waiting(state)
    return told


def waiting(state: FSDPState) -> dict[str, Tensor]:
    """The mean over the ranks of what waits of each parameter, one shard after the other."""
    found = {}
    for name, kept in state.exchange.residuals.worker.get("residual", {}).items():
        mean = kept / dist.get_world_size()
        dist.all_reduce(mean)
        found[name] = mean
    return found


def replicas(rank: int) -> dict[str, Any]:
    """FSDP's own hybrid sharding with two replicas, and with a state that averages between them."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    told = {"alone": steps_of(model_on(mesh), rank, each=False)}
    model = model_on(mesh)
    compress_fsdp(model, "none", min_numel=0)
    return told | {"none": steps_of(model, rank, each=False)}


def closed(rank: int) -> list[bool]:
    """A state is closed, and another one attached; and at last nothing of ours is left on the module."""
    model = model_on(init_device_mesh("cpu", (dist.get_world_size(),)))
    compress_fsdp(model, "topk", min_numel=0).close()
    state = compress_fsdp(model, "none", min_numel=0)
    found = steps_of(model, rank, each=False)
    alone = steps_of(model_on(init_device_mesh("cpu", (dist.get_world_size(),))), rank, each=False)
    state.close()
    return [torch.equal(mine[name], theirs[name]) for mine, theirs in zip(found, alone, strict=True) for name in mine]
