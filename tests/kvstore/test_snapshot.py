"""A server's file: what was written is there again, what nobody wrote is refused, and a full disk is survived."""

import errno
import zlib

import pytest
import torch
from safetensors.torch import save as packed

from gradwire import ConfigError
from gradwire._files import RenamedError
from gradwire.kvstore.protocol.buffers import as_bytes
from gradwire.kvstore.protocol.compression import parse
from gradwire.kvstore.protocol.messages import VERSION, pack
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.journal import LOGGED, MAGIC, Journal
from gradwire.kvstore.server.members import State
from gradwire.kvstore.server.optimizer_settings import SETTINGS
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.server import Finished
from gradwire.kvstore.server.snapshot import Snapshots, open_core, save_core
from gradwire.kvstore.server.stored_part import AHEAD
from gradwire.kvstore.system import Disk, System
from tests.kvstore.talk import ask, hello, init, load, messages, ops, pair, pull, push, save, values

RULES = Rules(workers=1)
TWO = Rules(workers=2)
ENTRY = {
    "key": "w",
    "start": 0,
    "total": 4,
    "sparse": False,
    "version": 3,
    "last": [[0, 3]],
    "replicas": [],
    "pending": [],
    "replaced": False,
}
HEADER = {
    "op": "snapshot",
    "run": bytes(16),
    "number": 1,
    "place": [0, 1],
    "sync": True,
    "staleness": None,
    "settings": [],
    "barriers": 0,
    "sessions": [],
}
ONES = torch.ones(4)


def served(core=None, steps=3):
    core = core or ServerCore(RULES)
    peer = hello(core, 0, world=1)
    init(core, peer, 1, "w")
    ask(core, peer, "optimizer", 2, number=1, name="sgd", numbers={"lr": 1.0, "momentum": 0.5})
    for step in range(core.values.parts["w"].version + 1, steps + 1):
        push(core, peer, 2 + step, "w", step, torch.ones(4), optimizer=1)
    return core, values(pull(core, peer, 99, "w", steps))[peer]


def forge(path, value=None, entries=None, states=None, header=None, **fields):
    """Write a file with valid checksums."""
    tensors = {"0/value": torch.zeros(4) if value is None else value, **(states or {})}
    entries = [{**ENTRY, **fields}] if entries is None else entries
    rows = [[name, str(each.dtype).removeprefix("torch."), list(each.shape)] for name, each in tensors.items()]
    data = [memoryview(as_bytes(each).numpy()) for each in tensors.values()]
    Journal(path).replace({**HEADER, "entries": entries, "tensors": rows, **(header or {})}, data)


def test_a_server_goes_on_from_its_file(tmp_path):
    save(served(steps=3)[0], tmp_path / "file")
    _, undisturbed = served(steps=6)
    assert served(load(tmp_path / "file", RULES), steps=6)[1] == undisturbed


def test_the_forger_can_also_tell_the_truth(tmp_path):
    forge(tmp_path / "file")
    assert load(tmp_path / "file", RULES).values.parts["w"].version == 3


@pytest.mark.parametrize("part", [0, 4, 20, 100, -1])
def test_a_file_that_was_cut_short_is_refused(part, tmp_path):
    save(served()[0], tmp_path / "file")
    whole = (tmp_path / "file").read_bytes()
    (tmp_path / "file").write_bytes(whole[:part])
    with pytest.raises(ConfigError, match=r"snapshot .*file cannot be read"):
        load(tmp_path / "file", RULES)


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x04\x95cos\nsystem\n", b"PK\x03\x04", bytes(64), MAGIC, MAGIC + b"\xff" * 64]
)
def test_a_file_that_is_no_journal_is_refused(data, tmp_path):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ConfigError, match=r"snapshot .*file cannot be read"):
        load(tmp_path / "file", RULES)


def test_the_file_of_an_earlier_version_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_bytes(packed({"0/value": torch.zeros(4)}, metadata={"format": "gradwire server 1"}))
    with pytest.raises(ConfigError, match=r"an earlier version of gradwire wrote it"):
        load(tmp_path / "file", RULES)


