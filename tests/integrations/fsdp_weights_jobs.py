"""Work of the ranks in the tests of compressed weights; each function is one launch."""

from __future__ import annotations

import gc
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

import gradwire
from tests.integrations.fsdp_rank_grid_jobs import Blocks, backward, build, train
from tests.integrations.jobs import answers

CODES = ("blockwise8", "fp8", "bf16", "blockwise8:block=16")
LAYOUTS = ("flat", "native", "replicate=", "data x tensor")


def gathered(model: nn.Module) -> list[Tensor]:
    """The weights that this rank computes with."""
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in modules:
        module.unshard()
    found = [param.detach().clone() for param in model.parameters()]
    for module in modules:
        module.reshard()
    return [each.full_tensor() if hasattr(each, "full_tensor") else each for each in found]


def masters(model: nn.Module) -> list[Tensor]:
    return [param.full_tensor().detach().clone() for param in model.parameters()]


def exactly(model: nn.Module) -> bool:
    """Compare the weights that are computed with to those that are kept."""
    return all(torch.equal(*pair) for pair in zip(masters(model), gathered(model), strict=True))


def one(layout: str, code: str | None, dtype: torch.dtype | None = None, **options: Any) -> dict[str, Any]:
    """The weights that are computed with, those that are kept, both after a step, and the bytes."""
    model, outer = build(layout, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32))
    state = gradwire.compress_fsdp(model, "none", weights=code, min_numel=64, replicate=outer, **options)
    exact, used = masters(model), gathered(model)
    again = gathered(model)
    same = all(torch.equal(*pair) for pair in zip(exact, masters(model), strict=True))
    once = {name: value for name, value in state.metrics().items() if name.startswith("weights_")}
    trained = train(model, layout, range(3))
    loss = float(sum(loss_of(trained, seed) for seed in range(4)))
    state.close()
    closed = exactly(model)
    anew = gradwire.compress_fsdp(model, "none", weights=code, min_numel=64, replicate=outer, **options)
    # One that is closed twice takes nothing from the other.
    state.close()
    coded = not exactly(model)
    anew.close()
    return {
        "exact": exact,
        "used": used,
        "twice": all(torch.equal(*pair) for pair in zip(used, again, strict=True)),
        "masters": same,
        "bytes": once,
        "trained": trained,
        "loss": loss,
        "closed": closed and exactly(model),
        "coded": coded,
    }


def loss_of(weights: list[Tensor], seed: int) -> Tensor:
    model = Blocks()
    nn.utils.vector_to_parameters(torch.cat([each.flatten() for each in weights]), model.parameters())
    x = torch.randn(64, weights[0].shape[1], generator=torch.Generator().manual_seed(1000 + seed))
    return model(x).square().mean().detach()


def weights(rank: int) -> dict[Any, Any]:
    gc.freeze()
    told: dict[Any, Any] = {}
    for layout in LAYOUTS:
        for code in (None, *CODES) if layout == "flat" else (None, "blockwise8"):
            told[layout, str(code)] = one(layout, code)
    told["flat", "exclude"] = one("flat", "blockwise8", exclude=["up.*"])
    told["flat", "bfloat16"] = one("flat", "blockwise8", torch.bfloat16)
    told["flat", "both"] = both()
    told["flat", "auto"] = unnamed()
    model, _ = build("flat")
    told["refused"] = answers(
        {
            "random": lambda: gradwire.compress_fsdp(model, "none", weights="qsgd:bits=4"),
            "memory": lambda: gradwire.compress_fsdp(model, "none", weights="topk"),
            "ranks": lambda: gradwire.compress_fsdp(model, "none", weights="fp8" if rank == 2 else "blockwise8"),
        }
    )
    return told


def unnamed() -> dict[str, Any]:
    """Weights alone are named; what becomes of the gradients is decided by itself."""
    model, _ = build("flat")
    state = gradwire.compress_fsdp(model, weights="blockwise8", min_numel=64)
    start = float(loss_of(masters(model), 0))
    trained = train(model, "flat", range(6))
    return {"start": start, "end": float(loss_of(trained, 0)), "trained": trained, **state.metrics()}


def both() -> dict[str, Any]:
    """Gradients and weights compressed, resharded into halves in the backward pass, with activations computed again."""
    model, _ = build("flat", reshard_after_forward=2)
    state = gradwire.compress_fsdp(model, "qsgd", bits=4, weights="blockwise8", min_numel=64)
    start = float(loss_of(masters(model), 0))
    trained = train(model, "flat", range(6))
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 48))
    backward(model, "flat")
    told = {"start": start, "end": float(loss_of(trained, 0)), "trained": trained, **state.metrics()}
    dist.barrier()
    return told
