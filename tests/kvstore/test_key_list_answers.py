"""Whatever workers ask for and in which order, the answers are those of a server that knows no lists of keys."""

import random

import pytest
import torch

from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from gradwire.vocabulary import align
from tests.kvstore.talk import ask, hello, init, load, messages, ops, pull_units, push, push_units, save
from tests.kvstore.test_key_lists import KEYS, SIZES, alone, equal, grads, of_all, pull_all, push_all, served

LISTS = (KEYS, ("a", "b"), ("b", "c", "d"), ("d", "a"))


def together(core):
    return [each.are_joined for each in core.values.lists.values()]


def test_a_pull_that_waits_for_one_key_finds_the_others_that_came_together_meanwhile():
    core, a, b = served((("c", "d"),))
    for peer in (a, b):
        push_all(core, peer, 30, 1, grads(1), keys=("c", "d"))
    push(core, a, 31, "a", 1, grads(1)["a"])
    assert pull_units(core, a, 32, [("a", 1), ("c", 1)]) == []
    push_all(core, b, 33, 2, grads(2), keys=("c", "d"))
    assert together(core) == [True]
    told = messages(push(core, b, 34, "a", 1, grads(1)["a"]))
    wanted = {key: 2 * grads(1)[key] for key in ("a", "c")}
    assert equal(next(of_batch(each, ("a", "c")) for each in told if each[0] == a), wanted)


def test_a_push_that_waits_for_the_slowest_finds_keys_that_came_together_meanwhile():
    core, a, b = served((("c", "d"),), sync=False, staleness=0)
    for peer in (a, b):
        push_all(core, peer, 29, 1, grads(1), keys=("c", "d"))
    units = [(key, step, torch.zeros(SIZES[key])) for key, step in (("a", 1), ("c", 2), ("d", 2))]
    assert push_units(core, a, 30, units) == []
    push_all(core, b, 32, 2, grads(2), keys=("c", "d"))
    assert together(core) == [True]
    told = messages(push(core, b, 34, "a", 1, grads(1)["a"]))
    assert (a, "done") in [(peer, op) for peer, op, *_ in told]


def test_a_list_is_found_whose_keys_another_list_has_brought_together():
    core, a, b = served((KEYS, ("a", "b")), sync=False)
    for peer in (a, b):
        push_all(core, peer, 30, 1, grads(1))
    push_all(core, b, 31, 2, grads(2), 2, ("a", "b"))
    push_all(core, b, 32, 3, grads(3), 2, ("a", "b"))
    assert together(core) == [False, True]
    wanted = {key: grads(3 if key in "ab" else 1)[key] for key in KEYS}
    assert equal(of_all(messages(pull_all(core, a, 33, 1))[0]), wanted)


def of_batch(reply, keys):
    """The values in one answer to a pull of many keys, by key."""
    _, op, _, raw = reply
    assert op == "value"
    out, start = {}, 0
    for key in keys:
        out[key] = torch.frombuffer(bytearray(raw[start : start + 4 * SIZES[key]]), dtype=torch.float32)
        start += align(4 * SIZES[key])
    return out


