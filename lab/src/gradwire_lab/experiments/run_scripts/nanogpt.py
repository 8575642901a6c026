"""A character model as nanoGPT trains it: accumulated gradients, clipping, a cosine schedule, AdamW with two groups."""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATED, WIDTH, LENGTH = 2, 160, 48


class Block(nn.Module):
    """Attention to what came before, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Add what the block finds."""
        q, k, v = (each.unflatten(2, (4, -1)).transpose(1, 2) for each in self.attention(self.norms[0](x)).chunk(3, 2))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """Four blocks over characters; the embedding is the last layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(96, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(4))), nn.LayerNorm(WIDTH)

    def forward(self, words: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the loss."""
        x = self.blocks(self.words(words) + self.places.weight[: words.size(1)])
        logits = self.norm(x) @ self.words.weight.t()
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    """Train for ever: whoever starts it ends it."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1337)
    text = torch.tensor([min(max(ord(each) - 31, 0), 95) for each in (math.__doc__ or "") + str(torch.__doc__) * 20])
    model = DistributedDataParallel(GPT())
    flat = [each for each in model.parameters() if each.dim() < 2]
    wide = [each for each in model.parameters() if each.dim() >= 2]
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    torch.manual_seed(1 + dist.get_rank())
    for step in range(1_000_000):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 20)
        for micro in range(ACCUMULATED):
            at = torch.randint(len(text) - LENGTH - 1, (4,))
            words = torch.stack([text[i : i + LENGTH] for i in at])
            targets = torch.stack([text[i + 1 : i + LENGTH + 1] for i in at])
            model.require_backward_grad_sync = micro == ACCUMULATED - 1
            _, loss = model(words, targets)
            (loss / ACCUMULATED).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
