"""The GPT of gpt.py under a loop in the manner of nanoGPT's: micro-batches, warm-up and cosine, clipping, checkpoints.

    torchrun --standalone --nproc-per-node 2 examples/nanogpt.py

Two lines are gradwire's: one after the model is wrapped, and one in the checkpoint.
"""

import argparse
import math
from pathlib import Path

import torch
import torch.distributed as dist
from gpt import GPT, batch, read
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

MICRO_STEPS, WARMUP, EVERY, RATE, LEAST, CLIP = 4, 10, 50, 3e-3, 3e-4, 1.0


def rate_at(step: int, steps: int) -> float:
    """The learning rate: it rises linearly, and falls along a cosine."""
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    share = (step - WARMUP) / max(1, steps - WARMUP)
    return LEAST + 0.5 * (1 + math.cos(math.pi * share)) * (RATE - LEAST)


def main() -> None:
    """Train, and let rank 0 say how well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compressor", default="blockwise8")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, text = dist.get_rank(), read()
    generator = torch.Generator().manual_seed(1000 * args.seed + rank)
    torch.manual_seed(args.seed)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    model = DistributedDataParallel(model)
    state = gradwire.compress_ddp(model, args.compressor)
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, args.steps)
        for micro_step in range(MICRO_STEPS):
            # Gradients are exchanged once a step, with the last micro-batch.
            model.require_backward_grad_sync = micro_step == MICRO_STEPS - 1
            now, following = batch(text, generator)
            loss = nn.functional.cross_entropy(model(now).flatten(0, 1), following.flatten()) / MICRO_STEPS
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % EVERY == 0:
            checkpoint = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "gradwire": state.state_dict(),
                "step": step + 1,
            }
            args.folder.mkdir(exist_ok=True)
            torch.save(checkpoint, args.folder / f"ckpt-{rank}.pt")
    with torch.no_grad():
        fixed = torch.Generator().manual_seed(7)
        losses = [
            nn.functional.cross_entropy(model.module(now).flatten(0, 1), following.flatten())
            for now, following in (batch(text, fixed) for _ in range(16))
        ]
    if rank == 0:
        print(f"loss {torch.stack(losses).mean():.3f} ratio {state.metrics()['ratio']:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
