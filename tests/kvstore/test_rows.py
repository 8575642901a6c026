"""Row-sparse values and gradients."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire import ConfigError, kvstore
from tests.kvstore.in_threads import stores
from tests.kvstore.simulate import Simulated
from tests.kvstore.stores import SHAPE, added, device, rows_of


@pytest.mark.parametrize("name", ["local", "device"])
def test_row_sparse_gradients_and_values(name):
    kv = kvstore.create(name)
    kv.init("e", torch.ones(SHAPE).to_sparse(1))
    kv.set_updater(added)
    kv.push("e", [rows_of(torch.ones(2, 4), [3, 1]), rows_of(torch.ones(2, 4), [3, 3])])
    out = torch.full(SHAPE, 7.0)
    kv.row_sparse_pull("e", out, row_ids=torch.tensor([3, 0, 3]))
    assert out[:, 0].tolist() == [1, 0, 0, 4]
    sparse = torch.zeros(SHAPE).to_sparse(1)
    kv.row_sparse_pull("e", sparse, row_ids=torch.tensor([1, 3]))
    assert sparse.to_dense()[:, 0].tolist() == [0, 2, 0, 4]
    kv.pull("e", out)
    assert out[:, 0].tolist() == [1, 0, 0, 4], "a pull leaves row-sparse values alone"
    kv.pull("e", out, ignore_sparse=False)
    assert out[:, 0].tolist() == [1, 2, 1, 4]


def test_row_sparse_gradients_are_compressed_row_by_row():
    kv, shape = device(type="2bit", threshold=0.5), (6, 5)
    kv.init("e", torch.zeros(shape).to_sparse(1))
    kv.set_updater(added)
    simulated, want = Simulated("2bit", 0.5, shape), torch.zeros(shape)
    for rows in ([3, 1], [5], [1, 3, 0]):
        values = torch.randn(len(rows), 5)
        kv.push("e", rows_of(values, rows, shape))
        # Rows that are not named keep their residual, and send nothing.
        part = Simulated("2bit", 0.5, values.shape)
        part.residual[:] = simulated.residual[rows]
        want[rows] += torch.from_numpy(part.send(values.numpy()))
        simulated.residual[rows] = part.residual
    out = torch.empty(shape)
    kv.pull("e", out, ignore_sparse=False)
    assert torch.equal(out, want)


def test_a_state_of_the_whole_tensor_and_rows_do_not_go_together():
    kv = device(type="powersgd")
    kv.init("e", torch.zeros(64, 64))
    with pytest.raises(ConfigError, match="row-sparse gradient of key 'e'"):
        kv.push("e", rows_of(torch.ones(1, 64), [3], (64, 64)))


class Operations(TorchDispatchMode):
    """The names of torch's operations, in order."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_pull_into_a_sparse_tensor_costs_by_its_rows():
    """Not one operation for each row, and not the one of torch that looks at the elements one by one."""
    kv, shape = kvstore.create("local"), (1000, 100)
    value = torch.randn(shape)
    value[::3] = 0
    kv.init("e", value.to_sparse(1))
    out = torch.zeros(shape).to_sparse(1)
    with Operations() as whole:
        kv.pull("e", out, ignore_sparse=False)
    assert torch.equal(out.to_dense(), value)
    out = torch.zeros(shape).to_sparse(1)
    with Operations() as rows:
        kv.row_sparse_pull("e", out, row_ids=torch.arange(1000))
    assert torch.equal(out.to_dense(), value)
    with Operations() as slow:
        value.to_sparse(1)
    assert set(slow.names) & {"to_sparse.sparse_dim", "_to_sparse.sparse_dim"}
    assert not set(whole.names) & {"to_sparse.sparse_dim", "_to_sparse.sparse_dim"}
    assert len(whole.names) < 3 * len(rows.names)


WARNS = """
import threading
import torch
from gradwire import kvstore
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.worker.store import DistStore
from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.server import Server

stop, server = threading.Event(), Server(ServerCore(Rules(workers=1)))
thread = threading.Thread(target=server.run, args=(stop.is_set,))
thread.start()
try:
    dist = DistStore("dist_sync", WorkerPlace((server.endpoint,), 0, 1), timeout=30)
    value = torch.eye(6)
    for kv in (kvstore.create("local"), kvstore.create("device"), dist):
        for compression in ("none", "2bit"):
            kv.set_gradient_compression({"type": compression}) if kv.compresses else None
            kv.init(compression, value.to_sparse(1))
            kv.push(compression, [value.to_sparse(1), value])
            kv.push(compression, value.to_sparse(1))
            for out in (torch.zeros(6, 6), torch.zeros(6, 6).to_sparse(1)):
                kv.row_sparse_pull(compression, out, row_ids=torch.tensor([1, 3]))
                kv.pull(compression, out, ignore_sparse=False)
    dist.close()
finally:
    stop.set()
    thread.join(20)
    server.close()
"""


def test_torch_warns_nobody_of_checks_that_were_made():
    command = [sys.executable, "-W", "error::UserWarning", "-c", WARNS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr


def test_another_sparse_form_is_refused():
    kv = kvstore.create()
    kv.init(1, torch.zeros(SHAPE))
    with pytest.raises(ConfigError, match="one sparse dimension"):
        kv.push(1, torch.ones(SHAPE).to_sparse())


def test_rows_of_a_dense_key_that_is_cut_inside_of_rows_are_refused_where_rows_count_alone():
    with stores(1, servers=2, bound=8) as (kv,):
        kv.init("w", torch.ones(5, 3))
        kv.push("w", rows_of(torch.ones(1, 3), [0], (5, 3)))
        out = torch.empty(5, 3)
        kv.pull("w", out)
        assert out[:, 0].tolist() == [1, 0, 0, 0, 0], "a sum is the same however it is cut"
        kv.set_optimizer("sgd", learning_rate=0.1, lazy_update=True)
        with pytest.raises(ConfigError, match=r"dense with lazy_update, got a row-sparse one: .* cut over 2 servers"):
            kv.push("w", rows_of(torch.ones(1, 3), [0], (5, 3)))
        kv.set_optimizer("sgd", learning_rate=0.1)
        kv.push("w", rows_of(torch.ones(1, 3), [0], (5, 3)))
