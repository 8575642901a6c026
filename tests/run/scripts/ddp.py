"""A small model under DDP, whose trained parameters are told by their digest."""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from tests.run.digest import digest

steps, hook = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
model = DistributedDataParallel(net, bucket_cap_mb=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1 + dist.get_rank())
if hook == "early":
    model.register_comm_hook(None, fp16_compress_hook)
for step in range(steps):
    x = torch.randn(16, 32)
    optimizer.zero_grad()
    loss = (model(x) - x[:, :8]).square().mean()
    if hook == "late" and step == 0:
        model.register_comm_hook(None, fp16_compress_hook)
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(digest(model.parameters()))
if hook in ("early", "late"):
    # A thread of torch's gives the hook's function back a moment after its result is there, and aborts the process if
    # Python ends first. On a busy machine that was seen once in sixty runs.
    time.sleep(0.5)
dist.destroy_process_group()
sys.exit(7 if hook == "fails" else 0)
