"""Conversations of two workers with the distributed store: what MXNet's hangs on, corrupts or loses.

A case is a function of the store and the rank, which both workers run; what they return goes to the test of its name in
``test_mxnet_failures.py``. Keys are cut from 100 elements on, over two servers.
"""

import copy
from dataclasses import replace

import torch

from gradwire import GradwireError
from gradwire.kvstore import Trainer
from gradwire.kvstore.protocol.environment import read_place
from gradwire.kvstore.worker.connection import Request, ScatterSink
from gradwire.kvstore.worker.store import DistStore
from tests.kvstore.stores import rows_of

SMALL, BIG = (3, 4), (40, 40)
TWOBIT = {"type": "2bit", "threshold": 0.5}


def refused(call, *arguments, **options):
    """The error of a call, or its result."""
    try:
        return call(*arguments, **options)
    except GradwireError as error:
        return f"{type(error).__name__}: {error}"


def pulled(kv, key, shape=SMALL, dtype=torch.float32):
    out = torch.full(shape, 7, dtype=dtype)
    kv.pull(key, out)
    return out


def pushed(kv, key, value, shape=SMALL):
    """Push a constant; what a pull gives then."""
    kv.push(key, torch.full(shape, float(value)))
    return pulled(kv, key, shape)


def compression_set_by_worker_0_alone(kv, rank):
    kv.init("alone-0", torch.zeros(SMALL))
    if rank == 0:
        kv.set_gradient_compression(TWOBIT)
    return pushed(kv, "alone-0", 0.6)


def compression_set_by_worker_1_alone(kv, rank):
    kv.init("alone-1", torch.zeros(BIG))
    if rank == 1:
        kv.set_gradient_compression(TWOBIT)
    return pushed(kv, "alone-1", 0.6, BIG)


def another_threshold_on_each_worker(kv, rank):
    kv.set_gradient_compression({"type": "2bit", "threshold": (0.5, 0.25)[rank]})
    kv.init("thresholds", torch.zeros(BIG))
    return pushed(kv, "thresholds", 0.6, BIG)


def a_threshold_of_less_than_six_decimals(kv, rank):
    values = []
    for threshold in (1e-7, 0.123456789, 1.5e-6):
        kv.set_gradient_compression({"type": "2bit", "threshold": threshold})
        kv.init(f"threshold {threshold}", torch.zeros(SMALL))
        values.append(pushed(kv, f"threshold {threshold}", 2 * threshold))
    return values


def a_new_threshold_twice_with_a_residual(kv, rank):
    kv.set_gradient_compression(TWOBIT)
    kv.init("twice", torch.zeros(BIG))
    first = pushed(kv, "twice", 0.4, BIG)
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.25})
    return [first, pushed(kv, "twice", 0.0, BIG)]


def compression_after_init_of_a_key_that_is_cut(kv, rank):
    kv.init("late", torch.zeros(BIG))
    kv.set_gradient_compression(TWOBIT)
    return [pushed(kv, "late", 0.6, BIG), pushed(kv, "late", 0.6, BIG)]


def compression_switched_off_again(kv, rank):
    kv.set_gradient_compression(TWOBIT)
    kv.init("off", torch.zeros(BIG))
    first = pushed(kv, "off", 0.4, BIG)
    kv.set_gradient_compression({"type": "none"})
    return [first, pushed(kv, "off", 0.3, BIG)]


def two_devices_of_a_worker_are_summed_before_one_compression(kv, rank):
    kv.set_gradient_compression(TWOBIT)
    kv.init("devices", torch.zeros(SMALL))
    kv.push("devices", [torch.full(SMALL, 0.3)] * 2)
    return pulled(kv, "devices")


def more_devices_than_before(kv, rank):
    kv.set_gradient_compression(TWOBIT)
    kv.init("growing", torch.zeros(SMALL))
    values = []
    for devices in (1, 4, 2):
        kv.push("growing", [torch.full(SMALL, 0.6 / devices)] * devices)
        values.append(pulled(kv, "growing"))
    return values


