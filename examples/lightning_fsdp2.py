"""Lightning's ModelParallelStrategy, FSDP2 by ``fully_shard``, with gradients of 4 bits an element.

    torchrun --standalone --nproc-per-node 2 examples/lightning_fsdp2.py

Leave torchrun out and Lightning starts the two workers itself.
"""

import argparse

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

try:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import ModelParallelStrategy

    from gradwire.frontends.adapters.lightning import GradwireCallback
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install '.[lightning]'") from None


STEPS = 200


class Regression(LightningModule):
    """A small network that imitates a fixed linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))
        self.loss = float("nan")

    def configure_model(self) -> None:
        """Shard each layer, and the rest."""
        mesh = self.device_mesh["data_parallel"]
        for layer in (self.layers[0], self.layers[2], self.layers):
            fully_shard(layer, mesh=mesh)

    def training_step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        teacher = torch.linspace(-1, 1, 512, device=x.device).view(64, 8)
        loss = nn.functional.mse_loss(self.layers(x), x @ teacher)
        self.loss = loss.item()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def train(compressor: str, seed: int = 0) -> tuple[float, float]:
    """Train on two workers; on GPUs only the accelerator differs.

    Returns:
        This worker's last loss, and how many times fewer bytes the gradients took.
    """
    torch.manual_seed(seed)
    data = torch.utils.data.DataLoader(torch.randn(6400, 64), batch_size=16)
    compress, module = GradwireCallback(compressor), Regression()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        max_steps=STEPS,
        callbacks=[compress],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)
    return module.loss, compress.metrics()["ratio"]


def main() -> None:
    """Train, and let rank 0 say how well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compressor", default="qsgd:bits=4")
    torch.set_num_threads(1)
    loss, ratio = train(parser.parse_args().compressor)
    if torch.distributed.get_rank() == 0:
        print(f"loss {loss:.3f} ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
