"""A server's file: what was written is there again, what nobody wrote is refused, and a full disk is survived."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file

from gradwire import ConfigError
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.members import MAX_UNSAVED
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.settings import SETTINGS
from gradwire.kvstore.server.snapshot import FORMAT, Snapshots, load_core, save_core
from tests.kvstore.talk import ask, hello, init, messages, pair, pull, push, values

RULES = Rules(workers=1, snapshots=True)
ENTRY = {
    "key": "w",
    "start": 0,
    "total": 4,
    "sparse": False,
    "version": 3,
    "last": [[0, 3]],
    "replicas": [],
    "replaced": False,
}


def served(core=None, steps=3):
    core = core or ServerCore(RULES)
    peer = hello(core, 0, world=1)
    init(core, peer, 1, "w")
    ask(core, peer, "optimizer", 2, number=1, name="sgd", numbers={"lr": 1.0, "momentum": 0.5})
    for step in range(core.values.parts["w"].version + 1, steps + 1):
        push(core, peer, 2 + step, "w", step, torch.ones(4), optimizer=1)
    return core, values(pull(core, peer, 99, "w", steps))[peer]


def forged(value=None, metadata=None, **fields):
    told = {"format": FORMAT, "entries": json.dumps([{**ENTRY, **fields}]), "sync": "true", **(metadata or {})}
    return save({"0/value": torch.zeros(4) if value is None else value}, metadata=told)


def test_a_server_goes_on_from_its_file(tmp_path):
    save_core(served(steps=3)[0], tmp_path / "file")
    _, undisturbed = served(steps=6)
    assert served(load_core(tmp_path / "file", RULES), steps=6)[1] == undisturbed


def test_the_forger_can_also_tell_the_truth(tmp_path):
    (tmp_path / "file").write_bytes(forged())
    assert load_core(tmp_path / "file", RULES).values.parts["w"].version == 3


@pytest.mark.parametrize("part", [0, 4, 8, 100, -1])
def test_a_file_that_was_cut_short_is_refused(part, tmp_path):
    save_core(served()[0], tmp_path / "file")
    whole = (tmp_path / "file").read_bytes()
    (tmp_path / "file").write_bytes(whole[:part])
    with pytest.raises(ConfigError, match=r"snapshot .*file cannot be read"):
        load_core(tmp_path / "file", RULES)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x95cos\nsystem\n",
        b"PK\x03\x04",
        bytes(64),
        b"\xff" * 64,
        forged(metadata={"format": "pt"}),
        forged(metadata={"sync": '"maybe"'}),
        forged(metadata={"sync": "[" * 9000}),
        forged(metadata={"entries": "{}{"}),
        forged(metadata={"entries": "[1]"}),
        forged(metadata={"entries": '"w"'}),
        forged(metadata={"entries": json.dumps([ENTRY, ENTRY])}),
        forged(key=[1]),
        forged(key=2**70),
        forged(key=None),
        forged(start=-1),
        forged(start=1),
        forged(total=2),
        forged(version=-1),
        forged(version="3"),
        forged(version=1.5),
        forged(sparse=3),
        forged(last=7),
        forged(last=[[0]]),
        forged(last=[["x", "y"]]),
        forged(pending={"1": {}}),
        forged(replaced=0),
        forged(__class__="Entry"),
        forged(torch.zeros(4, dtype=torch.complex64)),
        forged(torch.zeros(5)),
    ],
)
def test_a_file_that_no_server_wrote_is_refused(data, tmp_path):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ConfigError, match=r"snapshot .*file cannot be read"):
        load_core(tmp_path / "file", RULES)


def test_states_of_another_shape_are_refused_before_a_step(tmp_path):
    tensors = {"0/value": torch.zeros(4), "0/optimizer/momentum_buffer": torch.zeros(5)}
    metadata = {"format": FORMAT, "entries": json.dumps([ENTRY]), "sync": "true"}
    (tmp_path / "file").write_bytes(save(tensors, metadata=metadata))
    core = load_core(tmp_path / "file", RULES)
    peer = hello(core, 0, world=1)
    (told,) = ask(core, peer, "optimizer", 2, number=1, name="sgd", numbers={"lr": 1.0, "momentum": 0.5})
    assert b"the states of key 'w' for 'sgd' must be" in told[1][0]


def test_a_server_that_dies_before_the_new_file_has_its_name_has_the_old_one(tmp_path, monkeypatch):
    """Killed between writing and renaming: what is left is the old file, and one that is never looked at."""
    core, _ = served(steps=2)
    save_core(core, tmp_path / "file")
    old = (tmp_path / "file").read_bytes()
    served(core, steps=5)

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    monkeypatch.setattr("gradwire._files.os.replace", killed)
    with pytest.raises(Killed):
        save_core(core, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == old
    assert core.values.parts["w"].durable == 2, "the workers keep what is not in the file"
    assert load_core(tmp_path / "file", RULES).values.parts["w"].version == 2


def test_a_disk_that_is_full_does_not_end_the_server(tmp_path, capsys):
    core, _ = served(steps=3)
    writer = Snapshots(tmp_path / "missing" / "file", 2)
    writer.after(core)
    assert "was not written" in capsys.readouterr().err
    assert core.values.parts["w"].durable == 0
    writer.after(core)
    assert not capsys.readouterr().err, "it is tried again after so many steps, not after each message"
    served(core, steps=5)
    (tmp_path / "missing").mkdir()
    writer.after(core)
    assert core.values.parts["w"].durable == 5


def test_the_first_step_is_written(tmp_path):
    writer, core = Snapshots(tmp_path / "file", 100), served(steps=1)[0]
    writer.after(core)
    assert core.values.parts["w"].durable == 1


@pytest.mark.parametrize("saved", [1, 2, 3])
def test_barriers_go_on_after_a_restart(tmp_path, saved):
    """One worker had passed the third before the server ended, the answer to the other was lost."""
    core, a, b = pair(snapshots=True)
    for number in (1, 2, 3):
        for peer in (a, b):
            ask(core, peer, "barrier", 10 + number, number=number)
        if number == saved:
            save_core(core, tmp_path / "snapshot")
    core = load_core(tmp_path / "snapshot", core.rules)
    a, b = (hello(core, rank) for rank in range(2))
    told = messages(ask(core, b, "barrier", 13, number=3))
    assert bool(told) == (saved == 3)
    told += messages(ask(core, a, "barrier", 14, number=4))
    assert [(peer, op, fields["seq"]) for peer, op, fields, _ in told] == [(b, "done", 13)]
    told = messages(ask(core, b, "barrier", 14, number=4))
    assert sorted((peer, op) for peer, op, *_ in told) == [(a, "done"), (b, "done")]
    assert ask(core, a, "barrier", 15, number=5) == []


def test_a_worker_is_at_its_barrier_whoever_comes_first_after_a_restart(tmp_path):
    core, a, b = pair(snapshots=True)
    for number in (1, 2):
        for peer in (a, b):
            ask(core, peer, "barrier", 10 + number, number=number)
    save_core(core, tmp_path / "snapshot")
    core = load_core(tmp_path / "snapshot", core.rules)
    a = hello(core, 0)
    assert ask(core, a, "barrier", 13, number=3) == []
    # It introduces itself only when the other is at a barrier already, and is no new process for that.
    b = hello(core, 1)
    told = messages(ask(core, b, "barrier", 13, number=3))
    assert sorted((peer, op) for peer, op, *_ in told) == [(a, "done"), (b, "done")]
    assert core.barriers.passed == 3


@pytest.mark.parametrize("before", [0, 3])
def test_a_first_setting_far_from_the_snapshot_is_refused(tmp_path, before):
    core, a, b = pair(snapshots=True)
    for number in range(1, before + 1):
        ask(core, a, "optimizer", 10 + number, number=number, name="sgd", numbers={"lr": 1.0 / number})
    for _ in range(2):  # The second time nobody has named a setting since the first.
        save_core(core, tmp_path / "snapshot")
        core = load_core(tmp_path / "snapshot", core.rules)
    a, b = (hello(core, rank) for rank in range(2))
    most = before + SETTINGS
    ((peer, op, fields, _),) = messages(ask(core, a, "optimizer", 20, number=most + 1, name="sgd", numbers={"lr": 1.0}))
    assert (peer, op) == (a, "error")
    assert fields["text"] == f"the first optimizer setting must have a number <= {most}, got {most + 1}"
    ((peer, op, *_),) = messages(ask(core, b, "optimizer", 20, number=before + 1, name="sgd", numbers={"lr": 1.0}))
    assert (peer, op) == (b, "done")


@pytest.mark.parametrize("before", [0, 2])
def test_a_barrier_far_from_the_snapshot_is_refused(tmp_path, before):
    core, a, b = pair(snapshots=True)
    for number in range(1, before + 1):
        for peer in (a, b):
            ask(core, peer, "barrier", 10 + number, number=number)
    save_core(core, tmp_path / "snapshot")
    core = load_core(tmp_path / "snapshot", core.rules)
    a, b = (hello(core, rank) for rank in range(2))
    far = before + MAX_UNSAVED + 1
    ((peer, op, fields, _),) = messages(ask(core, a, "barrier", 14, number=far))
    assert (peer, op, core.barriers.passed) == (a, "error", before)
    assert f"worker 0 is at barrier {far}, the server's snapshot at barrier {before}" in fields["text"]
    assert ask(core, b, "barrier", 14, number=far - 1) == []
    ((peer, op, fields, _),) = messages(ask(core, b, "barrier", 15, number=far + 1))
    assert (peer, op) == (b, "error")
    assert f"barrier {far + 1} is not the next one, {far - 1}" in fields["text"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("barriers", "-1"),
        ("barriers", "true"),
        ("sessions", '[["zz", 0]]'),
        ("sessions", '[["00", -1]]'),
        ("sessions", "3"),
    ],
)
def test_barriers_that_no_server_has_written_are_refused(tmp_path, name, value):
    core, *_ = pair(snapshots=True)
    save_core(core, tmp_path / "snapshot")
    with safe_open(tmp_path / "snapshot", "pt") as file:
        metadata = file.metadata()
    save_file(load_file(tmp_path / "snapshot"), tmp_path / "other", {**metadata, name: value})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_core(tmp_path / "other", core.rules)
