"""A small GPT that reads Python: the standard library's source text, letter by letter.

    torchrun --standalone --nproc-per-node 2 examples/gpt.py

Each rank draws its own windows of the text. Gradients travel as 2 bits an element, rounded at random so that they are
right on average: nothing is kept back, which AdamW would not forgive. The rounding is noise, which makes AdamW's steps
shorter; ``variance_correction`` makes them as long as before. Small tensors travel uncompressed.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

LETTERS, WIDTH, HEADS, DEPTH, WINDOW, BATCH = 128, 64, 4, 2, 48, 16


class Block(nn.Module):
    """Causal attention, then a layer for each place alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.ask, self.tell = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.ask(self.norms[0](x)).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.tell(seen.transpose(1, 2).flatten(2))
        return x + self.think(self.norms[1](x))


class GPT(nn.Module):
    """Letters and places in, the next letter out."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(WINDOW, WIDTH)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(DEPTH))), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.letters(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.norm(self.blocks(x)))


def read() -> torch.Tensor:
    """A few hundred thousand letters; what is not ASCII is left out."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:20]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    return torch.tensor(list(text.encode("ascii", "ignore")))


def batch(text: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows, and what follows each letter."""
    starts = torch.randint(len(text) - WINDOW, (BATCH, 1), generator=generator)
    windows = text[starts + torch.arange(WINDOW + 1)]
    return windows[:, :-1], windows[:, 1:]


def main() -> None:
    """Train, and let rank 0 say how well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    state = gradwire.compress_ddp(model, "qsgd", bits=2, variance_correction=optimizer)
    text, generator = read(), torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(1, args.steps + 1):
        now, following = batch(text, generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(now).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.2f}")
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.2f} ratio {state.metrics()['ratio']:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
