"""The error of sums over many ranks: the tables of docs/process_group.md. A minute, in one process.

    python benchmarks/bf16_sums.py

The model of examples/gpt.py is trained for a while, and then each simulated rank has the gradient of its own batch.
Their sum is made as a ring in bfloat16 makes it, where every rank adds its part and rounds what it passes on, and as
``gradwire.wrap_group`` makes it, where each gradient is encoded once, the owner of a part adds in float32, and the sum
is encoded once more (two ranks add what they decode). Errors are those of a sum in float64, as a share of its length.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import gradwire

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import gpt

RANKS, STEPS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), 100
CODES = {
    "bf16-fp32sum": gradwire.compressor("bf16"),
    "blockwise8": gradwire.compressor("blockwise8"),
    "fp8": gradwire.compressor("fp8"),
}


def gradients() -> Iterator[Tensor]:
    """The flat gradients of the matrices of a model that has learnt for some steps, each of another batch."""
    torch.manual_seed(0)
    model, text, generator = gpt.GPT(), gpt.read(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS + max(RANKS)):
        now, following = gpt.batch(text, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(now).flatten(0, 1), following.flatten()).backward()
        if step < STEPS:
            optimizer.step()
        else:
            yield torch.cat([param.grad.flatten() for param in model.parameters() if param.dim() == 2])


def through(code: gradwire.Compressor, x: Tensor) -> Tensor:
    """The tensor as it arrives."""
    return code.decompress(code.compress(x), x.shape)


def main() -> None:
    """Add up, and print a row for each number of ranks."""
    torch.set_num_threads(1)
    exact = ring = torch.zeros(())
    sums = dict.fromkeys(CODES, torch.zeros(()))
    once: dict[str, list[float]] = {name: [] for name in CODES}
    print("| ranks | bf16 ring |", *(f"{name} |" for name in CODES))
    print("|---|---|" + "---|" * len(CODES))
    for rank, gradient in enumerate(gradients(), 1):
        exact = exact + gradient.double()
        # bfloat16 adds in float32 and rounds the sum.
        ring = ring + gradient.bfloat16()
        for name, code in CODES.items():
            decoded = through(code, gradient)
            sums[name] = sums[name] + decoded
            once[name].append(float((decoded - gradient).norm() / gradient.norm()))
        if rank in RANKS:
            ends = {name: sums[name] if rank == 2 else through(code, sums[name]) for name, code in CODES.items()}
            errors = [float((each.double() - exact).norm() / exact.norm()) for each in (ring, *ends.values())]
            print(f"| {rank} |", *(f"{100 * error:.2f} % |" for error in errors))
    for name, errors in once.items():
        print(f"{name}: one gradient is off by {100 * sum(errors) / len(errors):.2f} %")


if __name__ == "__main__":
    main()
