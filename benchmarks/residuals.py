"""The fate of a residual under Adam: the picture of docs/adaptive.md. Two minutes; the picture takes Chromium.

    python benchmarks/residuals.py [picture.svg]

The model of examples/gpt.py is trained with AdamW, uncompressed, by one process. Beside it the gradients of its largest
matrix go through top-k with a residual, and two optimizers, SGD and Adam, walk by what arrives, and two more by the
gradients themselves. Elements are grouped by how long they wait from one arrival to the next. For each group: how far
an element went in the direction in which it goes without compression, as a share of that way (the slope of a regression
through zero). A share of 1 is what error feedback promises.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import gradwire

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import gpt

STEPS, RATE, RATIO, DELAYS = 600, 2e-3, 0.01, (8, 16, 32, 64, 128, 256)
WALKERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "SGD": lambda params: SGD(params, lr=RATE),
    "Adam": lambda params: Adam(params, lr=RATE, betas=(0.9, 0.95)),
}


def walks() -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor]:
    """The ways without compression and with it, for SGD and Adam, and the number of times that each element arrived."""
    torch.manual_seed(0)
    model, text = gpt.GPT(), gpt.read()
    optimizer = AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    watched = model.blocks[0].think[0].weight
    topk = gradwire.compressor("topk", ratio=RATIO)
    residual, arrived = torch.zeros_like(watched), torch.zeros_like(watched)
    pairs = {
        name: (nn.Parameter(torch.zeros_like(watched)), nn.Parameter(torch.zeros_like(watched))) for name in WALKERS
    }
    optimizers = {name: [WALKERS[name]([each]) for each in pair] for name, pair in pairs.items()}
    for _ in range(STEPS):
        starts = torch.randint(len(text) - gpt.WINDOW - 1, (gpt.BATCH, 1))
        windows = text[starts + torch.arange(gpt.WINDOW + 1)]
        optimizer.zero_grad()
        logits = model(windows[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).backward()
        gradient = watched.grad
        assert gradient is not None
        waiting = residual + gradient
        sent = topk.decompress(topk.compress(waiting), waiting.shape)
        residual = waiting - sent
        arrived += sent != 0
        for name, (plain, late) in pairs.items():
            plain.grad, late.grad = gradient.clone(), sent.clone()
            for each in optimizers[name]:
                each.step()
        optimizer.step()
    return {name: (plain.detach(), late.detach()) for name, (plain, late) in pairs.items()}, arrived


def shares() -> dict[str, list[tuple[float, float]]]:
    """Pairs of a wait in steps and the share of the way that was gone, for SGD and Adam."""
    ways, arrived = walks()
    delays = STEPS / arrived.clamp(min=1)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for low, high in zip((1, *DELAYS), (*DELAYS, STEPS), strict=True):
        group = (delays >= low) & (delays < high)
        for name, (plain, late) in ways.items() if group.sum() >= 30 else ():
            share = (plain[group] * late[group]).sum() / plain[group].square().sum()
            found[name].append((float(delays[group].median()), float(share)))
    return found


def draw(found: dict[str, list[tuple[float, float]]], path: Path) -> None:
    """The picture, on white, readable in print."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for (name, points), colour in zip(found.items(), ("#3f7fd0", "#d9622b"), strict=True):
        x, y = zip(*points, strict=True)
        figure.add_trace(go.Scatter(x=x, y=y, name=name, mode="lines+markers", line={"color": colour}))
    figure.update_layout(
        template="plotly_white",
        width=720,
        height=400,
        margin={"l": 60, "r": 16, "t": 16, "b": 50},
        xaxis={
            "title": "steps from one arrival of an element to the next",
            "type": "log",
            "tickvals": [25, 50, 100, 200, 300],
        },
        yaxis={"title": "way gone, as a share of that without compression", "rangemode": "tozero"},
        legend={"x": 0.75, "y": 0.75},
    )
    figure.write_image(path)


def main() -> None:
    """Print a table, and draw."""
    torch.set_num_threads(1)
    found = shares()
    print("| steps from arrival to arrival | " + " | ".join(found) + " |")
    for rows in zip(*found.values(), strict=True):
        print(f"| {rows[0][0]:.1f} | " + " | ".join(f"{share:.2f}" for _, share in rows) + " |")
    if sys.argv[1:]:
        draw(found, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
