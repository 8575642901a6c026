"""A convolutional net that accumulates the gradients of three batches in ``no_sync``."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCHES = 3


def main() -> None:
    """Train for ever: whoever starts it ends it."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 49, 512), nn.ReLU(), nn.Linear(512, 10)),
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    classes = torch.randn(10, 1, 28, 28)
    torch.manual_seed(1 + dist.get_rank())
    while True:
        optimizer.zero_grad()
        for batch in range(BATCHES):
            labels = torch.randint(10, (32,))
            inputs = classes[labels] + torch.randn(32, 1, 28, 28)
            with model.no_sync() if batch < BATCHES - 1 else nullcontext():
                (nn.functional.cross_entropy(model(inputs), labels) / BATCHES).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
