"""A training script as people write it; its argument says how it goes on."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

import gradwire


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    if sys.argv[1] == "unwrapped":
        sys.exit()
    if sys.argv[1] == "broken":
        raise ValueError("the disk is full")
    if sys.argv[1] == "sharded":
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        while True:
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
    wrapped = DDP(model)
    gradwire.compress_ddp(wrapped, "twobit", threshold=0.01)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    for _ in range(int(sys.argv[1])):
        wrapped.eval()
        wrapped(torch.randn(8, 64))
        wrapped.train()
        optimizer.zero_grad()
        wrapped(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
