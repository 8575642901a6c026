"""PyTorch Lightning with its own strategy for DDP."""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn


class Regression(LightningModule):
    """A network that imitates a fixed linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 768), nn.Tanh(), nn.Linear(768, 64))

    def training_step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.mse_loss(self.layers(x), x[:, :64].flip(1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Train everything with AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Train for ever: whoever starts it ends it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.randn(4096, 256), batch_size=32)
    told = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    workers = int(os.environ["WORLD_SIZE"])
    Trainer(accelerator="cpu", devices=workers, strategy="ddp", max_steps=-1, max_epochs=-1, **told).fit(
        Regression(), data
    )


if __name__ == "__main__":
    main()
