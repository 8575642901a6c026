"""Work of the workers in the tests of a distributed store's features: many things, in one group of processes."""

import time
from pathlib import Path

import torch

from gradwire import ConfigError, GroupError, kvstore
from tests.kvstore.jobs import gradient

BOUND = 1000
GROUP = {"a": (4, 4), "b": (3,), "big": (60, 40)}
ALONE = ["powersgd", "acp_sgd", "gradzip", "sketched_sgd", "global_qsgd", "thc"]
MATRIX = (40, 30)
ROWS = (30, 50)
AUTO = {"type": "2bit", "threshold": "auto"}
PULLED = {
    "topk": {"type": "topk", "ratio": 0.05},
    "auto": AUTO,
    "cast": {"type": "fp16"},
    "lowrank": {"type": "powersgd"},
}


def everything(rank, folder):
    """Without an optimizer first, then with one."""
    kv = kvstore.create("dist_sync", bound=BOUND, timeout=60)
    told = {
        "groups": groups(kv),
        "alone": alone(kv),
        "rows": rows(kv),
        "scales": scales(kv),
        "sums": answers(kv, "sums"),
    }
    kv.set_gradient_compression({"type": "none"})
    kv.set_optimizer("sgd", learning_rate=0.01, momentum=0.9)
    told |= {"changes": answers(kv, "changes"), "states": states(kv, folder)}
    kv.barrier()
    return told


def groups(kv):
    """Keys in a list, several senders of one worker, places that are filled twice, and a priority."""
    keys = list(GROUP)
    kv.init(keys, [torch.zeros(shape) for shape in GROUP.values()])
    kv.push(
        keys, [[gradient(kv.rank, i, shape) for i in range(1 + len(shape))] for shape in GROUP.values()], priority=3
    )
    outs = [[torch.empty(shape), torch.empty(shape)] for shape in GROUP.values()]
    kv.pull(keys, outs, priority=-1)
    assert all(torch.equal(*both) for both in outs)
    grads = [gradient(kv.rank, 9, shape) for shape in GROUP.values()]
    kv.pushpull(keys, grads)
    return [both[0] for both in outs], grads


def alone(kv):
    """Methods of several rounds, each worker for itself."""
    told = {}
    for name in ALONE:
        kv.set_gradient_compression({"type": name})
        kv.init(name, torch.zeros(MATRIX))
        told[name] = []
        for step in range(3):
            kv.push(name, gradient(kv.rank, step, MATRIX))
            told[name].append(torch.empty(MATRIX))
            kv.pull(name, told[name][-1])
    try:
        kv.set_gradient_compression({"type": "gradiveq"})
    except ConfigError as error:
        told["refused"] = str(error)
    return told


def sparse(rank, step):
    """Three rows, of which some are those of the other worker."""
    places = (torch.arange(3) * 7 + step + 7 * rank) % ROWS[0]
    values = gradient(rank, step, (3, ROWS[1]))
    return torch.sparse_coo_tensor(places[None], values, ROWS, check_invariants=True)


def rows(kv):
    """Row-sparse values that are cut between rows, and a dense one that is cut anywhere; plain, then compressed."""
    told = {}
    for name, params in (("plain", {"type": "none"}), ("twobit", {"type": "2bit", "threshold": 0.5})):
        kv.set_gradient_compression(params)
        keys = [f"{name}-{i}" for i in range(4)] + [f"{name}-dense"]
        first = torch.ones(ROWS)
        kv.init(keys, [first.to_sparse(1)] * 4 + [first])
        values = []
        for step in range(3):
            kv.push(keys, [sparse(kv.rank, step)] * 5)
            some, whole = torch.zeros(ROWS), torch.empty(ROWS)
            kv.row_sparse_pull(keys[0], some, row_ids=torch.tensor([7 + step, step, 7 + step]))
            kv.pull(keys[1], whole, ignore_sparse=False)
            picked = torch.zeros(ROWS).to_sparse(1)
            kv.row_sparse_pull(keys[4], picked, row_ids=torch.arange(ROWS[0]))
            values.append((some, whole, picked.to_dense()))
        untouched = torch.full(ROWS, 7.0)
        kv.pull(keys[2], untouched)
        told[name] = (values, untouched, [len(kv._keys[key].parts) for key in keys])
    return told


