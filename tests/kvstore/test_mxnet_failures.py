"""Calls with which MXNet 1.9 hangs, crashes, corrupts or loses something: ours works, or raises at once.

In one process (``test_local.py``, ``test_compression.py`` and ``test_rows.py`` hold what is not here):

    any string is a store's type                test_local::test_an_unknown_type_is_refused
    unknown keys, wrong case, bad numbers       test_compression::test_bad_compression_parameters...
    no way to switch off                        test_compression::test_compression_can_be_switched_off...
    growing device counts, late compression     test_compression::test_the_number_of_senders..., ..._after_init_...
    aliased gradients and values                test_local::test_the_store_has_copies_of_its_own
    swallowed errors of an updater              test_local::test_what_an_updater_raises_reaches_the_caller
    push, pull, init in the wrong order         test_local::test_misuse_is_named_and_changes_nothing
    float16, integers                           test_local::test_other_floating_point_types..., test_integers...
    row-sparse                                  test_rows
    a pushed tensor of another size             test_local::test_misuse_is_named_and_changes_nothing

Over servers: the tests below, each with the conversation of its name in ``cases.py``. Killed workers and servers are in
``test_faults.py``; sums in the order of ranks in ``test_core.py``.
"""

import copy
import pickle
from itertools import chain

import pytest
import torch

from gradwire import ConfigError, kvstore
from tests.kvstore.cases import BIG, CASES, SMALL, run_cases
from tests.kvstore.group import run_workers
from tests.kvstore.simulate import Simulated
from tests.kvstore.stores import SHAPE, device, pulled, rows_of


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of both workers of one group."""
    return run_workers(run_cases, 2, 5, folder=tmp_path_factory.mktemp("cases"))


@pytest.fixture
def told(results, request):
    """The results of the workers in the case of the test's name."""
    name = request.node.originalname.removeprefix("test_")
    return [worker[name] for worker in results]


def both(told, value, shape=SMALL):
    return all(torch.equal(result, torch.full(shape, float(value))) for result in told)


def test_every_case_is_looked_at():
    assert len(CASES) > 20
    assert not [name for name in CASES if f"test_{name}" not in globals()]


def test_compression_set_by_worker_0_alone(told):
    assert both(told, torch.tensor(0.5) + torch.tensor(0.6))


def test_compression_set_by_worker_1_alone(told):
    assert both(told, torch.tensor(0.5) + torch.tensor(0.6), BIG)


def test_another_threshold_on_each_worker(told):
    assert both(told, 0.5 + 0.25, BIG)


def test_a_threshold_of_less_than_six_decimals(told):
    for values in told:
        for threshold, value in zip((1e-7, 0.123456789, 1.5e-6), values, strict=True):
            assert torch.equal(value, 2 * torch.full(SMALL, threshold))


def test_a_new_threshold_twice_with_a_residual(told):
    assert both([first for first, _ in told], 0, BIG)
    assert both([second for _, second in told], 2 * 0.25, BIG)


def test_compression_after_init_of_a_key_that_is_cut(told):
    assert both(chain(*told), 1.0, BIG)


def test_compression_switched_off_again(told):
    assert both([second for _, second in told], torch.tensor(0.3) + torch.tensor(0.3), BIG)


def test_two_devices_of_a_worker_are_summed_before_one_compression(told):
    assert both(told, 1.0)


def test_more_devices_than_before(told):
    assert all(both([values[step] for values in told], 1.0) for step in range(3))


def test_pushpull_with_compression(told):
    assert both(chain(*told), 1.0, BIG)


def test_a_gradient_is_the_callers_after_push_and_pull(told):
    assert both(chain(*told), torch.tensor(0.6))


def test_a_pushed_gradient_may_change_at_once(told):
    assert both(told, 2.0, BIG)


def test_a_pull_is_not_changed_by_the_push_after_it(told):
    for first, second in told:
        assert not first.any()
        assert torch.equal(second, torch.full_like(second, 2.0))


def test_a_barrier_waits_for_what_was_pushed_before_it(told):
    assert all(torch.equal(out, torch.full_like(out, 2.0)) for out in told)


def test_push_before_init(told):
    assert all("ConfigError: key 'never' must be initialised" in told for told, _ in told)
    assert both([value for _, value in told], 2.0)