@pytest.mark.parametrize(
    "forged",
    [
        {"header": {"op": "barrier"}},
        {"header": {"sync": "maybe"}},
        {"header": {"run": b"short"}},
        {"header": {"place": [2, 1]}},
        {"header": {"place": 3}},
        {"header": {"staleness": -1}},
        {"header": {"barriers": -1}},
        {"header": {"barriers": True}},
        {"header": {"settings": [[0, "sgd", {}]]}},
        {"header": {"settings": [[1, "none such", {}]]}},
        {"header": {"sessions": [[0, b"short", -1, False, "live"]]}},
        {"header": {"sessions": [[1, bytes(16), 0, False, "live"]]}},
        {"header": {"sessions": [[0, bytes(16), 0, False, "asleep"]]}},
        {"header": {"sessions": 3}},
        {"entries": [1]},
        {"entries": "w"},
        {"entries": [ENTRY, ENTRY]},
        {"key": [1]},
        {"key": None},
        {"start": -1},
        {"start": 1},
        {"total": 2},
        {"version": -1},
        {"version": "3"},
        {"version": 1.5},
        {"sparse": 3},
        {"last": 7},
        {"last": [[0]]},
        {"last": [["x", "y"]]},
        {"pending": [[4, 0, {}, 0]]},
        {"replaced": 0},
        {"__class__": "Entry"},
        {"value": torch.zeros(4, dtype=torch.complex64)},
        {"value": torch.zeros(5)},
        {"states": {"0/optimizer/momentum_buffer": torch.zeros(5)}, "header": {"settings": [[1, "sgd", {"lr": 1.0}]]}},
    ],
)
def test_a_file_that_no_server_wrote_is_refused(forged, tmp_path):
    forge(tmp_path / "file", **forged)
    with pytest.raises(ConfigError, match=r"snapshot .*file cannot be read"):
        load(tmp_path / "file", RULES)


def test_each_flipped_bit_is_found(tmp_path):
    """In the snapshot and in the records after it, also where the last one has the zeros of a first value."""
    core = open_core(tmp_path / "file", RULES)
    served(core, steps=2)
    save_core(core)
    ask(core, b"peer-0", "barrier", 50, number=1)
    init(core, b"peer-0", 51, "zeros", torch.zeros(50))
    whole = bytearray((tmp_path / "file").read_bytes())
    for at in range(0, len(whole), 7):
        whole[at] ^= 1 << at % 8
        (tmp_path / "damaged").write_bytes(whole)
        with pytest.raises(ConfigError, match=r"snapshot .*damaged cannot be read"):
            load(tmp_path / "damaged", RULES)
        whole[at] ^= 1 << at % 8


def test_a_record_that_was_not_written_to_its_end_is_dropped(tmp_path):
    core = open_core(tmp_path / "file", RULES)
    peer = hello(core, 0, world=1)
    for number in (1, 2):
        assert ops(ask(core, peer, "barrier", number, number=number)) == ["done"]
    whole = (tmp_path / "file").read_bytes()
    assert load(tmp_path / "file", RULES).barriers.passed == 2
    for cut in (1, 10, 20):
        (tmp_path / "file").write_bytes(whole[:-cut])
        assert load(tmp_path / "file", RULES).barriers.passed == 1
    (tmp_path / "file").write_bytes(whole + bytes(100))
    core = load(tmp_path / "file", RULES)
    assert core.barriers.passed == 2
    # The next record takes the place of what was torn.
    assert ops(ask(core, hello(core, 0, world=1), "barrier", 3, number=3)) == ["done"]
    assert load(tmp_path / "file", RULES).barriers.passed == 3


