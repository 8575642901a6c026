"""Scanned digits by MXNet's ``Module.fit`` and the flags of its examples.

    python examples/kvstore_fit.py --num-epochs 10 --cpus 2 --gc-type 2bit
    gradwire launch -n 2 -s 1 -- python examples/kvstore_fit.py --kv-store dist_sync --num-epochs 10 --gc-type 2bit

Each worker has its share of the images; after every epoch it says how many of the test images are right.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from gradwire import kvstore
except ImportError as error:
    raise SystemExit(str(error)) from None

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install scikit-learn") from None


def loaders(args: argparse.Namespace, kv: kvstore.KVStore) -> tuple[DataLoader, DataLoader]:
    """This worker's share of the training images, in batches, and the test images."""
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32).div(16), torch.tensor(digits.target)
    # Shares of one size: all workers make as many steps.
    mine = torch.arange(1437 // kv.num_workers * kv.num_workers)[kv.rank :: kv.num_workers]
    train = TensorDataset(x[mine], y[mine])
    generator = torch.Generator().manual_seed(kv.rank)
    return (
        DataLoader(train, args.batch_size, shuffle=True, drop_last=True, generator=generator),
        DataLoader(TensorDataset(x[1437:], y[1437:]), 120),
    )


def main() -> None:
    """Train as the flags say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kvstore.add_fit_args(parser)
    parser.set_defaults(num_epochs=15, batch_size=32, lr=0.03)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    kvstore.fit(parser.parse_args(), network, loaders)


if __name__ == "__main__":
    main()
