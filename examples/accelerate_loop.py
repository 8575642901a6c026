"""A loop under Hugging Face Accelerate, with gradients of 4 bits an element, saved and resumed.

    torchrun --standalone --nproc-per-node 2 examples/accelerate_loop.py

The residuals lie beside the model and the optimizer in the folder that Accelerate saves, a file for each process.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from accelerate import Accelerator

    from gradwire.frontends.adapters.accelerate import compress
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install '.[huggingface]'") from None


EPOCHS = 5


def main() -> None:
    """Fit a random linear map."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(256, 64)
    data = TensorDataset(x, x @ torch.randn(64, 8))
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    state = compress(accelerator, model, "qsgd", bits=4)
    for epoch in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
        if epoch == EPOCHS // 2:
            accelerator.save_state("checkpoint")
    ratio = state.metrics()["ratio"]
    accelerator.load_state("checkpoint")  # the counters of bytes begin anew; the number of steps is the saved one
    accelerator.print(f"steps {state.metrics()['steps']} ratio {ratio:.1f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