def scales(kv):
    """Worker 1's gradients are a hundred times worker 0's, and of other elements."""
    kv.set_gradient_compression(AUTO)
    kv.init("scales", torch.zeros(2, 400))
    delivered, total = torch.zeros(2, 400), torch.zeros(2, 400)
    for step in range(12):
        grad = torch.zeros(2, 400)
        grad[kv.rank] = 100.0**kv.rank * (0.01 + 0.001 * gradient(kv.rank, step, (400,)))
        total += grad
        out = torch.empty(2, 400)
        kv.pushpull("scales", grad, out)
        delivered += out
    return delivered, total


def answers(kv, kind):
    """Compressed answers of a small key and of one that is cut over the servers; what was pulled in each step."""
    told = {}
    for name, pull in PULLED.items():
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5, "pull": pull})
        keys = [f"{kind}-{name}", f"{kind}-{name}-cut"]
        kv.init(keys, [torch.zeros(20, 30), torch.zeros(60, 40)])
        told[name] = []
        for step in range(4):
            kv.push(keys, [gradient(kv.rank, step, (20, 30)), gradient(kv.rank, step, (60, 40))])
            outs = [torch.empty(20, 30), torch.empty(60, 40)]
            kv.pull(keys, outs)
            told[name].append(outs)
    return told


def states(kv, folder):
    """Momentum of keys on both servers goes through a file: from the same momentum, the same way again."""
    keys, shapes = ["s-small", "s-cut"], [(5, 5), (60, 40)]
    kv.set_gradient_compression({"type": "none"})
    kv.init(keys, [torch.zeros(shape) for shape in shapes])
    outs = [torch.empty(shape) for shape in shapes]

    def trained(steps):
        for step in steps:
            kv.push(keys, [gradient(kv.rank, step, shape) for shape in shapes])
            kv.pull(keys, outs)
        return [out.clone() for out in outs]

    file = str(Path(folder) / "states")
    at = [trained(range(3))]
    kv.barrier()
    if kv.rank == 0:
        kv.save_optimizer_states(file, dump_optimizer=True)
    kv.barrier()
    at.append(trained(range(3, 6)))
    kv.load_optimizer_states(file)
    at.append(trained(range(3, 6)))
    return at


def ahead(rank, folder, steps, staleness):
    """A fast worker and a slow one: how far the fast one was ahead, and what it met with when the slow one stopped."""
    kv, out = kvstore.create("dist_async", staleness=staleness, timeout=60), torch.empty(4)
    kv.set_gradient_compression({"type": "none", "pull": {"type": "fp16"}})
    kv.set_optimizer("test")
    kv.init("w", torch.zeros(4))
    fast, slow, done = (Path(folder) / name for name in ("fast", "slow", "done"))
    leads = []
    for step in range(1, steps + 1):
        if rank == 1:
            time.sleep(0.1)
            leads.append(int(fast.read_text()) - (step - 1) if fast.exists() else 0)
        kv.push("w", torch.ones(4))
        kv.pull("w", out)
        if rank == 0:
            write(fast, str(step))
    if rank == 1:
        write(slow, "stopped")
        wait_for(done)
        return leads, out
    wait_for(slow)
    kv._client.timeout, error = 2.0, ""
    for _ in range(staleness + 1):
        try:
            kv.push("w", torch.ones(4))
            kv.pull("w", out)
        except GroupError as met:
            error = str(met)
    write(done, "done")
    return error, out


def write(file, text):
    temporary = file.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(file)


def wait_for(file, seconds=60):
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} did not appear"
        time.sleep(0.02)