def test_a_server_that_dies_before_the_new_file_has_its_name_has_the_old_one(tmp_path, monkeypatch):
    """Killed between writing and renaming: what is left is the old file, and another one that is removed."""
    core = open_core(tmp_path / "file", RULES)
    served(core, steps=2)
    save_core(core)
    old = (tmp_path / "file").read_bytes()
    served(core, steps=5)

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("gradwire.kvstore.system.os.replace", killed)
        with pytest.raises(Killed):
            save_core(core)
    assert (tmp_path / "file").read_bytes() == old
    assert core.values.parts["w"].durable == 2, "the workers keep what is not in the file"
    (tmp_path / ".file.new").write_bytes(b"what a killed process leaves")
    assert load(tmp_path / "file", RULES).values.parts["w"].version == 2
    assert len(list(tmp_path.iterdir())) == 1, "nothing is left of the file that was not finished"


def test_a_link_to_the_file_stays_a_link(tmp_path):
    """Another disk may have the room; what a killed process has left there is removed, too."""
    (tmp_path / "large").mkdir()
    (tmp_path / "file").symlink_to(tmp_path / "large" / "snapshot")
    (tmp_path / "large" / ".snapshot.new").write_bytes(b"what a killed process leaves")
    core = open_core(tmp_path / "file", RULES)
    served(core, steps=1)
    save_core(core)
    assert (tmp_path / "file").is_symlink()
    assert [each.name for each in (tmp_path / "large").iterdir()] == ["snapshot"]
    assert load(tmp_path / "file", RULES).values.parts["w"].version == 1


@pytest.mark.parametrize("op", ["optimizer", "config"])
def test_a_snapshot_comes_before_more_is_declared_than_a_server_keeps(tmp_path, op):
    """A worker declares again all that its kept pushes name."""
    core = open_core(tmp_path / "file", RULES)
    peer = hello(core, 0, world=1)
    for number in range(1, 257):
        assert not core.wanted
        rate = 1.0 / number
        about = {"name": "sgd", "numbers": {"lr": rate}} if op == "optimizer" else {"config": compression(rate)}
        assert ops(ask(core, peer, op, number, number=number, **about)) == ["done"]
    assert core.wanted


def compression(threshold):
    return parse({"type": "2bit", "threshold": threshold}).to_config()


def test_a_snapshot_comes_before_more_steps_than_a_server_takes_again():
    assert Snapshots(1000).every == AHEAD // 2


