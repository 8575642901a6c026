"""Work of the ranks in the tests of FSDP's divide factors; each function is one launch."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from gradwire.frontends.fsdp import FSDPState, compress_fsdp, divided_later, managed, parameter_groups
from tests.integrations.checkpoint_jobs import through_a_file
from tests.integrations.fsdp_jobs import gradients, plain, sharded
from tests.integrations.jobs import batch

FACTORS = (None, 1.0, 2.0, 3.0, 8.0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CASES = (
    *((factor, torch.float32) for factor in FACTORS),
    (None, torch.bfloat16),
    (3.0, torch.bfloat16),
    (1.0, torch.float16),
    (8.0, torch.float16),
)
"""Every factor and every dtype; by what is divided in which of the others is compared with torch's own rule."""

CHANGING = (1.0, 8.0, 3.0, None)


def parts_of(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def divide(model: nn.Module, factor: float | None, summed: bool) -> None:
    """Set the factor of every module, as training libraries do: torch's call is for one module."""
    for module in parts_of(model):
        module.set_force_sum_reduction_for_comms(summed)
        if factor is not None:
            module.set_gradient_divide_factor(factor)
        else:
            for group in parameter_groups(module):
                group.gradient_divide_factor = None


def micro_batches(model: nn.Module, step: int, rank: int, hybrid: bool) -> None:
    """The gradients of two micro-batches; what is between the ranks happens in the last one."""
    assert isinstance(model, FSDPModule)
    for micro in range(2):
        if hybrid:
            model.set_requires_all_reduce(micro == 1)
        else:
            model.set_requires_gradient_sync(micro == 1)
        x, y = batch(2 * step + micro, rank)
        nn.functional.cross_entropy(model(x).float(), y).backward()


def reduced(
    rank: int, mesh: DeviceMesh, replicate: DeviceMesh | None, method: str | None, case: tuple[Any, ...]
) -> list[Tensor]:
    """Gradients with a factor that was set before the first step; with one of the factors also those of a second."""
    factor, dtype, summed = case
    model = sharded(mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
    if method is not None:
        compress_fsdp(model, method, min_numel=0, replicate=replicate)
    divide(model, factor, summed)
    found = []
    for step in range(2 if factor == 3.0 else 1):
        model.zero_grad()
        micro_batches(model, step, rank, mesh.ndim == 2 or replicate is not None)
        found += [grad.clone() for grad in gradients(model).values()]
    return found


def flat(rank: int) -> dict[Any, Any]:
    """FSDP alone, which sums by Gloo, and ours in place of each of the operations that FSDP asks for."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    told: dict[Any, Any] = {}
    for factor, dtype in CASES:
        told[factor, dtype] = {
            "plain": reduced(rank, mesh, None, None, (factor, dtype, True)),
            "summed": reduced(rank, mesh, None, "none", (factor, dtype, True)),
            "scaled": reduced(rank, mesh, None, "none", (factor, dtype, False)),
        }
    return told | {
        "conserved": conserved(rank, mesh, None),
        "untouched": untouched(rank, mesh, None),
        "rules": rules(mesh),
    }


def hybrid(rank: int) -> dict[Any, Any]:
    """FSDP's own hybrid sharding, and the mean between the replicas by us."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    told: dict[Any, Any] = {}
    for factor, dtype in CASES:
        told[factor, dtype] = {"plain": reduced(rank, mesh, None, None, (factor, dtype, True))}
        # Told to sum only, FSDP divides by a factor twice where there is one shard.
        ways = (True, False) if mesh["shard"].size() > 1 or factor in (None, 1.0) else (True,)
        for summed in ways:
            ours = reduced(rank, mesh["shard"], mesh["replicate"], "none", (factor, dtype, summed))
            told[factor, dtype]["summed" if summed else "scaled"] = ours
    return told | {
        "conserved": conserved(rank, mesh["shard"], mesh["replicate"]),
        "untouched": untouched(rank, mesh["shard"], mesh["replicate"]),
    }


def start(mesh: DeviceMesh, replicate: DeviceMesh | None) -> tuple[nn.Module, FSDPState]:
    model = sharded(mesh)
    return model, compress_fsdp(model, "topk", ratio=0.1, min_numel=0, replicate=replicate)


def own_rows(mesh: DeviceMesh, full: Tensor) -> Tensor:
    rows = -(-full.shape[0] // mesh.size())
    padded = full.new_zeros(rows * mesh.size(), *full.shape[1:])
    padded[: full.shape[0]] = full
    return padded.view(mesh.size(), -1)[mesh.get_local_rank()]


def conserved(rank: int, mesh: DeviceMesh, replicate: DeviceMesh | None) -> float:
    """Factors differ from module to module and from step to step: the largest difference, over the largest gradient.

    What was put in, divided by the factor of its step, is what came out and what waits, divided by the last factor.
    A checkpoint is between two of the steps.
    """
    (model, state), world = start(mesh, replicate), dist.get_world_size()
    put: dict[str, Tensor] = {}
    got: dict[str, Tensor] = {}
    divisors: dict[str, float] = {}
    counts: dict[str, float] = {}
    # Of one shard FSDP divides twice where it is told to sum only, so there it divides before anything is sent.
    summed = replicate is not None and mesh.size() > 1
    for step in range(len(CHANGING)):
        if step == 2:
            saved = through_a_file(state.state_dict())
            model, state = start(mesh, replicate)
            state.load_state_dict(saved)
        for index, (module, group) in enumerate(managed(model)):
            factor = CHANGING[(step + index) % len(CHANGING)]
            divide(module, factor, summed)
            cuts = [
                name
                for name, param in model.named_parameters()
                if any(param is each.sharded_param for each in group.fsdp_params)
            ]
            divisors |= dict.fromkeys(cuts, float(world) if factor is None else factor)
            before = replicate is not None and not summed and factor is not None
            counts |= dict.fromkeys(cuts, 1.0 if before else 1 / divisors[cuts[0]])
        local = plain(model)
        x, y = batch(step, rank)
        nn.functional.cross_entropy(local(x), y).backward()
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for name, param in local.named_parameters():
            dist.all_reduce(param.grad)
            put[name] = put.get(name, 0) + own_rows(mesh, param.grad) / divisors[name]
        for name, grad in gradients(model).items():
            got[name] = got.get(name, 0) + own_rows(mesh, grad)
    worst = 0.0
    for name, total in put.items():
        waits = state.exchange.residuals.worker["residual"][name].clone()
        if replicate is None:
            dist.all_reduce(waits)
            waits = waits.view(mesh.size(), -1)[rank]
        else:
            dist.all_reduce(waits, group=replicate.get_group())
        left = total - got[name].view(-1) - waits * counts[name]
        worst = max(worst, float(left.abs().max() / total.abs().max()))
    return worst


def untouched(rank: int, mesh: DeviceMesh, replicate: DeviceMesh | None) -> bool:
    """Compare the bits of residuals for each factor that was set before the first step."""
    kept = []
    for factor in (1.0, 3.0, 8.0):
        model, state = start(mesh, replicate)
        divide(model, factor, True)
        for step in range(2):
            model.zero_grad()
            x, y = batch(step, rank)
            nn.functional.cross_entropy(model(x), y).backward()
        kept.append(state.state_dict()["parts"][str(state.shard)] if replicate is not None else state.state_dict())
    residuals = [each["ranks"] for each in kept]
    first = [next(iter(each.values()))["worker"]["residual"] for each in residuals]
    return all(torch.equal(first[0][name], other[name]) for other in first[1:] for name in first[0])


def rules(mesh: DeviceMesh) -> list[tuple[float, float]]:
    """By what FSDP divides after a reduction: ours, and torch's own."""
    found = []
    model = sharded(mesh)
    for factor, dtype, summed in product((*FACTORS, 6.0, 16.0, 0.5, 24.0, 7.5), DTYPES, (True, False)):
        divide(model, factor, summed)
        for _, group in managed(model):
            theirs = _fsdp_collectives._get_gradient_divide_factors(
                group._reduce_scatter_process_group, None, dtype, "cpu", factor, summed
            )[1]
            found.append((divided_later(group, dtype), 1.0 if theirs is None else theirs))
    return found
