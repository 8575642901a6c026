"""A model whose gradients a hook of torch's own sends in 16 bits."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train for ever: whoever starts it ends it."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 256)))
    model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    while True:
        x = torch.randn(32, 256)
        optimizer.zero_grad()
        (model(x) - x.roll(1, 1)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
