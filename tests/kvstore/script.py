"""A training script as people write it, whoever starts it: it prints its rank and the sum that all workers see."""

import os
import sys

import torch

from gradwire import kvstore

if __name__ == "__main__":
    torch.set_num_threads(1)
    kv, out = kvstore.create("dist_sync", timeout=50), torch.empty(3)
    kv.init("w", torch.zeros(3))
    kv.push("w", torch.full((3,), float(kv.rank + 1)))
    kv.pull("w", out)
    kv.barrier()
    # In one piece: several processes may share the pipe.
    os.write(1, f"rank {kv.rank} of {kv.num_workers}, {len(kv.place.servers)} servers: {out.tolist()}\n".encode())
    if "fail" in sys.argv:
        raise RuntimeError("it fails")
    if "interrupt" in sys.argv:
        raise KeyboardInterrupt
