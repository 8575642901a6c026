"""The recipe of a GPT: AdamW, a warm-up and a cosine, clipping, bfloat16, and gradients that are added up."""

from __future__ import annotations

from dataclasses import replace

from gradwire_lab.experiments.recipe import Recipe

__all__ = ["RECIPE", "RECIPE_SMALL"]

RECIPE = Recipe(
    batch=512,
    lr=6e-4,
    weight_decay=0.1,
    warmup=2000,
    cosine=0.1,
    clip=1.0,
    optimizer="adamw",
    betas=(0.9, 0.95),
    autocast=True,
    micro=8,
    epochs=100,
    steps=1000,
)
RECIPE_SMALL = replace(RECIPE, batch=16, lr=1e-3, warmup=20, micro=4, epochs=5, steps=100)
