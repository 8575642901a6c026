"""A generator and a discriminator, each under DDP of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train for ever: whoever starts it ends it."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    makes = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 784))
    judges = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
    generator, discriminator = DistributedDataParallel(makes), DistributedDataParallel(judges)
    first = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    second = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loss = nn.BCEWithLogitsLoss()
    torch.manual_seed(1 + dist.get_rank())
    while True:
        real, made = torch.randn(64, 784).cumsum(1) / 28, generator(torch.randn(64, 64))
        second.zero_grad()
        verdicts = discriminator(torch.cat([real, made.detach()]))
        loss(verdicts, torch.cat([torch.ones(64, 1), torch.zeros(64, 1)])).backward()
        second.step()
        first.zero_grad()
        discriminator.requires_grad_(False)
        loss(discriminator.module(made), torch.ones(64, 1)).backward()
        discriminator.requires_grad_(True)
        first.step()


if __name__ == "__main__":
    main()
