"""Row-sparse values and gradients."""

import pytest
import torch

from gradwire import ConfigError, kvstore
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


def test_another_sparse_form_is_refused():
    kv = kvstore.create()
    kv.init(1, torch.zeros(SHAPE))
    with pytest.raises(ConfigError, match="one sparse dimension"):
        kv.push(1, torch.ones(SHAPE).to_sparse())
