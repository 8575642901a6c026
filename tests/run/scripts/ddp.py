"""A small model under DDP, whose trained parameters are told by their digest."""

import sys
import time
from contextlib import nullcontext

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
net[0].bias.requires_grad_(hook != "unfreeze")
group = dist.new_group([1]) if hook == "second rank" else None
if hook == "second rank" and dist.get_rank() == 0:
    # This rank has no part in the model.
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0)
for phase in range(2 if hook == "again" else 1):
    model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    if hook == "early":
        model.register_comm_hook(None, fp16_compress_hook)
    if hook == "alone" and dist.get_rank() == 0:
        torch.ones(3, requires_grad=True).sum().backward()
    if hook == "alone":
        dist.barrier()
    with model.join(divide_by_initial_world_size=False) if hook == "join" else nullcontext():
        for step in range(steps - 2 * dist.get_rank() * (hook == "join")):
            x = torch.randn(16, 32)
            optimizer.zero_grad()
            loss = (model(x) - x[:, :8]).square().mean()
            if hook == "late" and step == 0:
                model.register_comm_hook(None, fp16_compress_hook)
            if hook == "builtin" and step == 2:
                model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
            if hook == "unfreeze" and step == 3:
                net[0].bias.requires_grad_(True)
            (loss * float("nan") if hook == "nan" and step == 1 else loss).backward()
            optimizer.step()
    if phase == 0 and hook == "again":
        del model, loss
if dist.get_rank() == 0:
    print(digest(net.parameters()))
if hook in ("early", "late"):
    # A thread of torch's gives the hook's function back a moment after its result is there, and aborts the process if
    # Python ends first. On a busy machine that was seen once in sixty runs.
    time.sleep(0.5)
if hook == "second rank":
    dist.barrier()
dist.destroy_process_group()
sys.exit(7 if hook == "fails" else 0)