def test_pull_before_init(told):
    assert all("ConfigError: key 'nothing' must be initialised" in told for told in told)


def test_init_a_second_time(told):
    assert all("ConfigError: key 'again' must be initialised once" in told for told, *_ in told)
    assert both([value for _, value, _ in told], 1.0)
    assert both([value for *_, value in told], 6.0)


def test_another_size_on_worker_1(told):
    assert told[0] == [None, None]
    told, pushing = told[1]
    assert "ConfigError" in told
    assert "another worker has" in told
    assert "(3, 5)" in told
    assert "must be initialised" in pushing


def test_a_push_of_another_size(told):
    for refusals, value in told:
        assert all("ConfigError: value of key 'wrong size' must be of shape (3, 4)" in each for each in refusals)
        assert torch.equal(value, torch.ones(SMALL))


def test_float16_with_compression(told):
    for values in told:
        for value, dtype in zip(values, (torch.float16, torch.bfloat16, torch.float64), strict=True):
            assert torch.equal(value, torch.ones(BIG, dtype=dtype))


def test_row_sparse_with_compression(told):
    for out, some in told:
        assert out[:, 0].nonzero().view(-1).tolist() == [3, 30, 31]
        assert out[[3, 30, 31], 0].tolist() == [1.0, 0.5, 0.5]
        assert some[:, 0].nonzero().view(-1).tolist() == [3, 31]


def test_row_sparse_pushed_to_a_dense_key(told):
    assert all(value[:, 0].tolist() == [0.0, 0.0, 1.0] for value in told)


def test_keys_named_in_another_order_on_each_worker(told):
    for values in told:
        assert [value[0, 0].item() for value in values] == [2.0, 4.0, 6.0]


def test_the_last_server_gets_no_word_of_a_small_key(told):
    for values in told:
        assert [value.tolist() for value in values] == [[1.0] * n for n in (1, 5, 15, 17, 31, 33)]


def test_a_nonsense_number_is_refused_on_every_worker(told):
    for refusals, value in told:
        assert all("key 'nan' must be finite" in each for each in refusals)
        assert torch.equal(value, torch.ones(SMALL))


def test_an_optimizer_by_name(told):
    for name, function in told:
        assert "did you mean 'sgd'" in name
        assert "cannot travel" in function


def test_optimizer_states_before_an_optimizer(told):
    assert all("after set_optimizer" in told for told in told)


def test_a_store_cannot_be_copied(told):
    assert all("ConfigError" in told and "cannot be copied" in told for told in told)


def test_int_keys_that_the_hash_takes_to_no_server(results):
    for values, *_ in (worker["ints"] for worker in results):
        assert len(values) == 5
        assert both(values.values(), 2.0)


def test_what_is_no_key(results):
    for _, told, _ in (worker["ints"] for worker in results):
        assert all(each.startswith("ConfigError: key must be") for each in told)


def compressed_weights():
    sender = Simulated("2bit", 0.5, SMALL)
    sent = sum(torch.from_numpy(sender.send(torch.full(SMALL, grad).numpy())) for grad in (0.6, 0.1, 0.3))
    assert sent.any()
    return -2 * sent


def test_a_trainer_with_compression(results):
    assert all(torch.equal(worker["ints"][2], compressed_weights()) for worker in results)


def test_async_without_an_optimizer_and_a_trainer_with_compression(results):
    for plain, weights in (worker["async"] for worker in results):
        assert both([plain], 5.0)
        assert torch.equal(weights, compressed_weights())


