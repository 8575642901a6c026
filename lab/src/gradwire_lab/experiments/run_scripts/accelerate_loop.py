"""A loop under Hugging Face Accelerate."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train for ever: whoever starts it ends it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(4096, 256)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(x, x @ torch.randn(256, 64)), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


if __name__ == "__main__":
    main()