def pushpull_with_compression(kv, rank):
    kv.set_gradient_compression(TWOBIT)
    kv.init("pushpull", torch.zeros(BIG))
    grad, out = torch.full(BIG, 0.6), torch.empty(BIG)
    kv.pushpull("pushpull", grad, out)
    kv.pushpull("pushpull", grad)
    return [out, grad]


def a_gradient_is_the_callers_after_push_and_pull(kv, rank):
    grads = []
    for name, params in (("kept", {"type": "none"}), ("kept 2bit", TWOBIT)):
        kv.set_gradient_compression(params)
        kv.init(name, torch.zeros(SMALL))
        grads.append(torch.full(SMALL, 0.6))
        kv.push(name, grads[-1])
        pulled(kv, name)
    return grads


def a_pushed_gradient_may_change_at_once(kv, rank):
    kv.init("changed", torch.zeros(BIG))
    grad = torch.ones(BIG)
    kv.push("changed", grad)
    grad.fill_(99)
    return pulled(kv, "changed", BIG)


def a_pull_is_not_changed_by_the_push_after_it(kv, rank):
    keys = [f"race {i}" for i in range(50)]
    kv.init(keys, [torch.zeros(BIG)] * 50)
    firsts, seconds = ([torch.empty(BIG) for _ in keys] for _ in range(2))
    kv.pull(keys, firsts)
    kv.push(keys, [torch.ones(BIG)] * 50)
    kv.pull(keys, seconds)
    return [torch.stack(firsts), torch.stack(seconds)]


def a_barrier_waits_for_what_was_pushed_before_it(kv, rank):
    shape = (2000, 1000)
    kv.init("barrier", torch.zeros(shape))
    kv.push("barrier", torch.ones(shape))
    kv.barrier()
    part = kv._keys["barrier"].parts[0]
    out = torch.empty(part.numel)
    sink = ScatterSink([(0, out.view(torch.uint8).numpy())], out.nbytes)
    request = Request("pull", {"items": [["barrier", 0]]}, out=sink)
    kv._ask([(part.server, request)], "a value as it is now")
    return out


def push_before_init(kv, rank):
    told = refused(kv.push, "never", torch.ones(SMALL))
    kv.init("never", torch.zeros(SMALL))
    return [told, pushed(kv, "never", 1.0)]


def pull_before_init(kv, rank):
    return refused(pulled, kv, "nothing")


def init_a_second_time(kv, rank):
    kv.init("again", torch.ones(SMALL))
    return [refused(kv.init, "again", torch.zeros(SMALL)), pulled(kv, "again"), pushed(kv, "again", 3.0)]


def another_size_on_worker_1(kv, rank):
    told = refused(kv.init, "sizes", torch.zeros((3, 4 + rank)))
    return [told, refused(kv.push, "sizes", torch.ones((3, 4 + rank)))]


def a_push_of_another_size(kv, rank):
    kv.init("wrong size", torch.zeros(SMALL))
    told = []
    for params in ({"type": "none"}, TWOBIT):
        kv.set_gradient_compression(params)
        told += [refused(kv.push, "wrong size", torch.ones(size)) for size in (5, 12, 50)]
    return [told, pushed(kv, "wrong size", 0.6)]


def float16_with_compression(kv, rank):
    kv.set_gradient_compression(TWOBIT)
    values = []
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        kv.init(f"{dtype}", torch.zeros(BIG, dtype=dtype))
        kv.push(f"{dtype}", torch.full(BIG, 0.7, dtype=dtype))
        values.append(pulled(kv, f"{dtype}", BIG, dtype))
    return values


def row_sparse_with_compression(kv, rank):
    kv.set_gradient_compression(TWOBIT)
    kv.init("rows", torch.zeros(BIG).to_sparse(1))
    kv.push("rows", rows_of(torch.full((2, 40), 0.6), [3, 30 + rank], BIG))
    out, some = torch.full(BIG, 7.0), torch.full(BIG, 7.0)
    kv.pull("rows", out, ignore_sparse=False)
    kv.row_sparse_pull("rows", some, row_ids=torch.tensor([31, 3, 3]))
    return [out, some]


