"""Scanned digits, learned by several workers through a parameter server, with MXNet's flags.

    gradwire launch -n 2 -s 1 -- python examples/kvstore_digits.py --gc-type 2bit --gc-threshold 0.5

Each worker has its share of the images. One that was killed may be started again: it goes on where the others are.
Losses are sums over a batch, as MXNet's convention is, so a threshold of 0.5 suits; the trainer divides by the number
of samples of all workers.
"""

import argparse

import torch
from torch import nn

try:
    from gradwire import kvstore
except ImportError as error:
    raise SystemExit(str(error)) from None

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install scikit-learn") from None


BATCH = 32


def main() -> None:
    """Train, and let worker 0 say how well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kv-store", default="dist_sync", help="device, dist_sync, dist_async, ...")
    parser.add_argument("--gc-type", default="none", help="none, 2bit, 1bit, or a method of `gradwire methods`")
    parser.add_argument("--gc-threshold", default="0.5", help="a number, or auto")
    parser.add_argument("--gc-pull", default="none", help="none, or the method that compresses what is pulled")
    parser.add_argument("--num-epochs", type=int, default=15)
    args = parser.parse_args()
    kv = kvstore.create(args.kv_store)
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32).div(16)
    y = torch.tensor(digits.target)
    train, test = slice(0, 1437), slice(1437, None)
    mine = torch.arange(1437)[kv.rank :: kv.num_workers]
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    thresholds = {"2bit", "1bit", "twobit", "onebit"}
    own = {"threshold": args.gc_threshold} if args.gc_type in thresholds else {}
    compression = {"type": args.gc_type, **own, "pull": {"type": args.gc_pull}}
    trainer = kvstore.Trainer(
        model.parameters(), "sgd", {"learning_rate": 0.03, "momentum": 0.9}, kvstore=kv, compression_params=compression
    )
    trainer.start()
    # All workers make as many steps; one that was started again begins with the first that is not made.
    steps = len(x[train]) // kv.num_workers // BATCH
    for step in range(trainer.steps, args.num_epochs * steps):
        epoch, at = divmod(step, steps)
        generator = torch.Generator().manual_seed(1000 * epoch + kv.rank)
        batch = mine[torch.randperm(len(mine), generator=generator)][at * BATCH : (at + 1) * BATCH]
        model.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch], reduction="sum").backward()
        trainer.step(BATCH * kv.num_workers)
    if kv.rank == 0:
        accuracy = (model(x[test]).argmax(1) == y[test]).float().mean()
        methods = f"{args.gc_type} pushed, {args.gc_pull} pulled"
        print(f"{args.kv_store}, {methods}, {kv.num_workers} workers: {100 * accuracy:.1f} % of the test images")
    kv.barrier()


if __name__ == "__main__":
    main()
