"""The stores of one process: MXNet's behaviour where it has one, and an error or the right result where it has not."""

import pytest
import torch

from gradwire import ConfigError, kvstore
from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.worker.store import DistStore
from tests.kvstore.stores import SHAPE, added, device, pulled, rows_of

TYPES = ["local", "local_update_cpu", "local_allreduce_cpu", "device", "local_allreduce_device"]


@pytest.mark.parametrize("name", TYPES)
def test_the_type_is_the_name_given(name):
    assert kvstore.create(name).type == name
    assert kvstore.create(name.upper()).type == name


@pytest.mark.parametrize("name", ["xyz", "", "nccl", "devise"])
def test_an_unknown_type_is_refused(name):
    with pytest.raises(ConfigError, match=r"unknown type of store .*Known: .*device"):
        kvstore.create(name)


def test_a_type_is_a_string():
    with pytest.raises(ConfigError, match="name must be a str"):
        kvstore.create(3)


@pytest.mark.parametrize(
    ("name", "option"), [("device", "staleness"), ("local", "timeout"), ("dist_async", "stalenes")]
)
def test_an_unknown_option_is_named(name, option):
    with pytest.raises(ConfigError, match=f"no option '{option}': .*Known: "):
        kvstore.create(name, **{option: 3})


@pytest.mark.parametrize(("name", "staleness"), [("dist_sync", 3), ("dist_async", -1), ("dist_async", 1.5)])
def test_a_bound_on_staleness_is_of_async_stores(name, staleness):
    with pytest.raises(ConfigError, match="staleness must be an integer >= 0, of a store whose type has 'async'"):
        DistStore(name, WorkerPlace(("tcp://127.0.0.1:1",), 0, 1), staleness=staleness)


@pytest.mark.parametrize("name", TYPES)
def test_a_process_alone_is_rank_0_of_1(name):
    kv = kvstore.create(name)
    kv.barrier()
    assert (kv.rank, kv.num_workers, kv.get_num_dead_node()) == (0, 1, 0)
    assert kv.is_capable("optimizer")


def test_another_capability_is_refused():
    with pytest.raises(ConfigError, match="'optimizer'"):
        kvstore.create().is_capable("fly")


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("key", [3, "a", -1, 2**40, 0, "", "größe"])
def test_a_push_replaces_the_value_by_the_sum(name, key):
    kv = kvstore.create(name)
    kv.init(key, torch.ones(SHAPE))
    assert torch.equal(pulled(kv, key), torch.ones(SHAPE))
    kv.push(key, [torch.full(SHAPE, 2.0), torch.full(SHAPE, 3.0)])
    assert torch.equal(pulled(kv, key), torch.full(SHAPE, 5.0))


@pytest.mark.parametrize("name", TYPES)
def test_an_updater_is_called_with_key_sum_and_value(name):
    kv, seen = kvstore.create(name), []

    def updater(key, merged, stored):
        seen.append(key)
        stored += 2 * merged

    kv.set_updater(updater)
    kv.init("a", torch.ones(SHAPE))
    kv.push("a", [torch.ones(SHAPE)] * 2)
    assert seen == ["a"]
    assert torch.equal(pulled(kv, "a"), torch.full(SHAPE, 5.0))


def test_what_an_updater_raises_reaches_the_caller():
    kv = kvstore.create()
    kv.set_updater(divmod)
    kv.init(1, torch.ones(SHAPE))
    with pytest.raises(TypeError, match="divmod"):
        kv.push(1, torch.ones(SHAPE))


def test_lists_of_keys_and_a_key_named_twice():
    kv = kvstore.create("device")
    kv.init([1, 2], [torch.zeros(SHAPE)] * 2)
    kv.push([1, 2, 1], [torch.ones(SHAPE), [torch.ones(SHAPE)] * 3, torch.ones(SHAPE)])
    assert torch.equal(pulled(kv, 1), torch.full(SHAPE, 2.0))
    assert torch.equal(pulled(kv, 2), torch.full(SHAPE, 3.0))
    kv.push([], [])


