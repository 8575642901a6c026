"""Lists of keys that a worker names again and again: nobody can tell them from keys that are named alone."""

import itertools

import numpy as np
import pytest
import torch
import zmq

from gradwire.kvstore.protocol.compression import parse
from gradwire.kvstore.protocol.keys import KeyPart
from gradwire.kvstore.protocol.small_keys import MAX_LISTS, Patience
from gradwire.kvstore.worker.connection import Request, ServerConnection
from gradwire.kvstore.worker.lanes import Lane, Lanes
from gradwire.kvstore.worker.worker_key import PushProgress, WorkerKey
from tests.kvstore.group import run_workers
from tests.kvstore.jobs import lists_of_keys


def shared(*shape, server=0, dtype=torch.float32, step=0, sparse=False):
    size = torch.Size(shape)
    return WorkerKey(size, dtype, sparse, [KeyPart(server, 0, size.numel())], PushProgress(step))


def roster(keys, names=None):
    """A list on its second use."""
    lanes = Lanes(keys)
    names = list(keys) if names is None else names
    assert lanes.find(names) is None
    return lanes.find(names)


def test_real_workers_get_the_bits_of_keys_that_are_alone(tmp_path):
    for told, lanes in run_workers(lists_of_keys, 2, 2, folder=tmp_path):
        for name, together, alone in told:
            assert all(map(torch.equal, together, alone)), name
        assert lanes.count(True) >= 8
        assert lanes.count(False) >= 4


def test_small_keys_of_a_server_and_a_dtype_share_a_lane():
    keys = {
        "d": shared(3),
        "a": shared(40),
        "c": shared(5, server=1),
        "b": shared(2, 2, server=1),
        "alone": shared(4, server=2),
        "half": shared(3, dtype=torch.float16),
        "half too": shared(3, dtype=torch.float16),
        "large": shared(10**6),
        "none": shared(0),
        "rows": shared(4, 4, sparse=True),
        "codes": shared(4, dtype=torch.bfloat16),
    }
    found = roster(keys)
    assert sorted((lane.server, lane.keys) for lane, _ in found.lanes) == [
        (0, ["a", "d"]),
        (0, ["half", "half too"]),
        (1, ["b", "c"]),
    ]
    assert [[found.keys[place] for place in places] for lane, places in found.lanes] == [
        lane.keys for lane, _ in found.lanes
    ]
    assert [found.keys[place] for place in found.rest] == ["alone", "large", "none", "rows", "codes"]


def test_one_order_of_a_list_is_as_good_as_another():
    keys = {key: shared(3) for key in "abc"}
    lanes = Lanes(keys)
    for names in ("abc", "cab", "abc", "cab"):
        lanes.find(list(names))
    assert len(lanes.fresh) == 1


def test_names_that_are_equal_and_not_the_same_key_are_no_list():
    lanes = Lanes({0: shared(3), 1: shared(3)})
    assert lanes.find([0, 1]) is None
    assert lanes.find([0, 1]).lanes
    assert lanes.find([0, 1.0]) is None
    assert lanes.find([False, 1]) is None
    assert lanes.find([0, [1]]) is None


@pytest.mark.parametrize("names", [[False, True], [0.0, 1.0], [np.int64(0), 1]])
def test_a_list_that_was_first_named_by_what_is_no_key_is_one_by_its_keys(names):
    lanes = Lanes({0: shared(3), 1: shared(3)})
    assert [lanes.find(names) for _ in range(3)] == [None] * 3
    assert lanes.find([0, 1]).lanes[0][0].keys == [0, 1]
    assert lanes.find(names) is None


def test_lists_and_lanes_are_bounded():
    lanes = Lanes({number: shared(3) for number in range(40)})
    for _ in range(2):
        for a in range(40):
            for b in range(a):
                lanes.find([a, b])
    assert len(lanes.fresh) == MAX_LISTS


def test_keys_at_another_step_come_together_when_they_are_at_the_same():
    keys = {"a": shared(3, step=2), "b": shared(3, step=1)}
    found = roster(keys)
    assert not found.together()
    keys["b"].progress.step = 2
    assert found.together()
    assert keys["a"].progress is keys["b"].progress
    found.lanes[0][0].part()
    keys["b"].progress.step += 1
    assert (keys["a"].step, keys["b"].step) == (2, 3)


def test_a_key_is_in_one_lane_at_a_time():
    keys = {key: shared(3) for key in "abc"}
    first, second = roster(keys, list("ab")), roster(keys, list("bc"))
    assert first.together()
    assert not second.together()
    first.lanes[0][0].part()
    assert second.together()


def test_patience_grows_with_every_loss():
    patience, waited = Patience(), []
    for _ in range(12):
        patience.lose()
        waited.append(next(use for use in range(1, 5000) if patience.over()))
    assert waited == sorted(waited)
    assert waited[:4] == [1, 3, 7, 15]
    assert waited[-1] == 1024