class Full(Disk):
    """A disk that can be full."""

    full = False

    def append(self, path, start, pieces, *, flushed):
        if self.full:
            super().append(path, start, [pieces[0][: len(pieces[0]) // 2]], flushed=flushed)
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(path, start, pieces, flushed=flushed)

    def replace(self, path, pieces):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().replace(path, pieces)


@pytest.fixture
def full(tmp_path):
    """A server of one worker, whose disk can be full."""
    system = System()
    system.disk = Full()
    return open_core(tmp_path / "file", RULES, system), system.disk


def test_a_disk_that_is_full_does_not_end_the_server(full, capsys):
    core, disk = full
    writer = Snapshots(2)
    served(core, steps=3)
    disk.full = True
    writer.after(core)
    assert "file cannot be written: No space left on device" in capsys.readouterr().err
    assert core.values.parts["w"].durable == 0
    told = messages(core.receive(b"peer-0", [pack("ping")], 0.5))
    assert "No space left on device" in told[0][2]["trouble"], "the workers hear of it"
    writer.after(core)
    assert not capsys.readouterr().err, "it is tried again after a while, not after each message"
    disk.full = False
    writer.after(core)
    assert core.values.parts["w"].durable == 0
    core.tick(1.1)
    writer.after(core)
    assert core.values.parts["w"].durable == 3


def test_what_is_not_in_the_file_is_not_acknowledged(full):
    """A barrier, a setting and an end wait until the disk has room again."""
    core, disk = full
    peer = hello(core, 0, world=1)
    init(core, peer, 1, "w")
    push(core, peer, 2, "w", 1, ONES)
    disk.full = True
    assert ask(core, peer, "barrier", 3, number=1) == []
    assert ask(core, peer, "optimizer", 4, number=1, name="sgd", numbers={"lr": 1.0}) == []
    assert ask(core, peer, "finish", 5) == []
    Snapshots(100).after(core)
    (told,) = messages(ask(core, peer, "why", 6, of=5))
    assert b"file cannot be written: No space left on device" in told[3]
    assert load(core.journal.path, RULES).members.finished == set()
    disk.full = False
    assert {fields["seq"] for _, op, fields, _ in messages(core.tick(2.0)) if op == "done"} == {3, 4}
    Snapshots(100).after(core)
    assert [fields["seq"] for _, _, fields, _ in messages(core.tick(2.1))] == [5]
    again = load(core.journal.path, RULES)
    assert (again.barriers.passed, list(again.optimizers.updaters), again.members.finished) == (1, [1], {0})


def test_a_file_that_is_gone_is_written_again(tmp_path):
    """Nothing can be appended to it, and no step may come that would bring a snapshot."""
    core = open_core(tmp_path / "file", RULES)
    peer = hello(core, 0, world=1)
    (tmp_path / "file").unlink()
    assert ask(core, peer, "barrier", 1, number=1) == []
    assert core.tick(0.1) == []
    Snapshots(100).after(core)
    assert ops(core.tick(0.2)) == ["done"]
    assert load(tmp_path / "file", RULES).barriers.passed == 1


def test_a_snapshot_while_a_worker_trains_does_not_save_its_waiting_push(tmp_path):
    """It would repeat that one, until it finishes."""
    core = open_core(tmp_path / "file", TWO)
    a, b = (hello(core, rank) for rank in range(2))
    for peer in (a, b):
        init(core, peer, 1, "w")
    push(core, b, 2, "w", 1, ONES)
    save_core(core)
    assert ask(core, b, "finish", 3) == []
    Snapshots(100).after(core)
    assert ops(core.tick(0.1)) == ["done"]
    core = load(tmp_path / "file", TWO)
    a = hello(core, 0)
    push(core, a, 2, "w", 1, ONES)
    assert values(pull(core, a, 3, "w", 1))[a] == [2.0] * 4


def test_a_worker_is_not_taken_in_before_the_file_says_so(full):
    core, disk = full
    disk.full = True
    place = {"version": VERSION, "rank": 0, "world": 1, "server": 0, "servers": 1}
    introduction = [pack("hello", **place, sync=True, session=bytes(16))]
    for _ in range(2):
        (told,) = messages(core.receive(b"peer-0", introduction, 0.0))
        assert told[2]["kind"] == "busy"
        assert "No space left on device" in told[2]["text"]
    assert core.journal.written == 0, "what was not written is taken back: it may never come again"
    disk.full = False
    core.tick(0.4)
    assert ops(core.receive(b"peer-0", introduction, 0.5)) == ["welcome"]
    assert load(core.journal.path, RULES).members.of(0).token == bytes(16)


def test_the_first_step_is_written(tmp_path):
    core = open_core(tmp_path / "file", RULES)
    served(core, steps=1)
    Snapshots(100).after(core)
    assert core.values.parts["w"].durable == 1


def test_the_first_value_of_a_key_is_kept_before_any_snapshot(tmp_path):
    core = open_core(tmp_path / "file", RULES)
    init(core, hello(core, 0, world=1), 1, "w", torch.tensor([1.0, -2.0]))
    core = load(tmp_path / "file", RULES)
    assert values(pull(core, hello(core, 0, world=1), 2, "w", 0))[b"peer-0"] == [1.0, -2.0]


def test_the_records_are_never_longer_than_the_snapshot_for_long(tmp_path):
    core = open_core(tmp_path / "file", RULES)
    peer = hello(core, 0, world=1)
    init(core, peer, 1, "w", torch.zeros(LOGGED // 4 + 1))
    Snapshots(100).after(core)
    assert not core.journal.full
    sizes = []
    for number in range(1, 30000):
        core.keep({"op": "setting", "number": number, "name": "sgd", "numbers": {"learning_rate": 1.0 / number}})
        if core.journal.full:
            sizes.append((tmp_path / "file").stat().st_size)
            Snapshots(100).after(core)
    assert sizes
    assert max(sizes) < 3 * 2 * LOGGED


@pytest.mark.parametrize("sync", [True, False])
def test_who_finishes_or_is_dead_has_all_that_it_pushed_in_the_file(tmp_path, sync):
    """Worker 1 is a step ahead and finishes; worker 0 then makes that step, after a restart in between."""
    core = open_core(tmp_path / "file", TWO)
    a, b = (hello(core, rank, sync=sync) for rank in range(2))
    for peer in (a, b):
        init(core, peer, 1, "w")
        ask(core, peer, "optimizer", 2, number=1, name="sgd", numbers={"lr": 1.0})
    push(core, b, 3, "w", 1, ONES, optimizer=1)
    assert ask(core, b, "finish", 4) == [], "it waits for a snapshot"
    Snapshots(100).after(core)
    assert ops(core.tick(0.0)) == ["done"]
    core.receive(b, [pack("leave")], 0.0)
    core = load(tmp_path / "file", TWO)
    assert core.members.left == {1}
    a = hello(core, 0, sync=sync)
    push(core, a, 3, "w", 1, ONES, optimizer=1)
    assert values(pull(core, a, 5, "w", 1))[a] == [-2.0] * 4


def test_a_dead_worker_is_dead_after_a_restart(tmp_path):
    rules = Rules(workers=2, on_dead_worker="continue", dead_after=5.0)
    core = open_core(tmp_path / "file", rules)
    a, b = (hello(core, rank) for rank in range(2))
    for peer in (a, b):
        init(core, peer, 1, "w")
    push(core, b, 2, "w", 1, ONES)
    core.receive(a, [pack("ping")], 6.0)
    core.tick(6.0)
    assert core.members.dead == set(), "its push is not in the file"
    assert core.members.of(1).state is State.CUT
    Snapshots(100).after(core)
    core.tick(6.1)
    assert core.members.dead == {1}
    core = load(tmp_path / "file", rules)
    assert core.members.dead == {1}
    a = hello(core, 0)
    push(core, a, 2, "w", 1, ONES)
    assert values(pull(core, a, 3, "w", 1))[a] == [2.0] * 4


@pytest.mark.parametrize(("process", "seconds"), [(None, 5.0), (b"another process.", 35.0)], ids=["same", "another"])
def test_who_does_not_come_back_after_a_restart_is_silent_from_when_others_do(tmp_path, process, seconds):
    """New processes take longer to start than those of before take to connect."""
    rules = Rules(workers=2, on_dead_worker="continue", dead_after=5.0)
    core = open_core(tmp_path / "file", rules)
    for rank in range(2):
        init(core, hello(core, rank), 1, "w")
    core = load(tmp_path / "file", rules)
    core.tick(100.0)
    assert core.members.dead == set(), "all of them may be new processes that are being started"
    hello(core, 0, session=process, now=100.0)
    for now, dead in ((100.0 + seconds, set()), (100.1 + seconds, {1})):
        core.receive(b"peer-0", [pack("ping")], now)
        core.tick(now)
        assert core.members.dead == dead


def test_a_process_whose_rank_is_given_away_does_not_come_back_between(tmp_path):
    """Its early push counts without the one before it, which would be ignored if it came now."""
    core = open_core(tmp_path / "file", TWO)
    a, _ = (hello(core, rank, sync=False) for rank in range(2))
    init(core, a, 1, "w")
    ask(core, a, "optimizer", 2, number=1, name="sgd", numbers={"lr": 1.0})
    push(core, a, 4, "w", 2, ONES, optimizer=1)
    place = {"version": VERSION, "rank": 0, "world": 2, "server": 0, "servers": 1}
    other, same = ([pack("hello", **place, sync=False, session=each)] for each in (b"another process.", bytes(16)))
    (told,) = messages(core.receive(b"other", other, 4.0))
    assert told[2]["kind"] == "busy"
    (told,) = messages(core.receive(a, same, 4.1))
    assert (told[2]["kind"], "is given to another process" in told[2]["text"]) == ("taken", True)
    Snapshots(100).after(core)
    assert ops(core.receive(b"other", other, 4.5)) == ["welcome"]
    assert messages(init(core, b"other", 1, "w"))[0][2]["version"] == 2
    assert values(pull(core, b"other", 2, "w", 2))[b"other"] == [-1.0] * 4


def test_another_run_goes_on_from_the_file_of_one_that_is_over(tmp_path):
    """Its server does not end at once, and its steps wait for all workers again."""
    core = open_core(tmp_path / "file", TWO)
    peers = [hello(core, rank) for rank in range(2)]
    for peer in peers:
        init(core, peer, 1, "w")
    for peer in peers:
        assert ops(ask(core, peer, "finish", 2)) == ["done"]
        core.receive(peer, [pack("leave")], 0.0)
    assert core.members.left == {0, 1}
    assert Finished(core)()
    core = load(tmp_path / "file", TWO)
    assert not Finished(core)()
    assert core.members.live == {0, 1}
    for rank in range(2):
        peer = hello(core, rank, session=b"another process.")
        init(core, peer, 1, "w")
        answers = push(core, peer, 2, "w", 1, ONES), pull(core, peer, 3, "w", 1)
    assert values(answers[1])[peer] == [2.0] * 4


def test_a_run_to_which_a_worker_is_yet_to_come_is_not_over(tmp_path):
    core = open_core(tmp_path / "file", TWO)
    peer = hello(core, 0)
    assert ops(ask(core, peer, "finish", 1)) == ["done"]
    core.receive(peer, [pack("leave")], 0.0)
    core = load(tmp_path / "file", TWO)
    assert core.members.live == {1}


def test_a_run_that_a_dead_worker_ended_is_started_again(tmp_path):
    """The worker that comes first waits for the one that was dead."""
    rules = Rules(workers=2, dead_after=5.0)
    core = open_core(tmp_path / "file", rules)
    for rank in range(2):
        init(core, hello(core, rank), 1, "w")
    core.receive(b"peer-0", [pack("ping")], 6.0)
    core.tick(6.0)
    assert core.members.dead == {1}
    core = load(tmp_path / "file", rules)
    peer = hello(core, 0, session=b"another process.", now=50.0)
    init(core, peer, 1, "w")
    push(core, peer, 2, "w", 1, ONES)
    assert pull(core, peer, 3, "w", 1) == []


@pytest.mark.parametrize("other", [True, False], ids=["another process", "the same one"])
def test_steps_that_were_made_without_a_worker_are_saved_before_it_is_waited_for_again(tmp_path, other):
    """A worker was dead, and the steps from then on are in the memory of the other one alone."""
    rules = Rules(workers=2, on_dead_worker="continue", dead_after=5.0)
    core = open_core(tmp_path / "file", rules)
    a, b = (hello(core, rank) for rank in range(2))
    for peer in (a, b):
        init(core, peer, 1, "w")
    core.receive(a, [pack("ping")], 6.0)
    core.tick(6.0)
    assert core.members.dead == {1}
    for step in (1, 2, 3):
        push(core, a, 1 + step, "w", step, ONES, now=6.0)
    assert core.values.parts["w"].version == 3
    back = b"another process." if other else bytes([1]) * 16
    place = {"version": VERSION, "rank": 1, "world": 2, "server": 0, "servers": 1}
    introduction = [pack("hello", **place, sync=True, session=back)]
    told = messages(core.receive(b"peer-1", introduction, 6.1))
    assert [fields["kind"] for _, op, fields, _ in told if op == "error"] == ["busy"]
    assert core.members.live == {0, 1}, "no step is made without it while it waits"
    Snapshots(100).after(core)
    assert "welcome" in ops(core.receive(b"peer-1", introduction, 6.6))
    core = load(tmp_path / "file", rules)
    assert core.values.parts["w"].version == 3
    assert core.members.live == {0, 1}
    assert core.members.of(1).token == back


def test_a_file_that_was_renamed_and_not_flushed_is_gone_on_with(tmp_path, monkeypatch):
    """The folder could not be synced: the new file is there, and is not the old one any more."""

    def unsynced(path):
        if path.is_dir():
            raise OSError(errno.EIO, "Input/output error")

    core = open_core(tmp_path / "file", RULES)
    served(core, steps=2)
    with monkeypatch.context() as patched:
        patched.setattr("gradwire._files.sync", unsynced)
        with pytest.raises(RenamedError):
            save_core(core)
    assert core.values.parts["w"].durable == 0
    assert ops(ask(core, b"peer-0", "barrier", 50, number=1)) == ["done"]
    core = load(tmp_path / "file", RULES)
    assert (core.barriers.passed, core.values.parts["w"].version) == (1, 2)


def test_a_record_that_a_power_cut_tore_is_dropped(tmp_path):
    """Its first sector is on the disk, and the rest of its length is zeros."""
    core = open_core(tmp_path / "file", RULES)
    peer = hello(core, 0, world=1)
    before = (tmp_path / "file").stat().st_size
    init(core, peer, 1, "w", torch.ones(1000))
    data = bytearray((tmp_path / "file").read_bytes())
    data[before + 512 :] = bytes(len(data) - before - 512)
    (tmp_path / "file").write_bytes(data)
    assert not load(tmp_path / "file", RULES).values.parts


def test_what_a_file_would_refuse_is_refused_before_it_is_written(tmp_path):
    core = open_core(tmp_path / "file", RULES)
    peer = hello(core, 0, world=1)
    fields = {"key": "z", "shape": [0, 2**30], "dtype": "float32", "start": 5, "total": 3, "sparse": False}
    (told,) = messages(ask(core, peer, "init", 1, torch.empty(0), **fields))
    assert told[1] == "error"
    assert not load(tmp_path / "file", RULES).values.parts


def test_states_that_are_restored_are_saved_once(tmp_path):
    """Also while a push of the same worker waits for another one."""
    core = open_core(tmp_path / "file", TWO)
    a, b = (hello(core, rank) for rank in range(2))
    for peer in (a, b):
        init(core, peer, 1, "w")
        ask(core, peer, "optimizer", 2, number=1, name="sgd", numbers={"lr": 1.0, "momentum": 0.5})
    push(core, a, 3, "w", 1, ONES, optimizer=1)
    (told,) = messages(ask(core, b, "states", 4))
    assert ask(core, a, "restore", 5, torch.frombuffer(bytearray(told[3]), dtype=torch.uint8)) == []
    Snapshots(100).after(core)
    assert ops(core.tick(0.1)) == ["done"]
    assert not core.wanted


def test_a_server_says_so_if_it_has_the_file_of_another_one(tmp_path):
    core = open_core(tmp_path / "file", RULES)
    hello(core, 0, world=1)
    core = load(tmp_path / "file", RULES)
    core.place = (1, 2)
    with pytest.raises(AssertionError, match="this server continues server 1 of 2 of its run, and worker 0 has it as"):
        hello(core, 0, world=1)


def test_checksums_are_those_of_zlib(tmp_path):
    core = open_core(tmp_path / "file", RULES)
    data = (tmp_path / "file").read_bytes()[len(MAGIC) :]
    assert int.from_bytes(data[12:16], "little") == zlib.crc32(data[:12])
    assert core.journal.exists


@pytest.mark.parametrize("saved", [1, 2, 3])
def test_barriers_go_on_after_a_restart(tmp_path, saved):
    """One worker had passed the third before the server ended, the answer to the other was lost."""
    core, a, b = pair()
    for number in (1, 2, 3):
        for peer in (a, b):
            ask(core, peer, "barrier", 10 + number, number=number)
        if number == saved:
            save(core, tmp_path / "snapshot")
    core = load(tmp_path / "snapshot", core.rules)
    a, b = (hello(core, rank) for rank in range(2))
    told = messages(ask(core, b, "barrier", 13, number=3))
    told += messages(ask(core, a, "barrier", 14, number=4))
    assert [(peer, op, fields["seq"]) for peer, op, fields, _ in told] == [(b, "done", 13)]
    told = messages(ask(core, b, "barrier", 14, number=4))
    assert sorted((peer, op) for peer, op, *_ in told) == [(a, "done"), (b, "done")]
    assert ask(core, a, "barrier", 15, number=5) == []


def test_a_worker_is_at_its_barrier_whoever_comes_first_after_a_restart(tmp_path):
    core, a, b = pair()
    for number in (1, 2):
        for peer in (a, b):
            ask(core, peer, "barrier", 10 + number, number=number)
    save(core, tmp_path / "snapshot")
    core = load(tmp_path / "snapshot", core.rules)
    a = hello(core, 0)
    assert ask(core, a, "barrier", 13, number=3) == []
    # It introduces itself only when the other is at a barrier already, and is no new process for that.
    b = hello(core, 1)
    told = messages(ask(core, b, "barrier", 13, number=3))
    assert sorted((peer, op) for peer, op, *_ in told) == [(a, "done"), (b, "done")]
    assert core.barriers.passed == 3


def test_snapshots_are_numbered_through_all_restarts(tmp_path):
    core = open_core(tmp_path / "file", RULES)
    for number in (1, 2, 3):
        assert (core.began, core.snapshots) == (number, number)
        save_core(core)
        assert (core.began, core.snapshots) == (number, number + 1)
        core = open_core(tmp_path / "file", RULES)


def test_settings_go_on_after_a_restart(tmp_path):
    """Whoever comes first: the slower worker's numbers are known, and the next one is the next one."""
    core = open_core(tmp_path / "file", TWO)
    a = hello(core, 0, sync=False)
    for number in range(1, 6):
        ask(core, a, "optimizer", 10 + number, number=number, name="sgd", numbers={"lr": 1.0 / number})
    core = load(tmp_path / "file", TWO)
    a, b = (hello(core, rank, sync=False) for rank in range(2))
    for peer, number in ((b, 2), (a, 6), (b, 3), (a, 5)):
        told = messages(
            ask(core, peer, "optimizer", 20 + number, number=number, name="sgd", numbers={"lr": 1 / number})
        )
        assert [(op, fields.get("version")) for _, op, fields, _ in told] == [("done", number)]
    (told,) = messages(ask(core, b, "optimizer", 40, number=8, name="sgd", numbers={"lr": 1.0}))
    assert told[2]["text"] == (
        "optimizer setting 8 is not the next one, 7: where the server was restarted without a snapshot, or "
        "with an older copy of it, the ones before are lost with its values"
    )


def test_a_waiting_push_whose_setting_was_forgotten_is_an_update_all_the_same():
    core = ServerCore(Rules(workers=2, on_dead_worker="continue", dead_after=5.0))
    a, b = (hello(core, rank) for rank in range(2))
    for peer in (a, b):
        init(core, peer, 1, "w")
    for number in range(1, SETTINGS + 10):
        ask(core, a, "optimizer", 10 + number, number=number, name="sgd", numbers={"lr": 1.0})
        if number == 1:
            push(core, b, 2, "w", 1, ONES, optimizer=1)
    assert 1 not in core.optimizers.updaters
    core.receive(b, [pack("ping")], 6.0)
    core.tick(6.0)
    assert values(pull(core, b, 3, "w", 1))[b] == [-1.0] * 4


def test_a_slow_worker_may_name_a_setting_that_was_forgotten():
    core = ServerCore(Rules(workers=2))
    a, b = (hello(core, rank, sync=False) for rank in range(2))
    init(core, a, 1, "w")
    init(core, b, 1, "w")
    for number in range(1, SETTINGS + 10):
        ask(core, a, "optimizer", 10 + number, number=number, name="sgd", numbers={"lr": 1.0 / number})
    assert 1 not in core.optimizers.updaters
    assert ops(ask(core, b, "optimizer", 2, number=1, name="sgd", numbers={"lr": 1.0})) == ["done"]
    assert ops(push(core, b, 3, "w", 1, ONES, optimizer=1)) == ["done"]
    assert values(pull(core, b, 4, "w", 1))[b] == [-1.0] * 4
    assert len(core.optimizers.updaters) == SETTINGS