def test_the_store_has_copies_of_its_own():
    kv, value, grad = kvstore.create(), torch.ones(SHAPE), torch.ones(SHAPE)
    kv.init(1, value)
    value.fill_(9)
    assert torch.equal(pulled(kv, 1), torch.ones(SHAPE))
    kv.push(1, grad)
    grad.fill_(9)
    assert torch.equal(pulled(kv, 1), torch.ones(SHAPE))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32])
def test_other_types_uncompressed(dtype):
    kv, out = kvstore.create("device"), torch.empty(SHAPE, dtype=dtype)
    kv.init(1, torch.zeros(SHAPE, dtype=dtype))
    kv.push(1, [torch.full(SHAPE, 3, dtype=dtype)] * 2)
    kv.pull(1, out)
    assert torch.equal(out, torch.full(SHAPE, 6, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_point_types_are_compressed_in_float32(dtype):
    kv, out = device(type="2bit", threshold=0.5), torch.empty(SHAPE, dtype=dtype)
    kv.init(1, torch.zeros(SHAPE, dtype=dtype))
    kv.push(1, [torch.full(SHAPE, 0.7, dtype=dtype)] * 2)
    kv.pull(1, out)
    assert torch.equal(out, torch.ones(SHAPE, dtype=dtype))


def test_integers_are_not_compressed():
    kv = device(type="2bit")
    kv.init(1, torch.zeros(SHAPE, dtype=torch.int32))
    with pytest.raises(ConfigError, match="key 1 must be floating-point"):
        kv.push(1, torch.ones(SHAPE, dtype=torch.int32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda kv: kv.push(7, torch.ones(SHAPE)), "key 7 must be initialised"),
        (lambda kv: kv.pull(7, torch.ones(SHAPE)), "key 7 must be initialised"),
        (lambda kv: kv.init(1, torch.ones(SHAPE)), "key 1 must be initialised once"),
        (lambda kv: kv.init(2, [torch.ones(SHAPE)] * 2), "one tensor"),
        (lambda kv: kv.init("a", torch.ones(SHAPE)), "an int like those before it"),
        (lambda kv: kv.push([1, "a"], [torch.ones(SHAPE)] * 2), "all int or all str"),
        (lambda kv: kv.push(1, torch.ones(5, 5)), r"shape \(4, 4\), got \(5, 5\)"),
        (lambda kv: kv.push(1, torch.ones(16)), r"shape \(4, 4\), got \(16,\)"),
        (lambda kv: kv.pull(1, torch.ones(3)), "out of key 1"),
        (lambda kv: kv.pull(1), "out must be"),
        (lambda kv: kv.push(1, []), "value of key 1"),
        (lambda kv: kv.push(1, 5.0), "value of key 1"),
        (lambda kv: kv.push([1, 1], [torch.ones(SHAPE)]), "a list of 2"),
        (lambda kv: kv.push(1.5, torch.ones(SHAPE)), "key must be an int or a str"),
        (lambda kv: kv.push(2**70, torch.ones(SHAPE)), "64 bits"),
        (lambda kv: kv.push(1, torch.ones(SHAPE), priority="high"), "priority"),
        (lambda kv: kv.row_sparse_pull(1, torch.ones(SHAPE)), "row_ids"),
        (lambda kv: kv.row_sparse_pull(1, torch.ones(SHAPE), row_ids=torch.tensor([4])), r"in \[0, 4\)"),
        (lambda kv: kv.row_sparse_pull(1, torch.ones(SHAPE), row_ids=torch.tensor([0.5])), "integer"),
        (lambda kv: kv.save_optimizer_states("states"), "after set_optimizer"),
        (lambda kv: kv.set_optimizer("sgdd"), "did you mean 'sgd'"),
        (lambda kv: kv.set_optimizer("sgd", momentumm=0.9), "did you mean 'momentum'"),
        (lambda kv: kv.set_optimizer("sgd", learning_rate="fast"), "a finite number"),
        (lambda kv: kv.set_optimizer("sgd", learning_rate=-1.0), "refuses"),
    ],
)
@pytest.mark.parametrize("name", ["local", "device"])
def test_misuse_is_named_and_changes_nothing(name, call, message):
    kv = kvstore.create(name)
    kv.init(1, torch.ones(SHAPE))
    with pytest.raises(ConfigError, match=message):
        call(kv)
    assert torch.equal(pulled(kv, 1), torch.ones(SHAPE))


def test_pushpull_overwrites_the_gradients_or_fills_out():
    kv, grad, out = device(type="2bit", threshold=0.5), torch.full(SHAPE, 0.6), torch.empty(SHAPE)
    kv.init(1, torch.zeros(SHAPE))
    kv.pushpull(1, grad)
    assert torch.equal(grad, torch.full(SHAPE, 0.5))
    kv.pushpull(1, torch.full(SHAPE, 0.1), out)
    assert torch.equal(out, torch.zeros(SHAPE))


def test_broadcast_is_init_and_pull_uncompressed():
    kv, value, out = device(type="2bit"), torch.randn(SHAPE), torch.empty(SHAPE)
    kv.broadcast(1, value, out)
    assert torch.equal(out, value)
    with pytest.raises(ConfigError, match="once"):
        kv.broadcast(1, value, out)


def test_senders_whose_codes_have_no_room_are_refused_and_nothing_changes():
    kv = device(type="thc", levels=100)
    kv.init(1, torch.zeros(64, 64))
    with pytest.raises(ConfigError, match=r"THC.levels must be at most 255 // 3 = 85 with 3 workers"):
        kv.push(1, [torch.ones(64, 64)] * 3)
    kv.push(1, [torch.ones(64, 64)] * 2)
    out = torch.empty(64, 64)
    kv.pull(1, out)
    assert out.isfinite().all()


def test_a_memory_that_rounds_cannot_serve_is_refused_before_the_first_push():
    for memory in ("dgc", "momentum", "variance"):
        with pytest.raises(ConfigError, match=f"memory '{memory}' serves methods of one round"):
            device(type="powersgd", memory=memory)


def test_a_memory_in_codes_serves_and_changes_into_numbers():
    kv, grad = device(type="qsgd", bits=4, memory="averaged_error"), torch.randn(SHAPE)
    kv.init(1, torch.zeros(SHAPE))
    kv.set_updater(added)
    for _ in range(40):
        kv.push(1, grad)
    kv.set_gradient_compression({"type": "qsgd", "bits": 4, "memory": "residual"})
    for _ in range(10):
        kv.push(1, grad)
    torch.testing.assert_close(pulled(kv, 1) / 50, grad, rtol=0, atol=0.1)


def test_a_memory_in_codes_refuses_rows():
    kv = device(type="qsgd", bits=4, memory="averaged_error")
    kv.init(1, torch.zeros(8, 4))
    rows = rows_of(torch.ones(1, 4), [2], (8, 4))
    with pytest.raises(ConfigError, match=r"memory 'averaged_error' keeps blocks .* row-sparse gradient of key 1"):
        kv.push(1, rows)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), "5", True])
@pytest.mark.parametrize("name", ["timeout", "server_timeout"])
def test_a_time_that_no_store_can_wait_is_refused(name, bad):
    with pytest.raises(ConfigError, match=rf"^{name} must be seconds > 0"):
        DistStore("dist_sync", WorkerPlace(("tcp://127.0.0.1:1",), 0, 1), **{name: bad})


def test_a_call_that_names_a_known_key_initialises_none():
    kv = kvstore.create("local")
    kv.init("b", torch.zeros(1))
    with pytest.raises(ConfigError, match="key 'b' must be initialised once"):
        kv.init(["a", "b"], [torch.ones(1), torch.ones(1)])
    kv.init("a", torch.zeros(1))
