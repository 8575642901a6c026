"""The last that a server imports from which ranks and other processes fork.

All that is there by then lives as long as the server. No process that forks from it looks through these hundreds of
thousands of objects when it collects garbage or seeks models, a tenth of a second each time, nor copies their pages.
So all methods are here, and what most modules of tests import: each rank would import them again, and take up to half
a second of a processor for it.
"""

import gc

import hypothesis  # noqa: F401
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.optim
import torch.distributed.tensor.parallel  # noqa: F401

import gradwire.testing.contract
import gradwire.testing.strategies  # noqa: F401
from gradwire import registry

for kind in ("compressors", "memory", "strategies"):
    for name in registry.names(kind):
        registry.find(kind, name)

gc.collect()
gc.freeze()