@pytest.mark.parametrize("kind", ["dist", "dist_sync", "dist_async", "DIST_SYNC", "dist_sync_device"])
def test_a_dist_store_outside_a_group_says_how_to_start_one(kind, monkeypatch):
    for name in ("GRADWIRE_SERVERS", "DMLC_PS_ROOT_URI", "DMLC_ROLE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="gradwire launch"):
        kvstore.create(kind)


@pytest.mark.parametrize("kind", ["distasync", "horovod", "distributed", "device ", "dist-sync"])
def test_a_type_that_mxnet_reads_as_another_is_refused(kind):
    with pytest.raises(ConfigError, match=r"Known: .*dist_async"):
        kvstore.create(kind)


@pytest.mark.parametrize("params", [[("type", "2bit")], "2bit", None, 5, {"type": "2bit", b"threshold": 0.5}, {3: 4}])
def test_parameters_that_are_no_dict_of_names(params):
    with pytest.raises(ConfigError, match="compression_params must be"):
        kvstore.create("device").set_gradient_compression(params)


@pytest.mark.parametrize(
    "threshold", ["0.5f", "", None, " ", "0x1p-2", True, [0.5], 1e-46, "1e40", "-0.0", "inf", "nan"]
)
def test_thresholds_that_are_no_float32_above_0(threshold):
    kv = device(type="2bit", threshold=0.25)
    with pytest.raises(ConfigError, match="threshold"):
        kv.set_gradient_compression({"type": "2bit", "threshold": threshold})
    assert kv.compression.push.threshold == 0.25


@pytest.mark.parametrize("kind", ["local", "device"])
def test_a_store_is_not_copied(kind):
    kv = kvstore.create(kind)
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ConfigError, match="cannot be copied"):
            copying(kv)


@pytest.mark.parametrize("huge", [1e8, 3e38])
def test_a_gradient_that_dwarfs_the_threshold_goes_on_being_sent(huge):
    kv = device(type="2bit", threshold=0.5)
    kv.init(1, torch.zeros(SHAPE))
    for grad in (huge, 0.0, 0.0):
        kv.push(1, torch.full(SHAPE, grad))
        assert torch.equal(pulled(kv, 1), torch.full(SHAPE, 0.5))


def test_a_value_that_overflows_is_refused_and_the_residual_is_as_before():
    kv = device(type="2bit", threshold=0.5)
    kv.init(1, torch.zeros(SHAPE))
    kv.push(1, torch.full(SHAPE, 3e38))
    with pytest.raises(ConfigError, match="key 1 must be finite"):
        kv.push(1, torch.full(SHAPE, 3e38))
    kv.push(1, torch.full(SHAPE, -3e38))
    kv.push(1, torch.full(SHAPE, 0.0))
    assert pulled(kv, 1).abs().max() <= 0.5


def test_keys_of_another_kind_in_one_list_and_after_another():
    kv = kvstore.create("device")
    kv.init([1, 2], [torch.zeros(SHAPE)] * 2)
    for key in ("a", [1, "a"], 2**63, 1.0, b"a", None):
        values = [torch.zeros(SHAPE)] * 2 if isinstance(key, list) else torch.zeros(SHAPE)
        with pytest.raises(ConfigError, match="key"):
            kv.init(key, values)


def test_a_key_that_no_encoding_has():
    for call in (kvstore.create().init, kvstore.create().push, kvstore.create().pull):
        with pytest.raises(ConfigError, match="key must be at most 1024 bytes of UTF-8"):
            call("\ud800", torch.zeros(SHAPE))


def test_a_value_is_pulled_into_another_type():
    kv, half = device(type="2bit"), torch.empty(SHAPE, dtype=torch.float16)
    kv.init(1, torch.full(SHAPE, 0.1))
    kv.pull(1, half)
    assert torch.equal(half, torch.full(SHAPE, 0.1).half())


@pytest.mark.parametrize("sparse", [torch.float16, torch.float64])
def test_row_sparse_of_another_type_is_compressed_in_float32(sparse):
    kv, out = device(type="2bit", threshold=0.5), torch.empty(SHAPE, dtype=sparse)
    kv.init("e", torch.zeros(SHAPE, dtype=sparse))
    kv.push("e", rows_of(torch.full((2, 4), 0.7, dtype=sparse), [3, 1]))
    kv.pull("e", out)
    assert out[:, 0].tolist() == [0, 0.5, 0, 0.5]


def test_a_row_sparse_pull_of_a_dense_key_and_into_a_dense_tensor():
    kv, out = kvstore.create("device"), torch.full(SHAPE, 9.0)
    kv.init("d", torch.ones(SHAPE))
    kv.row_sparse_pull("d", out, row_ids=torch.tensor([2, 2, 0]))
    assert out[:, 0].tolist() == [1, 0, 1, 0]


def test_subnormal_gradients_add_up():
    kv = device(type="2bit", threshold=1.5e-38)
    kv.init(1, torch.zeros(SHAPE))
    for _ in range(2):
        kv.push(1, torch.full(SHAPE, 8e-39))
    assert torch.equal(pulled(kv, 1), torch.full(SHAPE, 1.5e-38))
