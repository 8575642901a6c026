"""A small transformer whose layers are sharded by FSDP2."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    """Train for ever: whoever starts it ends it."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(4)]
    model = nn.Sequential(nn.Embedding(256, 128), *layers, nn.Linear(128, 256))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    while True:
        x = torch.randint(256, (4, 32))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).flatten(0, 1), (7 * x + 3).remainder(256).flatten()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
