"""The cost of residuals and noise under AdamW: the tables of docs/adaptive.md. More than an hour on two cores.

    torchrun --standalone --nproc-per-node 2 benchmarks/adaptive.py [row ...]

The model of examples/gpt.py, every row at each learning rate with seed 0, and at the best of them with the other seeds.
A seed is that of the model and of the batches. The loss is that of text from the end, which is not trained on. The last
column has the losses of seed 0 at each rate. Rows are chosen by how their labels begin; without any, all are made.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import gradwire
from gradwire.memory.ef21 import EF21
from gradwire.optim.exchanged import Exchanged

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import gpt

Prepared = tuple[nn.Module, Optimizer, Callable[[], float]]

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", {}),
    "qsgd, 4 bits": ("qsgd", {"bits": 4}),
    "loco": ("loco", {}),
    "qsgd, 2 bits": ("qsgd", {"bits": 2}),
    "qsgd, 2 bits, corrected": ("qsgd", {"bits": 2}),
    "qsgd, 2 bits in blocks of 64": ("qsgd", {"bits": 2, "block": 64}),
    "qsgd, 2 bits in blocks of 64, corrected": ("qsgd", {"bits": 2, "block": 64}),
    "eden, 2 bits": ("eden", {"bits": 2}),
    "eden, 2 bits, corrected": ("eden", {"bits": 2}),
    "eden, 1 bit": ("eden", {}),
    "eden, 1 bit, corrected": ("eden", {}),
    "eden, half a bit": ("eden", {"bits": 0.5}),
    "eden, half a bit, corrected": ("eden", {"bits": 0.5}),
    "eden, a quarter of a bit, corrected": ("eden", {"bits": 0.25}),
    "eden, 1 bit, preconditioned, corrected": ("eden", {"memory": "preconditioned"}),
    "eden, half a bit, preconditioned, corrected": ("eden", {"bits": 0.5, "memory": "preconditioned"}),
    "eden, a quarter of a bit, preconditioned, corrected": ("eden", {"bits": 0.25, "memory": "preconditioned"}),
    "eden, an eighth of a bit, preconditioned, corrected": ("eden", {"bits": 0.125, "memory": "preconditioned"}),
    "eden, an eighth of a bit, corrected": ("eden", {"bits": 0.125}),
    "eden, 1 bit, all tensors, corrected": ("eden", {"min_numel": 1}),
    "eden, half a bit, all tensors, corrected": ("eden", {"bits": 0.5, "min_numel": 1}),
    "eden, every second bit": ("eden", {"fraction": 0.5}),
    "eden, every second bit, corrected": ("eden", {"fraction": 0.5}),
    "eden, every fourth bit": ("eden", {"fraction": 0.25}),
    "eden, every fourth bit, corrected": ("eden", {"fraction": 0.25}),
    "adaptive_sparse, 5 %": ("adaptive_sparse", {"ratio": 0.05}),
    "adaptive_sparse, 5 %, corrected": ("adaptive_sparse", {"ratio": 0.05}),
    "adaptive_sparse, 1 %": ("adaptive_sparse", {"ratio": 0.01}),
    "adaptive_sparse, 1 %, corrected": ("adaptive_sparse", {"ratio": 0.01}),
    "powersgd, rank 2": ("powersgd", {"rank": 2}),
    "efsignsgd": ("efsignsgd", {}),
    "topk, 1 %": ("topk", {}),
    "twobit, threshold auto": ("twobit", {"threshold": "auto"}),
    "COMP-AMS, topk, 1 %": ("topk", {}),
    "CD-Adam, topk, 1 %": ("topk", {"memory": "ef21"}),
    "SGD": ("none", {}),
    "EF21-SGDM, topk, 1 %": ("topk", {"memory": EF21(eta=0.1)}),
}
"""Runs that compress gradients: label, method and its options."""

STEPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "CompressedStep, topk, 1 %": ("topk", {"every": 1}),
    "CompressedStep, topk, 1 %, kept": ("topk", {"every": 1, "keep": True}),
    "CompressedStep, topk, 1 %, every 4": ("topk", {"every": 4}),
    "CompressedStep, topk, 1 %, late": ("topk", {"every": 1, "late": True}),
    "CompressedStep, topk, 1 %, every 16": ("topk", {"every": 16}),
    "CompressedStep, topk, 1 %, every 16, kept": ("topk", {"every": 16, "keep": True}),
    "CompressedStep, topk, 1 per mille": ("topk", {"ratio": 0.001}),
    "CompressedStep, topk, 1 per mille, kept": ("topk", {"ratio": 0.001, "keep": True}),
    "CompressedStep, topk, 1 per mille, kept, reset 50": ("topk", {"ratio": 0.001, "keep": True, "reset": 50}),
    "CompressedStep, eden, 1 bit": ("eden", {}),
    "CompressedStep, eden, an eighth of a bit": ("eden", {"bits": 0.125}),
    "CompressedStep, eden, an eighth of a bit, every 16": ("eden", {"bits": 0.125, "every": 16}),
    "CompressedStep, eden, half a bit, every 5": ("eden", {"bits": 0.5, "every": 5}),
    "CompressedStep, eden, an eighth of a bit, every 5": ("eden", {"bits": 0.125, "every": 5}),
    "CompressedStep, eden, an eighth of a bit, late": ("eden", {"bits": 0.125, "late": True}),
    "CompressedStep, eden, a 90th of a bit": ("eden", {"bits": 0.125, "fraction": 0.09, "block": 16384}),
    "CompressedStep, none": ("none", {}),
    "CompressedStep, none, every 5": ("none", {"every": 5}),
}
"""Runs that compress steps of AdamW: label, method and options."""

STEPPED |= {
    f"{label}, not corrected": (method, {**options, "variance_correction": False})
    for label, (method, options) in STEPPED.items()
}

WHOLE: dict[str, tuple[type[Exchanged], dict[str, Any]]] = {
    "OneBitAdam, 20 dense steps": (gradwire.optim.OneBitAdam, {"freeze_step": 20}),
    "OneBitAdam, 40 dense steps": (gradwire.optim.OneBitAdam, {"freeze_step": 40}),
    "OneBitAdam, 80 dense steps": (gradwire.optim.OneBitAdam, {"freeze_step": 80}),
    "OneBitAdam, auto": (gradwire.optim.OneBitAdam, {"freeze_step": "auto"}),
    "ZeroOneAdam": (gradwire.optim.ZeroOneAdam, {"var_freeze_step": 80, "local_step_scaler": 60}),
    "ZeroOneAdam, no local steps": (gradwire.optim.ZeroOneAdam, {"var_freeze_step": 80, "local_step_clipper": 1}),
    "MicroAdam, 1 %": (gradwire.MicroAdam, {}),
}
"""Optimizers in place of AdamW: label, class and options."""

ALONE = "alone"
"""One worker that hears of no other: what is worse than this has no use."""

ADAM: dict[str, Any] = {"betas": (0.9, 0.95), "weight_decay": 0.1}
RATES, SEEDS, STEPS, WARMUP, ROWS, HELD_OUT = (1e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2), (0, 1, 2), 200, 20, 8, 20_000


def windows(text: Tensor, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw rows of letters, and what follows each of them."""
    starts = torch.randint(len(text) - gpt.WINDOW - 1, (rows, 1), generator=generator)
    found = text[starts + torch.arange(gpt.WINDOW + 1)]
    return found[:, :-1], found[:, 1:]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy of a letter."""
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def run(text: Tensor, label: str, rate: float, seed: int) -> tuple[float, float]:
    """The loss on held-out text at the end, and how many times fewer bytes were sent."""
    torch.manual_seed(seed)
    prepare = alone if label == ALONE else stepped if label in STEPPED else whole if label in WHOLE else averaged
    model, optimizer, end = prepare(rate, label)
    factor = [min((step + 1) / WARMUP, 1) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS)) for step in range(STEPS)]
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    start = optimizer.param_groups[0]["lr"]
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = start * factor[step]
        optimizer.zero_grad()
        loss_of(model, *windows(text[:-HELD_OUT], ROWS, generator)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    ratio = end()
    generator.manual_seed(5)
    with torch.no_grad():
        losses = [loss_of(model, *windows(text[-HELD_OUT:], 32, generator)) for _ in range(10)]
    return float(sum(losses) / len(losses)), ratio


def adamw(model: nn.Module, rate: float, **more: bool) -> Optimizer:
    """The optimizer of nearly all rows."""
    return torch.optim.AdamW(model.parameters(), lr=rate, **ADAM, **more)


def under(model: nn.Module, rate: float, label: str) -> Optimizer:
    """The optimizer that a paper puts under its exchange; SGD has rates 40 times as large, and no second moment."""
    if label.startswith(("SGD", "EF21-SGDM")):
        return torch.optim.SGD(model.parameters(), lr=40 * rate, momentum=0.9 * (label == "SGD"), dampening=0.9)
    return adamw(model, rate, amsgrad=label.startswith(("COMP-AMS", "CD-Adam")))


def alone(rate: float, label: str) -> Prepared:
    """A model that is trained without the others."""
    model = gpt.GPT()
    return model, under(model, rate, label), lambda: math.inf


def averaged(rate: float, label: str) -> Prepared:
    """A model whose gradients are averaged compressed, its optimizer, and what gives the ratio in the end."""
    model, (method, options) = DistributedDataParallel(gpt.GPT()), METHODS[label]
    optimizer = under(model, rate, label)
    corrected = {"variance_correction": optimizer} if label.endswith("corrected") else {}
    state = gradwire.compress_ddp(model, method, force=True, **options, **corrected)

    def end() -> float:
        ratio = float(state.metrics()["total_ratio"])
        state.close()
        return ratio

    return model, optimizer, end


def stepped(rate: float, label: str) -> Prepared:
    """The same with an optimizer whose steps are exchanged; the ratio counts steps without an exchange."""
    model, (method, options) = gpt.GPT(), STEPPED[label]
    optimizer = gradwire.CompressedStep(adamw(model, rate), method, **options)

    def end() -> float:
        if optimizer.since:
            optimizer.exchange_ways()
        optimizer.finish()
        return float(optimizer.metrics()["total_ratio"]) * optimizer.every

    return model, optimizer, end


def whole(rate: float, label: str) -> Prepared:
    """The same with an optimizer that exchanges by itself; the ratio is to one exchange of gradients a step."""
    model, (kind, options) = gpt.GPT(), WHOLE[label]
    optimizer = kind(model.parameters(), lr=rate, **ADAM, **options)
    dense = 8 * (dist.get_world_size() - 1) / dist.get_world_size() * sum(param.numel() for param in optimizer.params)

    def end() -> float:
        return STEPS * dense / optimizer.metrics()["bytes_sent"]

    return model, optimizer, end


def main() -> None:
    """Rank 0 prints a row of Markdown for each method."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    text = gpt.read()
    chosen = tuple(sys.argv[1:])
    for label in [label for label in (ALONE, *METHODS, *STEPPED, *WHOLE) if not chosen or label.startswith(chosen)]:
        first = {rate: run(text, label, rate, SEEDS[0]) for rate in RATES}
        best = min(first, key=lambda rate: first[rate][0])
        losses = [first[best][0], *(run(text, label, best, seed)[0] for seed in SEEDS[1:])]
        if dist.get_rank() == 0:
            each, mean = ", ".join(f"{loss:.3f}" for loss in losses), sum(losses) / len(losses)
            rates = ", ".join(f"{first[rate][0]:.3f}" for rate in RATES)
            print(f"| {label} | {first[best][1]:.1f} | {best:g} | {each} | {mean:.3f} | {rates} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
