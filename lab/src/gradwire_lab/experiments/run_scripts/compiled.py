"""A model that ``torch.compile`` translates, under DDP."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train for ever: whoever starts it ends it."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 256))
    # Without a C++ compiler at hand the graph is traced all the same.
    model = torch.compile(DistributedDataParallel(net), backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    while True:
        x = torch.randn(32, 256)
        optimizer.zero_grad()
        (model(x) - x.roll(1, 1)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
