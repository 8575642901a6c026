"""Two ranks on one host of a lab: started once for each host, it prints what the host's interface has sent.

Called with ``start`` it starts itself again as two ranks, whose numbers follow from that of the host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from gradwire.engine.exchange import Exchange
from gradwire.engine.settings import build_compressor
from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.fsdp import compress_fsdp
from gradwire_lab.netlab.names import INTERFACE
from gradwire_lab.netlab.system import own_counters

LOCAL = 2
NUMEL = 2**18
STEPS = 5


def start() -> int:
    """The ranks of this host; the largest of their exit codes."""
    host, hosts = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    command, ranks = [sys.executable, "-m", "lab.tests.netlab.host_ranks", *sys.argv[2:]], []
    for local in range(LOCAL):
        told = {"LOCAL_RANK": str(local), "RANK": str(LOCAL * host + local), "WORLD_SIZE": str(LOCAL * hosts)}
        ranks.append(subprocess.Popen(command, env=os.environ | told))
    return max(rank.wait(480) for rank in ranks)


def sent_by_host(strategy: str) -> float:
    """Bytes that left this host for each step, over the payload of the whole gradient."""
    compressor = build_compressor("qsgd", {"bits": 8})
    exchange = Exchange(compressor, strategy=strategy, group=dist.new_group())
    flat = torch.randn(NUMEL, generator=torch.Generator().manual_seed(dist.get_rank()))
    before = 0
    for step in range(1 + STEPS):
        if step == 1:  # The plan is made, and the connections, too.
            dist.barrier()
            before = own_counters()[INTERFACE][1]
            dist.barrier()
        exchange.begin_step()
        exchange.run(flat.clone(), [("w", (NUMEL,))])
    dist.barrier()
    return (own_counters()[INTERFACE][1] - before) / STEPS / compressor.layout((NUMEL,)).nbytes


def sent_by_replicas(shards: int, method: str | None, **options: object) -> float:
    """Bytes that left this host for each step of FSDP2 with replicas, over the 8-bit payload of the whole gradient.

    Args:
        shards: ranks of a shard group; ``LOCAL``: the ranks of a host shard the model, and hosts are replicas.
        method: method for the mean between the replicas; None: FSDP alone.
        options: options of ``compress_fsdp``.
    """
    mesh = init_device_mesh("cpu", (dist.get_world_size() // shards, shards), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(2)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    state = compress_fsdp(model, method, **options) if method is not None else None
    before = 0
    for step in range(1 + STEPS):
        if step == 1:
            dist.barrier()
            before = own_counters()[INTERFACE][1]
            dist.barrier()
        model(torch.randn(8, 512)).square().mean().backward()
    dist.barrier()
    sent = own_counters()[INTERFACE][1] - before
    if state is not None:
        state.close()
    code = build_compressor("blockwise8", {})
    return sent / STEPS / sum(code.layout((param.numel(),)).nbytes for param in model.parameters())


def hybrid() -> dict[str, float]:
    """The bytes that leave a host where its ranks shard the model, and where each rank is a replica."""
    return {
        "FSDP alone": sent_by_replicas(LOCAL, None),
        "hosts are replicas": sent_by_replicas(LOCAL, "blockwise8"),
        "ranks are replicas": sent_by_replicas(1, "blockwise8", strategy="allgather"),
        "hierarchical": sent_by_replicas(1, "blockwise8", strategy="hierarchical"),
    }


def decided() -> dict[str, object]:
    """The decisions of auto for a model whose gradients are mostly noise, and the bytes that left this host in a step
    before it decided and afterwards.
    """
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    state = compress_ddp(model, "auto")
    data, sent, held = torch.Generator().manual_seed(1 + dist.get_rank()), list[int](), 0
    while len(sent) < 90 and held < 10:
        before = own_counters()[INTERFACE][1]
        model.zero_grad()
        x, noise = torch.randn(8, 256, generator=data), torch.randn(8, 256, generator=data)
        nn.functional.mse_loss(model(x), noise).backward()
        dist.barrier()
        sent.append(own_counters()[INTERFACE][1] - before)
        # All ranks see the same phase.
        held = held + 1 if state.decisions()["phase"] == "holding" else 0
    auto = state.decisions()
    choices = [each["choice"] for each in auto["buckets"]]
    state.close()
    return {"choices": choices, "link": auto["link"], "before": sent[2], "after": median(sent[-5:])}


def main() -> None:
    if sys.argv[1] == "start":
        sys.exit(start())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    jobs = {"auto": decided, "hybrid": hybrid}
    job = jobs.get(sys.argv[1], lambda: {strategy: sent_by_host(strategy) for strategy in sys.argv[1:]})
    told = job()
    if os.environ["LOCAL_RANK"] == "0":
        print(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
