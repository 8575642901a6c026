"""Shares of the elements that ``sidco`` really sends: ``python -m tests.compressors.shares`` prints the figures of
``docs/methods/sparse.md``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradwire.contrib.compressors.sparse.sidco import SIDCo
from gradwire.vocabulary import Key

RATIOS, SIZES = (0.1, 0.01, 0.001), (1 << 12, 1 << 15)
SETTLED, COUNTED = 40, 20
"""Steps until the stages have settled, and steps that count after them."""


def cubed(n: int) -> Tensor:
    return torch.randn(n) ** 3


def laplace(n: int) -> Tensor:
    return torch.distributions.Laplace(0.0, 1.0).sample(torch.Size((n,)))


def student(n: int) -> Tensor:
    return torch.distributions.StudentT(3.0).sample(torch.Size((n,)))


def uniform(n: int) -> Tensor:
    return torch.rand(n) - 0.5


DRAWS: tuple[Callable[[int], Tensor], ...] = (torch.randn, laplace, cubed, student, uniform)


def shares(code: SIDCo, draw: Callable[[int], Tensor], n: int) -> Iterator[float]:
    """Elements sent over the target, in each step that counts; every step has a gradient of its own."""
    layout, state = code.layout((n,)), code.init_state((n,), Key())
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    for step in range(SETTLED + COUNTED):
        code.encode(draw(n), payload, state, Key(step=step))
        if step >= SETTLED:
            used = int(payload[0])
            yield (n if used == 4 * n else used // 6) / (code.ratio * n)


def main() -> None:
    """The least and the most that a step sent for each distribution, and those of the means of 20 steps."""
    torch.manual_seed(0)
    for distribution in ("exp", "gp", "gamma"):
        for draw in DRAWS:
            for ratio in RATIOS:
                code = SIDCo(ratio=ratio, distribution=distribution)
                seen = [list(shares(code, draw, n)) for n in SIZES if ratio * n >= 30]
                means = [sum(each) / len(each) for each in seen]
                steps = [share for each in seen for share in each]
                told = f"{distribution} {draw.__name__} {ratio}: a step {min(steps):.2f} to {max(steps):.2f}"
                print(f"{told}, the mean {min(means):.2f} to {max(means):.2f}", flush=True)


if __name__ == "__main__":
    main()
