"""Watch the wire: the same figures in TensorBoard and in Weights & Biases.

    torchrun --standalone --nproc-per-node 2 examples/metrics.py --folder runs

Then ``tensorboard --logdir runs``; the W&B run is offline, ``wandb sync`` uploads it. The dashboards are those that are
installed: ``pip install tensorboard wandb`` brings both.
"""

import argparse
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

STEPS, EVERY = 40, 10


def dashboards(state: gradwire.GradwireState, folder: str) -> tuple[list[Any], list[Any]]:
    """Writers for what is installed, and what to call in the end."""
    writers: list[Any] = []
    close: list[Any] = []
    if find_spec("tensorboard") is not None:
        # It loads TensorFlow where that is installed; torch's optimizers load Triton, which must come first then.
        from torch.utils.tensorboard import SummaryWriter

        from gradwire.frontends.adapters.tensorboard import TensorBoardWriter

        board = SummaryWriter(folder)
        writers.append(TensorBoardWriter(state, board, every=EVERY))
        close.append(board.close)
    if find_spec("wandb") is not None:
        import wandb

        from gradwire.frontends.adapters.wandb import WandbWriter

        run = wandb.init(mode="offline", dir=folder, project="gradwire")
        writers.append(WandbWriter(state, run, every=EVERY))
        close.append(run.finish)
    if not writers:
        print("no dashboard is installed: pip install tensorboard wandb")
    return writers, close


def main() -> None:
    """Train a regression; rank 0 writes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="runs", help="folder of both dashboards")
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    state = gradwire.compress_ddp(model, "qsgd", bits=4)
    writers, close = dashboards(state, folder) if dist.get_rank() == 0 else ([], [])
    generator = torch.Generator().manual_seed(dist.get_rank())
    teacher = torch.linspace(-1, 1, 512).view(64, 8)
    for _ in range(STEPS):
        x = torch.randn(32, 64, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x @ teacher).backward()
        optimizer.step()
        for writer in writers:
            writer.step()
    for end in close:
        end()
    if dist.get_rank() == 0:
        print(f"rows {STEPS // EVERY} ratio {state.metrics()['ratio']:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
