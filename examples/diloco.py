"""DiLoCo between workers that come and go, each with data of its own kind.

    gradwire meeting --bind 127.0.0.1:7100 &
    python examples/diloco.py --place 127.0.0.1:7100 --name 0 --workers 2 &
    python examples/diloco.py --place 127.0.0.1:7100 --name 1 --workers 2

Each worker has scanned digits of seven of the ten kinds, and never sees the others'. It trains alone for 20 steps, then
sends 4 bits an element of where it went. End a worker and start it again, or start another with a new name: with
``--save FILE`` it goes on from what it kept.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import gradwire

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install scikit-learn") from None


def main() -> None:
    """Train, and say how well all ten kinds are told apart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", required=True, help="HOST:PORT of `gradwire meeting`")
    parser.add_argument("--name", required=True, help="of this worker, a number")
    parser.add_argument("--workers", type=int, default=1, help="wait until so many have come")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds that the others wait for a worker")
    parser.add_argument("--save", type=Path, help="kept after every round, and read at the start")
    args = parser.parse_args()
    torch.set_num_threads(1)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32).div(16), torch.tensor(digits.target)
    # The kinds that this worker sees: seven in a row, from its own place on.
    mine = ((y[:1437] - 5 * int(args.name)) % 10 < 7).nonzero().flatten()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    inner = torch.optim.AdamW(model.named_parameters(), lr=3e-3)
    meeting = gradwire.Meeting(args.place, args.name, workers=args.workers, deadline=args.deadline)
    optimizer = gradwire.diloco(
        inner, "qsgd", bits=4, memory="residual", every=20, momentum=0.5, min_numel=256, meeting=meeting
    )
    if args.save and args.save.exists():
        saved = torch.load(args.save, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    optimizer.join()
    generator = torch.Generator().manual_seed(int(args.name))
    while optimizer.round < args.rounds:
        batch = mine[torch.randint(len(mine), (32,), generator=generator)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        if args.save and optimizer.in_step:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.save)
    optimizer.leave()
    accuracy = (model(x[1437:]).argmax(1) == y[1437:]).float().mean()
    told = optimizer.metrics()
    every_step = 20 * told["ratio"]
    print(f"worker {args.name}: accuracy {100 * accuracy:.1f} %, {every_step:.0f} times fewer bytes than every step")


if __name__ == "__main__":
    main()
