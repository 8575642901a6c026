"""PyTorch Lightning with gradients of 4 bits an element, and a run that goes on from its checkpoint.

    torchrun --standalone --nproc-per-node 2 examples/lightning_ddp.py

Leave torchrun out and Lightning starts the two workers itself.
"""

import torch
from torch import nn

try:
    from lightning.pytorch import LightningModule, Trainer

    from gradwire.frontends.adapters.lightning import GradwireCallback
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install '.[lightning]'") from None


STEPS = 40


class Regression(LightningModule):
    """A small network that imitates a fixed linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))

    def training_step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        teacher = torch.linspace(-1, 1, 512, device=x.device).view(64, 8)
        return nn.functional.mse_loss(self.layers(x), x @ teacher)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def trainer(compress: GradwireCallback, steps: int) -> Trainer:
    """Two workers on CPU; on GPUs only the accelerator differs."""
    return Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=steps,
        callbacks=[compress],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def main() -> None:
    """Train half of the steps, save, and train the rest in a new trainer."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.randn(1280, 64), batch_size=16)
    first = trainer(GradwireCallback("qsgd", bits=4), STEPS // 2)
    first.fit(Regression(), data)
    first.save_checkpoint("half.ckpt")

    compress = GradwireCallback("qsgd", bits=4)
    rest = trainer(compress, STEPS)
    rest.fit(Regression(), data, ckpt_path="half.ckpt")
    if rest.is_global_zero:
        metrics = compress.metrics()
        print(f"steps {metrics['steps']} ratio {metrics['ratio']:.1f}")


if __name__ == "__main__":
    main()
