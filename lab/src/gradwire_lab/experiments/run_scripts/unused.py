"""A model with two heads of which each step uses one, so that DDP must find unused parameters."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    """A trunk that is always used, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 512), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(512, 256), nn.Linear(512, 256)])

    def forward(self, x: Tensor, head: int) -> Tensor:
        """Use one head."""
        found: Tensor = self.heads[head](self.trunk(x))
        return found


def main() -> None:
    """Train for ever: whoever starts it ends it."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(1_000_000):
        x = torch.randn(32, 256)
        optimizer.zero_grad()
        (model(x, step % 2) - x.flip(1)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