def row_sparse_pushed_to_a_dense_key(kv, rank):
    kv.set_gradient_compression(TWOBIT)
    kv.init("dense", torch.zeros(SMALL))
    kv.push("dense", rows_of(torch.full((1, 4), 0.6), [2], SMALL))
    return pulled(kv, "dense")


def keys_named_in_another_order_on_each_worker(kv, rank):
    names = ["first", "second", "third"]
    for name in names if rank == 0 else reversed(names):
        kv.init(name, torch.full(SMALL, float(names.index(name))))
    return [pushed(kv, name, 1.0 + names.index(name)) for name in names]


def the_last_server_gets_no_word_of_a_small_key(kv, rank):
    kv.set_gradient_compression(TWOBIT)
    kv.bound = 1
    try:
        values = []
        for n in (1, 5, 15, 17, 31, 33):
            kv.init(f"tiny {n}", torch.zeros(n))
            values.append(pushed(kv, f"tiny {n}", 0.6, (n,)))
        return values
    finally:
        kv.bound = 100


def a_nonsense_number_is_refused_on_every_worker(kv, rank):
    kv.set_gradient_compression(TWOBIT)
    kv.init("nan", torch.zeros(SMALL))
    told = [refused(kv.push, "nan", torch.full(SMALL, bad)) for bad in (float("nan"), float("inf"))]
    return [told, pushed(kv, "nan", 0.6)]


def an_optimizer_by_name(kv, rank):
    return [refused(kv.set_optimizer, "sdg"), refused(kv.set_updater, print)]


def optimizer_states_before_an_optimizer(kv, rank):
    return refused(kv.save_optimizer_states, "never written")


def a_store_cannot_be_copied(kv, rank):
    return refused(copy.deepcopy, kv)


CASES = {
    name: value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", None) == __name__
    and value.__code__.co_varnames[:2] == ("kv", "rank")
}


def run_cases(rank):
    """Every case on one store, in their order; what ``int_keys`` and ``asynchronous`` give, on others of this group."""
    place = read_place()
    keys, ints, alone = (replace(place, servers=place.servers[i : i + 2]) for i in (0, 2, 4))
    kv, results = DistStore("dist_sync", keys, bound=100, timeout=20), {}
    for name, conversation in CASES.items():
        kv.barrier()
        kv.set_gradient_compression({"type": "none"})
        results[name] = refused(conversation, kv, rank)
    results["ints"] = int_keys(DistStore("dist_sync", ints, bound=100, timeout=20))
    results["async"] = asynchronous(DistStore("dist_async", alone, timeout=20))
    return results


def int_keys(kv):
    """Keys that MXNet's hash takes to no server, keys that are none, and Gluon's Trainer."""
    values = {}
    for key in (-1, 300001, 2**31, 2**40, -(2**63)):
        kv.init(key, torch.zeros(SMALL))
        values[key] = pushed(kv, key, 1.0)
    told = [refused(kv.init, bad, torch.zeros(SMALL)) for bad in (2**63, "a", 1.5, None, b"a")]
    return values, told, trained(kv, update_on_kvstore=False)


def asynchronous(kv):
    """Without an optimizer, where MXNet's server dies; and a Trainer."""
    kv.init(7, torch.zeros(SMALL))
    plain = pushed(kv, 7, 5.0)
    kv.barrier()
    trained(kv)
    kv.barrier()
    return plain, pulled(kv, 0)


def trained(kv, **options):
    """A Trainer's weights after three steps with compression."""
    param = torch.nn.Parameter(torch.zeros(SMALL))
    trainer = Trainer([param], "sgd", {"learning_rate": 1.0}, kvstore=kv, compression_params=TWOBIT, **options)
    for grad in (0.6, 0.1, 0.3):
        param.grad = torch.full(SMALL, grad)
        trainer.step(1)
    kv.barrier()
    return param.data
