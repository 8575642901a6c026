"""DDP with 1 % of the gradient: one line more than without.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py
    torchrun --standalone --nproc-per-node 2 examples/ddp.py --compressor twobit

Scanned digits; each rank has its share of the images.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install scikit-learn") from None

BATCH = 32


def main() -> None:
    """Train, and let rank 0 say how well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compressor", default="topk", help="a method of `gradwire methods`")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32).div(16), torch.tensor(digits.target)
    # Shares of one size: all ranks make as many steps.
    mine = torch.arange(1437 // world * world)[rank::world]

    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    state = gradwire.compress_ddp(model, args.compressor)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    for epoch in range(args.epochs):
        generator = torch.Generator().manual_seed(1000 * epoch + rank)
        for batch in mine[torch.randperm(len(mine), generator=generator)].split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    if rank == 0:
        accuracy = (model.module(x[1437:]).argmax(1) == y[1437:]).float().mean()
        print(f"accuracy {100 * accuracy:.1f} % ratio {state.metrics()['ratio']:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
