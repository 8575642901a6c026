"""A classifier of three layers under DDP, as in torch's tutorial."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Train for ever: whoever starts it ends it."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(4096, 256)
    data = TensorDataset(x, (x @ torch.randn(256, 10)).argmax(1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    net = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(10_000):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