def test_residuals_are_those_of_keys_that_were_always_alone():
    compression = parse({"type": "2bit", "threshold": 0.5})
    keys, plain = ({key: shared(size) for key, size in (("a", 3), ("b", 40), ("c", 33))} for _ in range(2))
    lane = Lane(1, 0, keys)
    generator = torch.Generator().manual_seed(3)
    for step in range(6):
        grads = {key: torch.randn(each.shape, generator=generator) for key, each in keys.items()}
        for key, each in plain.items():
            sender = each.sender(key, each.parts[0], 0, 0)
            sender.use(compression)
            sender.encode(grads[key])
        if step in (0, 3):
            for key, each in keys.items():
                sender = each.sender(key, each.parts[0], 0, 0)
                sender.use(compression)
                sender.encode(grads[key])
        else:
            assert lane.together()
            sender = lane.sender(compression, 0, 0)
            lane.encode(sender, list(grads.values()), lane.gather(list(grads.values()), sender.room()))
        if step in (2, 5):
            lane.part()
            for key in keys:
                mine, other = keys[key].senders[0], plain[key].senders[0]
                assert torch.equal(mine.kept["residual"], other.kept["residual"])
                assert mine.steps == other.steps


def test_an_answer_in_pieces_goes_to_the_tensors_as_they_are():
    keys = {key: shared(*shape) for key, shape in (("a", (3,)), ("b", (5, 9)), ("c", ()))}
    lane = Lane(1, 0, keys)
    outs = [torch.full(tuple(each.shape), -1.0) for each in keys.values()]
    values = [torch.randn(tuple(each.shape)) for each in keys.values()]
    data = lane.gather(values).view(torch.uint8).numpy()
    request = Request("pulls", {"items": [[[1], 0]]}, out=lane.sink(outs))
    assert not request.make_room(len(data) - 4)
    assert request.make_room(len(data))
    for at in range(0, len(data), 52):
        request.take(at, data[at : at + 52])
    assert all(map(torch.equal, outs, values))


def test_pushes_are_kept_until_every_key_of_them_is_durable():
    context = zmq.Context()
    link = ServerConnection(context, "server 0", "tcp://127.0.0.1:1", b"name", b"hello", None)
    try:
        seqs = itertools.count(1)

        def asked(op, fields, log=None):
            request = Request(op, fields, log=log, declare=op == "join", seq=next(seqs))
            link.add(request)
            return request.seq

        def kept():
            return {key: sorted(steps) for key, steps in link.log.items() if steps}

        asked("join", {"number": 1, "keys": ["a", "b"]})
        first = [asked("pushes", {"items": [[[1], step, 0]]}) for step in (1, 2, 3)]
        link._dones([], first[0], [1])
        assert kept() == {("list", 1): [2, 3]}
        alone = {key: asked("push", {"key": key, "step": 4}, (key, 4)) for key in "ab"}
        link._done([], alone["a"], 4, 4)
        assert kept() == {("list", 1): [2, 3], "b": [4]}
        link._done([], alone["b"], 4, 2)
        assert kept() == {("list", 1): [3], "b": [4]}
        link._dones([], asked("pushes", {"items": [[[1], 5, 0]]}), [4])
        assert kept() == {("list", 1): [5]}
        asked("join", {"number": 2, "keys": ["a", "b", "c"]})
        asked("join", {"number": 3, "keys": ["b", "c"]})
        link._dones([], asked("pushes", {"items": [[[3], 6, 0]]}), [6])
        assert kept() == {("list", 1): [5]}
        link._dones([], asked("pushes", {"items": [[[2], 7, 0]]}), [6])
        assert kept() == {("list", 2): [7]}
    finally:
        link.close()
        context.term()


def test_the_setting_of_now_is_said_again_whatever_is_declared_after_it():
    context = zmq.Context()
    link = ServerConnection(context, "server 0", "tcp://127.0.0.1:1", b"name", b"hello", None)
    try:
        for seq, number in enumerate((1, 2, 3), 1):
            link.add(Request("optimizer", {"number": number}, declare=True, seq=seq))
        link.add(Request("join", {"number": 1, "keys": ["a", "b"]}, declare=True, seq=4))
        assert ("optimizer", 3) in [(each.op, each.fields["number"]) for each in link.declared]
        link.add(Request("push", {"key": "a", "optimizer": 3}, log=("a", 1), seq=5))
        for number in (4, 5):
            link.add(Request("optimizer", {"number": number}, declare=True, seq=number + 2))
        declared = [(each.op, each.fields["number"]) for each in link.declared]
        assert declared == [("optimizer", 3), ("join", 1), ("optimizer", 4), ("optimizer", 5)]
    finally:
        link.close()
        context.term()


def test_what_others_name_is_said_first():
    urgent = Request("pushes", {"items": [[[1], 1, 4]]}, torch.zeros(4, dtype=torch.uint8), priority=100)
    assert Request("join", {"number": 1, "keys": ["a", "b"]}, declare=True).rank < urgent.rank
