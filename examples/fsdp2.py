"""FSDP2 with gradients of 4 bits an element.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py

A small transformer learns to continue a repeated pattern.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradwire

WORDS, WIDTH, LENGTH, STEPS = 32, 64, 24, 40


class Model(nn.Module):
    """Two blocks with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        x = self.embed(words) + self.place
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Words, each followed by the one four places back, and what follows."""
    period = torch.randint(WORDS, (16, 4), generator=generator)
    text = period.repeat(1, LENGTH // 4 + 1)[:, : LENGTH + 1]
    return text[:, :-1], text[:, 1:]


def main() -> None:
    """Train, and let rank 0 say how well."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = Model().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = gradwire.compress_fsdp(model, "qsgd", bits=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(STEPS):
        words, following = (tensor.to(device) for tensor in batch(generator))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 13 == 0:
            print(f"step {step} loss {loss.item():.3f}")
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f} ratio {state.metrics()['ratio']:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
