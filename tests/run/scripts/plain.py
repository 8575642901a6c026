"""A loop that all-reduces its gradients by itself."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    for param in model.parameters():
        dist.all_reduce(param.grad)
    optimizer.step()
dist.destroy_process_group()