class Pair:
    """Two workers' requests, to a server with lists and to one without; what each worker was told, by request.

    Args:
        sync: the kind of store.
        rules: rules of the servers.
    """

    def __init__(self, sync, rules):
        self.sync = sync
        self.cores = [ServerCore(Rules(workers=2, **rules)) for _ in range(2)]
        self.told = [{}, {}]
        self.asked = {}
        self.pushed = {}
        self.seq = 100
        for rank in range(2):
            self.introduce(rank)

    def introduce(self, rank):
        for core in self.cores:
            peer = hello(core, rank, sync=self.sync)
            for seq, (key, size) in enumerate(SIZES.items(), 1):
                init(core, peer, seq, key, torch.zeros(size))
        for number, keys in enumerate(LISTS, 1):
            assert ops(ask(self.cores[0], peer, "join", 20 + number, number=number, keys=list(keys))) == ["done"]

    def take(self, side, replies):
        for reply in messages(replies):
            peer, op, fields, _ = reply
            assert op in ("done", "value"), fields
            seq = fields["seq"]
            if seq in self.asked and op == "value":
                keys, batch = self.asked[seq]
                value = of_batch(reply, keys) if batch or side else of_all(reply, keys)
                self.told[side].setdefault((peer, seq), value)

    def push(self, rank, what, steps, seed):
        self.seq += 1
        self.pushed.setdefault(rank, []).append((self.seq, what, dict(steps), seed))
        self.push_again(rank, self.seq, what, steps, seed)

    def push_again(self, rank, seq, what, steps, seed):
        peer, tensors = b"peer-%d" % rank, grads(seed)
        kind, keys = what
        if kind == "list":
            number = LISTS.index(keys) + 1
            self.take(0, push_all(self.cores[0], peer, seq, steps[keys[0]], tensors, number, keys))
        for side in (1,) if kind == "list" else (0, 1):
            if kind == "one":
                self.take(side, push(self.cores[side], peer, seq, keys[0], steps[keys[0]], tensors[keys[0]]))
            else:
                units = [(key, steps[key], tensors[key]) for key in keys]
                self.take(side, push_units(self.cores[side], peer, seq, units))

    def pull(self, rank, what, steps):
        self.seq += 1
        self.asked[self.seq] = (what[1], what[0] == "batch")
        seq, peer, (kind, keys) = self.seq, b"peer-%d" % rank, what
        units = [(key, steps[key]) for key in keys]
        if kind == "list":
            self.take(0, pull_all(self.cores[0], peer, seq, steps[keys[0]], LISTS.index(keys) + 1))
        for side in (1,) if kind == "list" else (0, 1):
            self.take(side, pull_units(self.cores[side], peer, seq, units))

    def check(self):
        assert self.told[0].keys() == self.told[1].keys()
        for asked, value in self.told[0].items():
            assert equal(value, self.told[1][asked]), asked
        for told in self.told:
            told.clear()


def some(chance, mine, names):
    """The keys that a worker names now: a list that it may, several keys, or one."""
    kind = chance.choice(("list",) * 6 + ("batch", "one"))
    if kind == "list":
        fit = [keys for keys in LISTS if len({mine[key] for key in keys}) == 1]
        kind, keys = (kind, chance.choice(fit)) if fit else ("one", (chance.choice(names),))
    elif kind == "batch":
        keys = tuple(chance.sample(names, chance.randint(2, len(names))))
    else:
        keys = (chance.choice(names),)
    return kind, keys


@pytest.mark.parametrize(("sync", "rules"), [(True, {}), (False, {}), (False, {"staleness": 1})])
@pytest.mark.parametrize("seed", range(1, 6))
def test_answers_are_those_of_a_server_without_lists(sync, rules, seed, tmp_path):
    chance, pair = random.Random(seed), Pair(sync, rules)
    steps = [dict.fromkeys(KEYS, 0), dict.fromkeys(KEYS, 0)]
    for turn in range(250):
        rank = chance.randrange(2)
        mine, what = steps[rank], some(chance, steps[rank], KEYS)
        action = chance.random()
        if action < 0.5:
            mine |= {key: mine[key] + 1 for key in what[1]}
            if max(mine[key] - steps[1 - rank][key] for key in KEYS) < 6:
                pair.push(rank, what, mine, turn)
            else:
                mine |= {key: mine[key] - 1 for key in what[1]}
        elif action < 0.98:
            pair.pull(rank, what if what[0] != "one" else ("batch", what[1]), mine)
        else:
            pair.cores = [restarted(core, tmp_path / "snapshot") for core in pair.cores]
            pair.asked.clear()
            for again in range(2):
                pair.introduce(again)
                for old in pair.pushed.get(again, []):
                    pair.push_again(again, *old)
        pair.check()
    assert alone(pair.cores[0]) == alone(pair.cores[1])


def restarted(core, path):
    save(core, path)
    return load(path, core.rules)
