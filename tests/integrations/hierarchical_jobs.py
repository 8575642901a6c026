"""Work of the ranks in the tests of hosts under DDP, a plain optimizer and FSDP2; each function is one launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import ConfigError
from gradwire.frontends.ddp import compress_ddp
from tests.integrations.fsdp_jobs import compare
from tests.integrations.jobs import batch, digest, loss_of, model_of, train_ddp, train_loop

TWO = "hierarchical:ranks_per_host=2"


def trained(rank: int, steps: int) -> dict[str, Any]:
    """DDP without a hook, and with one; a plain optimizer; and replicas of FSDP2, of which two share a host."""
    options = {"strategy": TWO, "min_numel": 64}
    mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))
    return {
        "plain": train_ddp(rank, "plain", steps, {}),
        "ddp": train_ddp(rank, "qsgd", steps, options),
        "residual": train_ddp(rank, "topk", steps, {**options, "ratio": 0.1}),
        "loop": train_loop(rank, "qsgd", steps, options),
        "changed": changed(rank, steps),
        "fsdp": compare(rank, mesh["shard"], mesh["replicate"], {"blockwise8": {"strategy": TWO}}),
    }


def changed(rank: int, steps: int) -> dict[str, Any]:
    """Half of the steps by another strategy; before the change one that cannot be is tried."""
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.05)
    state = compress_ddp(model, "topk", ratio=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    error = ""
    for step in range(steps):
        if step == steps // 2:
            try:
                state.change("topk", ratio=0.1, strategy="hierarchical:ranks_per_host=3")
            except ConfigError as refused:
                error = str(refused)
            state.change("topk", ratio=0.1, strategy=TWO)
        x, y = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {"digest": digest(model), "loss": loss_of(model.module), "metrics": state.metrics(), "error": error}
