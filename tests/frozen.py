"""The last that a server imports from which ranks and other processes fork.

All that is there by then lives as long as the server. No process that forks from it looks through these hundreds of
thousands of objects when it collects garbage or seeks models, a tenth of a second each time, nor copies their pages.
"""

import gc

import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.parallel  # noqa: F401

gc.collect()
gc.freeze()
