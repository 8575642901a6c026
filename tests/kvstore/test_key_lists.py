"""Keys that a worker names together: whatever is done with them, they end as keys that are alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.compressors.signs.onebit import OneBit
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.kvstore.protocol.compression import Compression, parse
from gradwire.kvstore.protocol.messages import pack
from gradwire.kvstore.protocol.small_keys import MAX_BATCH, MAX_LISTS, element_offsets, joinable
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.journal import Journal
from gradwire.kvstore.server.rules import Rules
from tests.kvstore.talk import (
    ask,
    compressed,
    hello,
    init,
    laid_out,
    load,
    messages,
    ops,
    pull,
    pull_units,
    push,
    push_units,
    save,
    values,
)

SIZES = {"a": 3, "b": 40, "c": 64, "d": 1}
KEYS = tuple(SIZES)
STARTS, TOTAL = element_offsets(list(SIZES.values()))


def served(lists=(KEYS,), sync=True, **rules):
    """A server, its two workers, four keys of zeros, and lists of them, numbered from 1."""
    core = ServerCore(Rules(workers=2, **rules))
    peers = [hello(core, rank, sync=sync) for rank in range(2)]
    for peer in peers:
        for seq, (key, size) in enumerate(SIZES.items(), 1):
            init(core, peer, seq, key, torch.zeros(size))
        for number, keys in enumerate(lists, 1):
            assert ops(ask(core, peer, "join", 20 + number, number=number, keys=list(keys))) == ["done"]
    return core, *peers


def grads(seed):
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.randn(size, generator=generator) for key, size in SIZES.items()}


def flat(tensors, keys=KEYS):
    starts, total = element_offsets([SIZES[key] for key in keys])
    out = torch.zeros(total)
    for start, key in zip(starts, keys, strict=True):
        out[start : start + SIZES[key]] = tensors[key]
    return out


def push_all(core, peer, seq, step, tensors, number=1, keys=KEYS, code=None):
    data = flat(tensors, keys) if code is None else code.compress(flat(tensors, keys))
    return push_list(core, peer, seq, data, number=number, step=step, config=int(code is not None))


def push_list(core, peer, seq, data, *, number, step, config=0, optimizer=0):
    """Push all keys of a list."""
    return push_units(core, peer, seq, [([number], step, data)], config, optimizer)


def pull_all(core, peer, seq, step, number=1):
    return pull(core, peer, seq, [number], step)


def of_all(reply, keys=KEYS):
    """The values in one answer, by key."""
    _, op, _, raw = reply
    assert op == "value"
    starts, _ = element_offsets([SIZES[key] for key in keys])
    everything = torch.frombuffer(bytearray(raw), dtype=torch.float32)
    return {key: everything[start : start + SIZES[key]] for start, key in zip(starts, keys, strict=True)}


def equal(got, wanted):
    return got.keys() == wanted.keys() and all(torch.equal(got[key], wanted[key]) for key in wanted)


def alone(core):
    """Every key as it is when it is alone."""
    core.values.separate_all()
    return {
        key: (entry.value.tolist(), entry.version, entry.last, sorted(entry.pending))
        for key, entry in core.values.parts.items()
    }


def sums(*many):
    return {key: sum(each[key] for each in many) for key in KEYS}


def test_a_step_of_all_keys_is_one_sum_and_one_answer():
    core, a, b = served()
    assert ops(push_all(core, a, 30, 1, grads(1))) == ["done"]
    assert pull_all(core, a, 31, 1) == []
    told = messages(push_all(core, b, 30, 1, grads(2)))
    assert [(peer, op) for peer, op, *_ in told] == [(b, "done"), (a, "value")]
    assert equal(of_all(told[1]), sums(grads(1), grads(2)))
    assert len(core.values.units()) == 1
    assert (core.counters.steps, core.counters.pushes, core.counters.pulls) == (4, {"none": 8}, 4)
    assert not core.counters.begun


def test_a_push_that_comes_again_counts_once():
    core, a, b = served()
    for _ in range(3):
        push_all(core, a, 30, 1, grads(1))
    push_all(core, b, 30, 1, grads(2))
    push_all(core, b, 30, 1, grads(2))
    assert equal(of_all(messages(pull_all(core, a, 31, 1))[0]), sums(grads(1), grads(2)))
    assert (core.counters.steps, core.counters.repeated) == (4, 4 * 3)


@pytest.mark.parametrize("code", [TwoBit(0.5), OneBit(0.25)])
def test_payloads_of_all_keys_are_those_of_each_one_after_the_other(code):
    told, name = {}, {"twobit": "2bit", "onebit": "1bit"}[code.name]
    for together in (True, False):
        core, a, b = served()
        for peer in (a, b):
            compressed(core, peer, 25, 1, {"type": name, "threshold": code.threshold})
        for peer, number in zip((a, b), range(2), strict=True):
            mine = grads(number)
            if together:
                push_all(core, peer, 30, 1, mine, code=code)
            else:
                for seq, key in enumerate(KEYS):
                    push(core, peer, 30 + seq, key, 1, code.compress(mine[key]), config=1)
        told[together] = alone(core)
    assert told[True] == told[False]


def test_pushes_that_wait_are_put_apart_with_the_keys():
    core, a, b = served()
    code = TwoBit(0.5)
    for peer in (a, b):
        compressed(core, peer, 25, 1, {"type": "2bit", "threshold": 0.5})
    push_all(core, a, 30, 1, grads(1), code=code)
    assert pull_all(core, a, 31, 1) == []
    replies = [push(core, b, 40 + seq, key, 1, code.compress(grads(2)[key]), config=1) for seq, key in enumerate(KEYS)]
    assert [ops(each) for each in replies] == [["done"]] * 3 + [["done", "value"]]
    wanted = {key: code.decompress(code.compress(grads(1)[key]), (size,)) for key, size in SIZES.items()}
    wanted = {key: wanted[key] + code.decompress(code.compress(grads(2)[key]), (SIZES[key],)) for key in KEYS}
    assert equal(of_all(messages(replies[-1])[1]), wanted)


def test_who_names_one_key_gets_it_and_the_others_go_on():
    core, a, b = served()
    for step in (1, 2):
        for peer in (a, b):
            push_all(core, peer, 30 + step, step, grads(step))
        assert values(pull(core, a, 35 + step, "b", step))[a] == (2 * grads(step)["b"]).tolist()
    for peer in (a, b):
        push(core, peer, 50, "c", 3, grads(3)["c"])
        push_all(core, peer, 51, 3, grads(3))
    assert equal(of_all(messages(pull_all(core, a, 52, 3))[0]), sums(grads(3), grads(3)))
    assert core.counters.repeated == 2


operation = st.tuples(
    st.integers(0, 1),
    st.one_of(st.sampled_from(KEYS), st.integers(1, 3)),
    st.sampled_from(["push", "push", "push", "pull", "again"]),
)
LISTS = (KEYS, ("a", "b"), ("b", "d", "c"))


@settings(max_examples=150, deadline=None)
@given(st.lists(operation, max_size=40), st.booleans())
def test_together_or_alone_the_values_are_the_same(operations, sync):
    """Any order of pushes and pulls, of single keys and of lists that overlap, against keys that are always alone."""
    core, *peers = served(LISTS, sync=sync)
    plain, *_ = served((), sync=sync)
    steps = [dict.fromkeys(KEYS, 0), dict.fromkeys(KEYS, 0)]
    for seq, (rank, what, op) in enumerate(operations, 100):
        keys = (what,) if isinstance(what, str) else LISTS[what - 1]
        mine, peer = steps[rank], peers[rank]
        step = mine[keys[0]] + (op == "push")
        if op != "pull" and (step == 0 or any(mine[key] + (op == "push") != step for key in keys)):
            continue
        if op == "pull":
            told = pull(core, peer, seq, what, 0) if isinstance(what, str) else pull_all(core, peer, seq, 0, what)
            assert "error" not in ops(told)
            continue
        gradients = grads(31 * step + rank)
        if isinstance(what, str):
            push(core, peer, seq, what, step, gradients[what])
        else:
            push_all(core, peer, seq, step, gradients, what, keys)
        for number, key in enumerate(keys):
            push(plain, peer, 1000 * seq + number, key, step, gradients[key])
            mine[key] = step
    assert (core.counters.pushes, core.counters.steps, core.counters.repeated) == (
        plain.counters.pushes,
        plain.counters.steps,
        plain.counters.repeated,
    )
    assert core.counters.begun.keys() == plain.counters.begun.keys() or core.values.units() != list(
        core.values.parts.values()
    )
    assert alone(core) == alone(plain)


def test_a_worker_that_is_gone_ends_the_wait_for_all_keys():
    core, a, _ = served(dead_after=5.0)
    push_all(core, a, 30, 1, grads(1))
    pull_all(core, a, 31, 1)
    core.receive(a, [pack("ping")], 100.0)
    ((peer, op, fields, _),) = messages(core.tick(100.0))
    assert (peer, op, fields["seq"]) == (a, "error", 31)
    assert "worker 1" in fields["text"]
    assert "step 1 of keys 'a', 'b', 'c', 'd' waits for worker 1" in fields["text"]


def test_steps_go_on_without_a_worker_where_that_is_wanted():
    core, a, _ = served(dead_after=5.0, on_dead_worker="continue")
    push_all(core, a, 30, 1, grads(1))
    pull_all(core, a, 31, 1)
    core.receive(a, [pack("ping")], 100.0)
    (told,) = messages(core.tick(100.0))
    assert equal(of_all(told), grads(1))


def test_in_async_each_push_of_all_keys_counts_at_once_and_the_bound_holds():
    core, a, b = served(sync=False, staleness=0)
    assert push_all(core, a, 30, 1, grads(1)) == []
    told = messages(push_all(core, b, 30, 1, grads(2)))
    assert sorted((peer, op) for peer, op, *_ in told) == [(a, "done"), (b, "done")]
    assert equal(of_all(messages(pull_all(core, a, 31, 1))[0]), grads(2))


def test_an_optimizer_has_each_key_on_its_own():
    told = {}
    for together in (True, False):
        core, a, b = served()
        numbers = {"learning_rate": 0.1, "momentum": 0.9}
        for peer in (a, b):
            assert ops(ask(core, peer, "optimizer", 26, number=1, name="sgd", numbers=numbers)) == ["done"]
        for step in (1, 2, 3):
            for rank, peer in enumerate((a, b)):
                mine = grads(10 * step + rank)
                if together and step < 3:
                    fields = {"number": 1, "step": step, "config": 0, "optimizer": 1}
                    push_list(core, peer, 30 * step, flat(mine), **fields)
                else:
                    for seq, key in enumerate(KEYS):
                        push(core, peer, 30 * step + seq, key, step, mine[key], optimizer=1)
        told[together] = alone(core)
    assert told[True] == told[False]


def test_a_snapshot_has_the_keys_and_they_come_together_again(tmp_path):
    core, a, b = served()
    for peer in (a, b):
        push_all(core, peer, 30, 1, grads(1))
    core.journal = Journal(tmp_path / "snapshot")
    assert messages(pull_all(core, a, 31, 1))[0][2]["durable"] == [0]
    push_all(core, a, 32, 2, grads(2))
    save(core, tmp_path / "snapshot")
    assert messages(pull_all(core, a, 33, 1))[0][2]["durable"] == [1]
    restored = load(tmp_path / "snapshot", core.rules)
    for rank in range(2):
        peer = hello(restored, rank)
        ask(restored, peer, "join", 21, number=1, keys=list(KEYS))
        push_all(restored, peer, 30, 1, grads(1))
        push_all(restored, peer, 32, 2, grads(2))
    assert restored.counters.repeated == 8
    assert len(restored.values.units()) == 1
    assert equal(of_all(messages(pull_all(restored, a, 33, 2))[0]), sums(grads(2), grads(2)))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"number": 2}, "names list 2 of keys, which was never sent"),
        ({"step": 1000}, "keys 'a', 'b', 'c', 'd' is at step 0"),
        ({"config": 7}, "names compression 7"),
        ({"optimizer": 7}, "names optimizer setting 7"),
        ({"config": 2}, "cannot be pushed together"),
    ],
)
def test_what_is_wrong_is_refused_before_any_key_counts(fields, text):
    core, a, _ = served()
    compressed(core, a, 25, 2, {"type": "topk", "ratio": 0.5})
    told = {"number": 1, "step": 1, "config": 0, "optimizer": 0} | fields
    ((_, op, answer, _),) = messages(push_list(core, a, 30, flat(grads(1)), **told))
    assert op == "error"
    assert text in answer["text"]
    assert not any(unit.pending or unit.version for unit in core.values.units())


@pytest.mark.parametrize("nbytes", [0, 4 * TOTAL - 4, 4 * TOTAL + 4, 4 * sum(SIZES.values())])
def test_a_push_of_another_size_is_refused(nbytes):
    core, a, _ = served()
    told = {"number": 1, "step": 1, "config": 0, "optimizer": 0}
    ((_, op, _, _),) = messages(push_list(core, a, 30, torch.zeros(nbytes, dtype=torch.uint8), **told))
    assert op == "error"
    assert not any(unit.pending for unit in core.values.units())


def mixed(core, peer, seq, step, tensors):
    """Push a list of two keys and the others by their names, in one message."""
    return push_units(
        core, peer, seq, [([1], step, flat(tensors, KEYS[:2])), *((key, step, tensors[key]) for key in KEYS[2:])]
    )


@pytest.mark.parametrize("sync", [True, False])
def test_lists_and_keys_go_in_one_message(sync):
    core, a, b = served((KEYS[:2],), sync=sync)
    assert ops(mixed(core, a, 30, 1, grads(1))) == ["done"]
    items = [["c", 1], [[1], 1], ["d", 1]]
    first = messages(pull_units(core, a, 31, items))
    told = messages(mixed(core, b, 30, 1, grads(2)))
    assert [op for _, op, *_ in told] == (["done", "value"] if sync else ["done"])
    assert len(core.values.units()) == 3
    ((_, _, answer, raw),) = told[1:] if sync else first
    assert answer["durable"] == [1, 1, 1]
    wanted = sums(grads(1), grads(2)) if sync else grads(1)
    assert raw == laid_out([wanted["c"], flat(wanted, KEYS[:2]), wanted["d"]]).numpy().tobytes()
    mixed(core, b, 30, 1, grads(2))
    assert core.counters.repeated == 4


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    ("steps", "text"),
    [((("c", 1), ("c", 1)), "one of them twice"), ((("c", 1), ("d", 300)), "a push is for step 300")],
)
def test_of_keys_in_one_message_all_count_or_none(sync, steps, text):
    core, a, _ = served((), sync=sync)
    before = {key: core.values.alone(key).value.clone() for key in KEYS}
    ((_, op, answer, _),) = messages(push_units(core, a, 30, [(key, step, grads(1)[key]) for key, step in steps]))
    assert (op, text in answer["text"]) == ("error", True), answer
    assert not any(core.values.alone(key).pending or core.values.alone(key).last for key in KEYS)
    assert all(torch.equal(core.values.alone(key).value, value) for key, value in before.items())


def test_a_key_of_a_list_is_not_named_beside_it():
    core, a, _ = served((KEYS[:2], KEYS[1:]))
    for units in (([1], "b"), ([1], [2]), ([1], [1])):
        pieces = []
        for unit in units:
            keys = {1: KEYS[:2], 2: KEYS[1:]}[unit[0]] if isinstance(unit, list) else (unit,)
            pieces.append((unit, 1, flat(grads(1), keys)[: None if len(keys) > 1 else SIZES[keys[0]]]))
        ((_, op, answer, _),) = messages(push_units(core, a, 30, pieces))
        assert (op, "one of these keys again" in answer["text"]) == ("error", True)
        assert not any(unit.pending for unit in core.values.units())
        a = hello(core, 0)
        for number, keys in enumerate((KEYS[:2], KEYS[1:]), 1):
            ask(core, a, "join", 20 + number, number=number, keys=list(keys))
        ((_, op, answer, _),) = messages(pull_units(core, a, 31, [(unit, 0) for unit in units]))
        assert (op, "again" in answer["text"] or "twice" in answer["text"]) == ("error", True)
        a = hello(core, 0)
        for number, keys in enumerate((KEYS[:2], KEYS[1:]), 1):
            ask(core, a, "join", 20 + number, number=number, keys=list(keys))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["a", "z"], "key 'z' must be initialised"),
        (["a", "a"], "different ones of one type"),
        (["a", "half"], "different ones of one type"),
        (["a"], "'join' has a bad keys"),
        (["a", 1.5], "'join' has a bad keys"),
        (["a", "large"], f"at most {MAX_BATCH} bytes"),
    ],
)
def test_a_list_of_keys_is_checked(keys, text):
    core, a, _ = served(())
    init(core, a, 10, "half", torch.zeros(3, dtype=torch.float16))
    init(core, a, 11, "large", torch.zeros(MAX_BATCH // 4))
    ((_, op, answer, _),) = messages(ask(core, a, "join", 30, number=1, keys=keys))
    assert op == "error"
    assert text in answer["text"]


def test_lists_of_keys_are_bounded():
    core, a, _ = served(())
    for number in range(1, MAX_LISTS + 1):
        assert ops(ask(core, a, "join", 30 + number, number=number, keys=["a", "b"])) == ["done"]
    assert ops(ask(core, a, "join", 1000, number=MAX_LISTS + 1, keys=["a", "b"])) == ["error"]
    for process in range(4):
        a = hello(core, 0, session=bytes([9 + process]) * 16, now=100.0 * (process + 1))
        for number, keys in enumerate([(x, y) for x in KEYS for y in KEYS if x != y], 1):
            ask(core, a, "join", 30 + number, number=number, keys=list(keys))
    assert len(core.values.lists) <= MAX_LISTS * 3


def test_only_what_may_be_encoded_as_one_is_joined():
    yes = [{"type": "2bit"}, {"type": "1bit"}, {"type": "none"}]
    no = [
        {"type": "2bit", "threshold": "auto"},
        {"type": "topk", "ratio": 0.1},
        {"type": "qsgd"},
        {"type": "terngrad"},
        {"type": "2bit", "wire": "adaptive"},
        {"type": "none", "pull": {"type": "2bit"}},
    ]
    assert all(joinable(parse(each)) for each in yes)
    assert not any(joinable(parse(each)) for each in no)
    assert joinable(Compression())


def test_the_layout_leaves_no_word_to_two_keys():
    assert element_offsets([1, 31, 32, 33]) == ([0, 32, 64, 96], 160)
