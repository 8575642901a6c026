"""Accelerate's FSDP2 with gradients of 4 bits an element, and a checkpoint halfway.

    torchrun --standalone --nproc-per-node 2 examples/accelerate_fsdp2.py

Accelerate shards on accelerators only, and takes DDP elsewhere; ``shard_on_cpu`` lets the example run without one.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from accelerate import Accelerator
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    from gradwire.frontends.adapters.accelerate import compress
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install '.[huggingface]'") from None


EPOCHS = 10


def shard_on_cpu(plugin: FullyShardedDataParallelPlugin) -> Accelerator:
    """Say to Accelerate what it would say to itself on a GPU."""
    PartialState(cpu=True).distributed_type = DistributedType.FSDP
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    accelerator.state.fsdp_plugin = plugin
    return accelerator


def train(compressor: str, seed: int = 0, folder: str = "checkpoint") -> tuple[float, float]:
    """Fit a random linear map, with a checkpoint halfway.

    Returns:
        The loss of all data at the end, and how many times fewer bytes the gradients took.
    """
    torch.manual_seed(seed)
    x = torch.randn(512, 64)
    data = TensorDataset(x, x @ torch.randn(64, 8))
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1000)
    accelerator = Accelerator(fsdp_plugin=plugin) if torch.cuda.is_available() else shard_on_cpu(plugin)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    state = compress(accelerator, model, compressor)
    for epoch in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            accelerator.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
        if epoch == EPOCHS // 2:
            accelerator.save_state(folder)
    with torch.no_grad():
        inputs, targets = (each.to(accelerator.device) for each in data.tensors)
        loss = nn.functional.mse_loss(model(inputs), targets).item()
    ratio = state.metrics()["ratio"]
    state.close()
    return loss, ratio


def main() -> None:
    """Train, and let rank 0 say how well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compressor", default="qsgd:bits=4")
    torch.set_num_threads(1)
    loss, ratio = train(parser.parse_args().compressor)
    PartialState().print(f"loss {loss:.3f} ratio {ratio:.1f}")
    PartialState().destroy_process_group()


if __name__ == "__main__":
    main()
