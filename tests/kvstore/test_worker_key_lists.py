"""Lists of keys that a worker names again and again: nobody can tell them from keys that are named alone."""

import itertools

import numpy as np
import pytest
import torch
import zmq

from gradwire._system import Readings
from gradwire.kvstore.protocol.compression import parse
from gradwire.kvstore.protocol.keys import KeyPart
from gradwire.kvstore.protocol.small_keys import MAX_LISTS, Backoff
from gradwire.kvstore.system import SYSTEM
from gradwire.kvstore.worker.connection import Request, ServerConnection
from gradwire.kvstore.worker.worker_key import PushProgress, WorkerKey
from gradwire.kvstore.worker.worker_key_list import KeyListRegistry, WorkerKeyList
from tests.kvstore.group import run_workers
from tests.kvstore.jobs import lists_of_keys


def known(key, *shape, server=0, dtype=torch.float32, step=0, sparse=False):
    size = torch.Size(shape)
    parts = [KeyPart(server, 0, size.numel())]
    return WorkerKey(key, size, dtype, sparse, parts, progress=PushProgress(step))


def by_name(*keys):
    return {each.key: each for each in keys}


def grouped(keys, names=None):
    """Keys that are named together for the second time."""
    lists = KeyListRegistry(keys)
    names = list(keys) if names is None else names
    assert lists.find(names) is None
    return lists.find(names)


def test_real_workers_get_the_bits_of_keys_that_are_alone(tmp_path):
    for told, joined in run_workers(lists_of_keys, 2, 2, folder=tmp_path):
        for name, together, alone in told:
            assert all(map(torch.equal, together, alone)), name
        assert joined.count(True) >= 8
        assert joined.count(False) >= 4


def test_small_keys_of_a_server_and_a_dtype_share_a_list():
    keys = by_name(
        known("d", 3),
        known("a", 40),
        known("c", 5, server=1),
        known("b", 2, 2, server=1),
        known("alone", 4, server=2),
        known("half", 3, dtype=torch.float16),
        known("half too", 3, dtype=torch.float16),
        known("large", 10**6),
        known("none", 0),
        known("rows", 4, 4, sparse=True),
        known("codes", 4, dtype=torch.bfloat16),
    )
    found = grouped(keys)
    assert sorted((each.server, each.keys) for each, _ in found.lists) == [
        (0, ["a", "d"]),
        (0, ["half", "half too"]),
        (1, ["b", "c"]),
    ]
    assert [[found.keys[place] for place in places] for _, places in found.lists] == [
        each.keys for each, _ in found.lists
    ]
    assert [found.keys[place] for place in found.rest] == ["alone", "large", "none", "rows", "codes"]


def test_one_order_of_a_list_is_as_good_as_another():
    lists = KeyListRegistry(by_name(*(known(key, 3) for key in "abc")))
    for names in ("abc", "cab", "abc", "cab"):
        lists.find(list(names))
    assert len(lists.undeclared) == 1


def test_names_that_are_equal_and_not_the_same_key_are_no_list():
    lists = KeyListRegistry(by_name(known(0, 3), known(1, 3)))
    assert lists.find([0, 1]) is None
    assert lists.find([0, 1]).lists
    assert lists.find([0, 1.0]) is None
    assert lists.find([False, 1]) is None
    assert lists.find([0, [1]]) is None


@pytest.mark.parametrize("names", [[False, True], [0.0, 1.0], [np.int64(0), 1]])
def test_a_list_that_was_first_named_by_what_is_no_key_is_one_by_its_keys(names):
    lists = KeyListRegistry(by_name(known(0, 3), known(1, 3)))
    assert [lists.find(names) for _ in range(3)] == [None] * 3
    assert lists.find([0, 1]).lists[0][0].keys == [0, 1]
    assert lists.find(names) is None


def test_lists_are_bounded():
    lists = KeyListRegistry(by_name(*(known(number, 3) for number in range(40))))
    for _ in range(2):
        for a in range(40):
            for b in range(a):
                lists.find([a, b])
    assert len(lists.undeclared) == MAX_LISTS


def test_keys_at_another_step_come_together_when_they_are_at_the_same():
    keys = by_name(known("a", 3, step=2), known("b", 3, step=1))
    found = grouped(keys)
    assert not found.join()
    keys["b"].progress.step = 2
    assert found.join()
    assert keys["a"].progress is keys["b"].progress
    keys["a"].separate()
    keys["b"].progress.step += 1
    assert (keys["a"].step, keys["b"].step) == (2, 3)


def test_a_key_is_joined_in_one_list_at_a_time():
    keys = by_name(*(known(key, 3) for key in "abc"))
    first, second = grouped(keys, list("ab")), grouped(keys, list("bc"))
    assert first.join()
    assert not second.join()
    first.lists[0][0].separate()
    assert second.join()


def test_a_backoff_grows_each_time():
    backoff, waited = Backoff(), []
    for _ in range(12):
        backoff.start()
        waited.append(next(use for use in range(1, 5000) if backoff.expired()))
    assert waited == sorted(waited)
    assert waited[:4] == [1, 3, 7, 15]
    assert waited[-1] == 1024


