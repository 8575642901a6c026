"""Two ranks on one host of a lab: started once for each host, it prints what the host's interface has sent.

Called with ``start`` it starts itself again as two ranks, whose numbers follow from that of the host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from gradwire.exchange.exchange import Exchange
from gradwire.exchange.settings import build_compressor
from gradwire.netlab.names import INTERFACE
from gradwire.netlab.system import own_counters

LOCAL = 2
NUMEL = 2**18
STEPS = 5


def start() -> int:
    """The ranks of this host; the largest of their exit codes."""
    host, hosts = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    command, ranks = [sys.executable, "-m", "tests.netlab.host_ranks", *sys.argv[2:]], []
    for local in range(LOCAL):
        told = {"LOCAL_RANK": str(local), "RANK": str(LOCAL * host + local), "WORLD_SIZE": str(LOCAL * hosts)}
        ranks.append(subprocess.Popen(command, env=os.environ | told))
    return max(rank.wait(90) for rank in ranks)


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


def main() -> None:
    if sys.argv[1] == "start":
        sys.exit(start())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    told = {strategy: sent_by_host(strategy) for strategy in sys.argv[1:]}
    if os.environ["LOCAL_RANK"] == "0":
        print(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
