"""Pre-norm transformer block, and a language model made of such blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["Decoder", "TransformerBlock", "initialise"]


class TransformerBlock(nn.Module):
    """x + attention(norm(x)), and then x + mlp(norm(x)): twelve tensors.

    Args:
        width: width of the stream.
        heads: number of heads of attention; they share the width evenly.
        causal: a token sees only those before it.
        epsilon: epsilon of the norms.
    """

    def __init__(self, width: int, heads: int, *, causal: bool, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1 = nn.LayerNorm(width, eps=epsilon)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=epsilon)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.norm1(x))
        h: Tensor = self.narrow(F.gelu(self.wide(self.norm2(x))))
        return x + h

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.queries_keys_values(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        projected: Tensor = self.projection(out.transpose(1, 2).reshape(batch, length, width))
        return projected


class Decoder(nn.Module):
    """A decoder as in GPT-2: token and position embeddings, blocks of causal attention, and the embeddings again as the
    last layer.

    Args:
        vocabulary: words.
        context: positions.
        width: width of the stream.
        depth: blocks.
        heads: number of heads of attention in each block.
    """

    def __init__(self, vocabulary: int, context: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        initialise(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the next token, shape ``(batch, time, vocabulary)``, from int64 tokens of shape ``(batch,
        time)``.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        h = self.norm(self.blocks(self.words(tokens) + self.positions(places)))
        return F.linear(h, self.words.weight)


def initialise(model: nn.Module) -> None:
    """Initialise every matrix from N(0, 0.02) and every bias with zeros."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