def test_residuals_are_those_of_keys_that_were_always_alone():
    compression = parse({"type": "2bit", "threshold": 0.5})
    keys, plain = (by_name(known("a", 3), known("b", 40), known("c", 33)) for _ in range(2))
    joined = WorkerKeyList(1, 0, list(keys.values()))
    generator = torch.Generator().manual_seed(3)
    for step in range(6):
        grads = {key: torch.randn(each.shape, generator=generator) for key, each in keys.items()}
        for key, each in plain.items():
            each.encode([grads[key]], compression)
        if step in (0, 3):
            for key, each in keys.items():
                each.encode([grads[key]], compression)
        else:
            assert joined.join()
            joined.encode(list(grads.values()), compression)
        if step in (2, 5):
            joined.separate()
            for key in keys:
                mine, other = keys[key].senders[0], plain[key].senders[0]
                assert torch.equal(mine.kept["residual"], other.kept["residual"])
                assert mine.steps == other.steps


def test_an_answer_in_pieces_goes_to_the_tensors_as_they_are():
    keys = [known("a", 3), known("b", 5, 9), known("c")]
    joined = WorkerKeyList(1, 0, keys)
    outs = [torch.full(tuple(each.shape), -1.0) for each in keys]
    values = [torch.randn(tuple(each.shape)) for each in keys]
    data = joined.gather(values, torch.empty(joined.numel)).view(torch.uint8).numpy()
    _, ((_, sink),) = joined.receive(outs)
    request = Request("pull", {"items": [[[1], 0]]}, out=sink)
    assert not request.make_room(len(data) - 4)
    assert request.make_room(len(data))
    for at in range(0, len(data), 52):
        request.out.write(at, data[at : at + 52])
    assert all(map(torch.equal, outs, values))


def test_pushes_are_kept_until_every_key_of_them_is_durable():
    context = zmq.Context()
    link = ServerConnection(
        context, "server 0", "tcp://127.0.0.1:1", b"name", b"hello", None, None, Readings(SYSTEM.clock, 8.0)
    )
    try:
        seqs = itertools.count(1)

        def asked(op, fields):
            request = Request(op, fields, declare=op == "join", seq=next(seqs))
            link.add(request)
            return request.seq

        def kept():
            return {key: sorted(steps) for key, steps in link.log.items() if steps}

        asked("join", {"number": 1, "keys": ["a", "b"]})
        first = [asked("push", {"items": [[[1], step, 0, -1]]}) for step in (1, 2, 3)]
        link._done([], first[0], 0, [1], 1)
        assert kept() == {("list", 1): [2, 3]}
        alone = {key: asked("push", {"items": [[key, 4, 0, -1]]}) for key in "ab"}
        link._done([], alone["a"], 0, [4], 1)
        assert kept() == {("list", 1): [2, 3], "b": [4]}
        link._done([], alone["b"], 0, [2], 1)
        assert kept() == {("list", 1): [3], "b": [4]}
        link._done([], asked("push", {"items": [[[1], 5, 0, -1]]}), 0, [4], 1)
        assert kept() == {("list", 1): [5]}
        asked("join", {"number": 2, "keys": ["a", "b", "c"]})
        asked("join", {"number": 3, "keys": ["b", "c"]})
        link._done([], asked("push", {"items": [[[3], 6, 0, -1]]}), 0, [6], 1)
        assert kept() == {("list", 1): [5]}
        link._done([], asked("push", {"items": [[[2], 7, 0, -1]]}), 0, [6], 1)
        assert kept() == {("list", 2): [7]}
    finally:
        link.close()
        context.term()


def test_the_setting_of_now_is_said_again_whatever_is_declared_after_it():
    context = zmq.Context()
    link = ServerConnection(
        context, "server 0", "tcp://127.0.0.1:1", b"name", b"hello", None, None, Readings(SYSTEM.clock, 8.0)
    )
    try:
        for seq, number in enumerate((1, 2, 3), 1):
            link.add(Request("optimizer", {"number": number}, declare=True, seq=seq))
        link.add(Request("join", {"number": 1, "keys": ["a", "b"]}, declare=True, seq=4))
        assert ("optimizer", 3) in [(each.op, each.fields["number"]) for each in link.declared]
        link.add(Request("push", {"items": [["a", 1, 0, -1]], "optimizer": 3}, seq=5))
        for number in (4, 5):
            link.add(Request("optimizer", {"number": number}, declare=True, seq=number + 2))
        declared = [(each.op, each.fields["number"]) for each in link.declared]
        assert declared == [("optimizer", 3), ("join", 1), ("optimizer", 4), ("optimizer", 5)]
    finally:
        link.close()
        context.term()


def test_what_others_name_is_said_first():
    urgent = Request("push", {"items": [[[1], 1, 4, -1]]}, torch.zeros(4, dtype=torch.uint8), priority=100)
    assert Request("join", {"number": 1, "keys": ["a", "b"]}, declare=True).rank < urgent.rank
