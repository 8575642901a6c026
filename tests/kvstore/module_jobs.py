"""Work of the workers in the tests of the Module over servers."""

import os
import signal
from pathlib import Path

import torch
from torch import nn

from gradwire.kvstore import Module
from gradwire.kvstore.protocol.lr_scheduler import FactorScheduler

ADAM = {"learning_rate": 0.01}


def network(seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def share(rank, world, size=4, count=5):
    """A worker's part of each of ``count`` batches; all of it with world 1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 2 * size, 6, generator=generator)
    y = (x[..., 0] > 0).long() + (x[..., 1] > 0).long()
    part = slice(rank * 2 * size // world, (rank + 1) * 2 * size // world)
    return [(each[part], label[part]) for each, label in zip(x, y, strict=True)]


def epochs(rank, folder, begin, end):
    """Train from one epoch to another, from and to a checkpoint; the parameters."""
    prefix = str(Path(folder) / "m")
    # Only worker 0's weights count, whatever the others begin with.
    symbol = network(seed=3 + rank)
    module = Module.load(prefix, begin, True, symbol=symbol) if begin else Module(symbol)
    data = share(rank, 2)
    module.fit(data, begin_epoch=begin, num_epoch=end, kvstore="dist_sync", optimizer="adam", optimizer_params=ADAM)
    if rank == 0:
        module.save_checkpoint(prefix, end, save_optimizer_states=True)
    return list(module.get_params()[0].values())


def killed_once(rank, folder, factor=1.0):
    """Three epochs, in which the learning rate falls by ``factor`` after every update; worker 1 is killed in the
    second of them, the first time that it comes there. The parameters.
    """
    died, module = Path(folder) / "died", Module(network(seed=3 + rank))

    def die(param):
        if rank == 1 and (param.epoch, param.nbatch) == (1, 2) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    module.fit(
        share(rank, 2),
        num_epoch=3,
        kvstore="dist_sync",
        optimizer="adam",
        optimizer_params={**ADAM, "lr_scheduler": FactorScheduler(1, factor)},
        batch_end_callback=die,
    )
    return list(module.get_params()[0].values())
