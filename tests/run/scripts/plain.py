"""A loop that all-reduces its gradients by itself."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    works = [dist.all_reduce(param.grad, async_op=sys.argv[1:] == ["later"]) for param in model.parameters()]
    for work in filter(None, works):
        work.wait()
    optimizer.step()
dist.destroy_process_group()
