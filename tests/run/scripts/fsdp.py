"""A small model under FSDP2, whose trained parameters are told by their digest."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from tests.run.digest import digest

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
fully_shard(module=net[0])
model = fully_shard(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1 + dist.get_rank())
for _ in range(int(sys.argv[1])):
    x = torch.randn(16, 32)
    optimizer.zero_grad()
    (model(x) - x[:, :8]).square().mean().backward()
    optimizer.step()
whole = [param.full_tensor() for param in model.parameters()]
if dist.get_rank() == 0:
    print(digest(whole))
dist.destroy_process_group()
