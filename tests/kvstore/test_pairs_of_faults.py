"""Two faults at once, or one in the middle of the other: what was acknowledged counts, and whoever lives goes on.

Servers and workers are processes, which are killed (-9) and stopped; a worker that nobody kills may be this process.
What they must come to is computed without a store. No time is asserted but that of what must come at once, far below
the store's timeout, with which a standstill ends in an error.
"""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gradwire import ConfigError, GradwireError, GroupError, WireError
from gradwire.kvstore.launch.processes import Group, start_server
from gradwire.kvstore.launch.remote import LocalMachine
from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.worker.connection import Request
from gradwire.kvstore.worker.store import DistStore
from tests.forked import Forked, Forks
from tests.kvstore.group import command_of, finished, kill, result, start_workers, wait_for
from tests.kvstore.pair_jobs import (
    PATTERN,
    SMALL,
    USES,
    crowd,
    first_value,
    forks,
    hold,
    large_steps,
    meets,
    right,
    small_steps,
    stepped,
    steps_of,
    summed,
    until_the_disk_is_full,
)
from tests.kvstore.proxy import Cable
from tests.kvstore.stores import pulled
from tests.kvstore.talk import load

pytestmark = pytest.mark.timeout(400)

PATIENT = ["--dead-after", "60"]
"""No worker counts as dead, however long a busy machine makes it wait."""

CONTINUE = ["--dead-after", "2", "--on-dead-worker", "continue"]

TWOBIT = {"type": "2bit", "threshold": 0.5}


class Run(Group):
    """A group whose servers keep a snapshot each."""

    def replace_server(self, index):
        """Kill a server, and start it again."""
        kill(self.servers[index])
        self.restart_server(index)


def snapshot(folder, index=0):
    """The file of a server, in a folder of its own."""
    return folder / f"server-{index}" / "snapshot"


def start(job, workers, *arguments, folder, servers=1, options=PATIENT, every=100):
    """Start a run whose servers write a snapshot after the first step and every so many steps."""
    for index in range(servers):
        snapshot(folder, index).parent.mkdir(exist_ok=True)
    kept = ["--snapshot", str(snapshot(folder, "{server}")), "--snapshot-every", str(every)]
    command = command_of(job, *arguments, folder=folder)
    return Run(command, workers, servers, [*options, *kept], None, [Forks()] * workers)


class Alone:
    """A server that keeps a snapshot after each step, and this process as its only worker, behind a cable."""

    def __init__(self, file):
        file.parent.mkdir()
        self.options = ["--workers", "1", "--snapshot", str(file), "--snapshot-every", "1"]
        self.server, self.endpoint = start_server(self.options, Forks())
        self.cable = Cable(self.endpoint)
        self.store = DistStore("dist_sync", WorkerPlace((self.cable.endpoint,), 0, 1), timeout=20)

    def replace_server(self):
        self.cable.cut()
        kill(self.server)
        self.server, _ = start_server([*self.options, "--bind", self.endpoint], Forks())
        self.cable.mend()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.store.close()
        self.cable.close()
        kill(self.server)


@contextlib.contextmanager
def stopped(process):
    """A process that does nothing (SIGSTOP) while the block runs."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def differences(value, want):
    """The pushes, each a rank and a step, whose share of a value is not what it should be."""
    return (value != want).nonzero().tolist()


BESIDE = {}


def beside(test):
    """Run a test in a thread beside the others of this file: it waits most of the time. It gets a folder."""
    BESIDE[test.__name__] = test

    def ended(running):
        running[test.__name__].result()

    ended.__name__, ended.__doc__ = test.__name__, test.__doc__
    return ended


@pytest.fixture(scope="module", autouse=True)
def running(request, tmp_path_factory):
    """The tests that run beside the others, four at a time, as far as they were asked for."""
    asked = {item.name for item in request.session.items}
    with ThreadPoolExecutor(4) as threads:
        runs = {name: run for name, run in BESIDE.items() if name in asked}
        yield {name: threads.submit(run, tmp_path_factory.mktemp("beside")) for name, run in runs.items()}


@pytest.mark.parametrize(
    ("kind", "ends", "servers"),
    [
        ("dist_async", "finish", 1),
        ("dist_async", "script", 2),
        ("dist_sync", "finish", 2),
        ("dist_sync", "script", 1),
    ],
)
def test_what_a_worker_pushed_that_has_ended_is_there_after_a_restart(kind, ends, servers, tmp_path):
    """Worker 1 makes fewer steps and is gone when the servers are killed: nobody can repeat its pushes."""
    steps, arguments = [20, 12], (str(tmp_path), kind, [20, 12], None, ends)
    hold(tmp_path, 0, 14).touch()
    with start(steps_of, 2, *arguments, folder=tmp_path, servers=servers) as group:
        wait_for(tmp_path, 0, 14)
        if ends == "finish":
            until((tmp_path / "finished-1").exists, "worker 1 has not finished")
            kill(group.workers[1])
        else:
            assert group.workers[1].wait(60) == 0
        for index in range(servers):
            group.replace_server(index)
        hold(tmp_path, 0, 14).unlink()
        assert group.workers[0].wait(90) == 0
    error, value = result(tmp_path, 0)
    assert error == ""
    assert differences(value, right(kind, steps)) == []


def test_every_push_counts_though_each_step_has_its_setting_and_the_slower_worker_comes_back_first(tmp_path):
    hold(tmp_path, 0, 55).touch()
    hold(tmp_path, 1, 5).touch()
    with start(steps_of, 2, str(tmp_path), "changing", [55, 55], folder=tmp_path, every=20) as group:
        wait_for(tmp_path, 0, 55)
        wait_for(tmp_path, 1, 5)
        with stopped(group.workers[0]):
            group.replace_server(0)
            time.sleep(2)
        # Time for worker 0 to repeat what the snapshot does not have.
        time.sleep(2)
        hold(tmp_path, 1, 5).unlink()
        assert group.workers[1].wait(90) == 0
        hold(tmp_path, 0, 55).unlink()
        (error, value), (other, _) = finished(group, tmp_path, 90)
    assert (error, other) == ("", "")
    assert differences(value, summed([55, 55], changing=True)) == []


def stop_while_it_waits(group, folder, step):
    """Stop worker 0 for longer than a worker may be silent while it waits for worker 1, which is held at a step."""
    wait_for(folder, 0, step)
    wait_for(folder, 1, step)
    time.sleep(1)
    with stopped(group.workers[0]):
        time.sleep(5)
    time.sleep(1)
    hold(folder, 1, step).unlink()


@beside
def test_a_worker_that_was_stopped_while_its_pull_waited_is_answered(folder):
    """It counts as dead meanwhile, and comes back before the step that it waits for is made."""
    hold(folder, 1, 2).touch()
    with start_workers(steps_of, 2, 1, str(folder), "dist_sync", [4, 4], folder=folder, options=CONTINUE) as group:
        stop_while_it_waits(group, folder, 2)
        told = finished(group, folder, 90)
    for error, value in told:
        assert error == ""
        assert differences(value, right("dist_sync", [4, 4])) == []


@beside
def test_a_worker_that_was_stopped_at_a_barrier_passes_it(folder):
    hold(folder, 1, 1).touch()
    with start_workers(meets, 2, 1, str(folder), folder=folder, options=CONTINUE) as group:
        stop_while_it_waits(group, folder, 1)
        assert finished(group, folder, 90) == ["", ""]


@beside
def test_a_server_that_comes_again_knows_who_is_dead(folder):
    hold(folder, 0, 10).touch()
    hold(folder, 0, 5).touch()
    hold(folder, 1, 5).touch()
    with start(steps_of, 2, str(folder), "dist_sync", [20, 20], folder=folder, options=CONTINUE) as group:
        wait_for(folder, 0, 5)
        wait_for(folder, 1, 5)
        kill(group.workers[1])
        hold(folder, 0, 5).unlink()
        # It makes no step alone before worker 1 is declared dead.
        wait_for(folder, 0, 10)
        group.replace_server(0)
        hold(folder, 0, 10).unlink()
        assert group.workers[0].wait(90) == 0
    error, value = result(folder, 0)
    assert error == ""
    assert differences(value, right("dist_sync", [20, 5])) == []


@beside
def test_a_worker_that_is_killed_together_with_the_server_is_declared_dead(folder):
    """Pushes that only it and the memory of the server had, those after the snapshot, may be missing."""
    hold(folder, 0, 5).touch()
    hold(folder, 1, 5).touch()
    with start(steps_of, 2, str(folder), "dist_sync", [20, 20], folder=folder, options=CONTINUE) as group:
        wait_for(folder, 0, 5)
        wait_for(folder, 1, 5)
        group.workers[1].kill()
        group.replace_server(0)
        hold(folder, 0, 5).unlink()
        assert group.workers[0].wait(90) == 0
    error, value = result(folder, 0)
    assert error == ""
    assert any(torch.equal(value, stepped([[0, 1]] * both + [[0]] * (20 - both))) for both in range(1, 6))


@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_a_worker_is_killed_and_comes_again_and_then_the_server_is_killed(kind, tmp_path):
    """The steps of the process that was killed are in no snapshot, and no process can repeat them."""
    for rank, step in ((1, 8), (1, 15), (0, 15), (0, 30)):
        hold(tmp_path, rank, step).touch()
    with start(steps_of, 2, str(tmp_path), kind, [30, 30], folder=tmp_path) as group:
        wait_for(tmp_path, 1, 8)
        kill(group.workers[1])
        hold(tmp_path, 1, 8).unlink()
        group.start_worker(1)
        wait_for(tmp_path, 0, 15)
        wait_for(tmp_path, 1, 15)
        group.replace_server(0)
        for rank in range(2):
            hold(tmp_path, rank, 15).unlink()
        assert group.workers[1].wait(90) == 0
        hold(tmp_path, 0, 30).unlink()
        told = finished(group, tmp_path, 90)
    assert [error for error, _ in told] == ["", ""]
    assert differences(told[0][1], right(kind, [30, 30])) == []


@beside
def test_a_server_that_was_stopped_declares_none_of_eighty_workers_dead(folder):
    """All but one wait at a barrier, where each would be told of a worker that is dead."""
    each, processes = 20, 4
    world = each * processes
    hold(folder, world - 1, 1).touch()
    server, endpoint = start_server(["--workers", str(world), "--dead-after", "8"], Forks())
    try:
        arguments = endpoint, str(folder), each, world
        with start_workers(crowd, processes, 0, *arguments, folder=folder) as group:
            for rank in range(world):
                wait_for(folder, rank, 1)
            time.sleep(2)
            with stopped(server):
                time.sleep(10)
            time.sleep(2)
            hold(folder, world - 1, 1).unlink()
            told = finished(group, folder, 120)
    finally:
        kill(server)
    assert told == [[""] * each] * processes


def exchange(group, folder):
    """Stop both servers, and start each from the other's snapshot."""
    for server in group.servers:
        server.terminate()
        assert server.wait(60) == 0
    first, second = (snapshot(folder, index).parent for index in range(2))
    first.rename(folder / "between")
    second.rename(first)
    (folder / "between").rename(second)
    for index in range(2):
        group.restart_server(index)


def test_workers_that_live_on_are_told_that_snapshots_were_exchanged(tmp_path):
    """Each server has half of the key, so a step would be made with half of each gradient in the wrong place."""
    for rank in range(2):
        hold(tmp_path, rank, 3).touch()
    with start(steps_of, 2, str(tmp_path), "dist_sync", [6, 6], folder=tmp_path, servers=2, every=1) as group:
        for rank in range(2):
            wait_for(tmp_path, rank, 3)
        exchange(group, tmp_path)
        for rank in range(2):
            hold(tmp_path, rank, 3).unlink()
        told = finished(group, tmp_path, 90)
    for error, _ in told:
        assert "snapshot" in error


def test_new_workers_are_told_that_snapshots_were_exchanged(tmp_path):
    """Each server has some of the keys, which the other one would begin anew."""
    hold(tmp_path, 0, 3).touch()
    with start(small_steps, 1, str(tmp_path), 3, folder=tmp_path, servers=2, every=1) as group:
        wait_for(tmp_path, 0, 3)
        kill(group.workers[0])
        hold(tmp_path, 0, 3).unlink()
        exchange(group, tmp_path)
        group.start_worker(0)
        ((error, versions),) = finished(group, tmp_path, 90)
    assert "snapshot" in error, f"the keys {SMALL} are at the steps {versions}"


def kept(folder):
    """The folder of a server that has made three steps of ``PATTERN``, and has ended."""
    with Alone(snapshot(folder)) as run:
        run.store.set_optimizer("test", rescale_grad=1.0)
        run.store.init("w", torch.zeros(len(PATTERN)))
        for step in range(3):
            run.store.push("w", PATTERN)
            assert torch.equal(pulled(run.store, "w", PATTERN.shape), (step + 1) * PATTERN)
        run.server.terminate()
        assert run.server.wait(60) == 0
    return snapshot(folder).parent


def start_of_data(data):
    """The place of the value's bytes in a snapshot."""
    places = [data.find((step * PATTERN).numpy().tobytes()) for step in (1, 2, 3)]
    assert max(places) > 0, "no value is in the snapshot"
    return max(places)


def refusal(file):
    """The words of a server that does not start from a snapshot; none if it starts."""
    command = ["-m", "gradwire", "server", "--workers", "1", "--snapshot", str(file)]
    process = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        if process.stdout.readline():
            return ""
        return process.communicate(60)[1]
    finally:
        kill(process)


def with_flipped_bit(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize("where", ["data", "header"])
def test_a_server_does_not_start_from_a_snapshot_with_a_flipped_bit(where, tmp_path):
    file = kept(tmp_path) / "snapshot"
    whole = file.read_bytes()
    begin, size = start_of_data(whole), PATTERN.nbytes
    # The digits of a header: another one is as good a number.
    digits = [place for place in range(begin) if chr(whole[place]) in "0123456789"]
    places = [begin, begin + size // 2, begin + size - 1] if where == "data" else [0, begin // 2, begin - 1, *digits]
    for place in places[:: -(-len(places) // 20)]:
        file.write_bytes(with_flipped_bit(whole, place))
        assert str(file) in refusal(file), f"byte {place} of {begin} of the header and {size} of the value"


@pytest.mark.parametrize("left", [0.3, 0.9, 1.0])
def test_a_file_that_was_cut_short_is_refused_or_was_being_appended_to(left, tmp_path):
    """A server that begins from what is whole has a step that was made, and no other value."""
    folder = kept(tmp_path)
    for whole in sorted(folder.iterdir()):
        run = tmp_path / f"with a short {whole.name}"
        shutil.copytree(folder, snapshot(run).parent)
        short, data = snapshot(run).with_name(whole.name), whole.read_bytes()
        short.write_bytes(data[: min(len(data) - 1, int(left * len(data)))])
        text = refusal(snapshot(run))
        if short == snapshot(run) or text:
            assert str(short) in text
        else:
            with start(first_value, 1, folder=run, every=1) as group:
                ((version, value),) = finished(group, run)
            assert version in range(4)
            assert torch.equal(value, version * PATTERN)


def others(file):
    """The files beside a snapshot, with their sizes."""
    sizes = {}
    for each in file.parent.iterdir():
        # It may have got its name meanwhile, or be gone.
        with contextlib.suppress(FileNotFoundError):
            sizes[each.name] = each.stat().st_size
    sizes.pop(file.name, None)
    return sizes


def test_a_server_that_is_killed_in_a_snapshot_leaves_no_file_behind(tmp_path):
    """It is killed when a file beside the snapshot grows; the next server, or its snapshot, removes that file."""
    file = snapshot(tmp_path)
    with start(large_steps, 1, str(tmp_path), folder=tmp_path, every=1) as group:
        for step in (2, 4, 6):
            wait_for(tmp_path, 0, step)
            until(lambda: max(others(file).values(), default=0) > 2**20, "no snapshot was seen in the writing")
            group.replace_server(0)
        wait_for(tmp_path, 0, 8)
        (tmp_path / "enough").touch()
        ((steps, values),) = finished(group, tmp_path, 90)
        assert values == [float(steps)]
        until(lambda: not others(file), f"beside the snapshot are {others(file)}", 20)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few megabytes."""
    disk = tmp_path / "server-0"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def fill(disk):
    """Write a file until there is no room left; the file."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


def test_a_full_disk_is_said_once_and_nobody_finishes_before_there_is_room(small_disk, tmp_path):
    steps, file, full = 25, str(snapshot(tmp_path)), os.strerror(errno.ENOSPC)
    for step in (5, steps + 1):
        hold(tmp_path, 0, step).touch()
    with start(until_the_disk_is_full, 1, str(tmp_path), steps, full, folder=tmp_path, every=2) as group:
        wait_for(tmp_path, 0, 5)
        until(snapshot(tmp_path).exists, "no snapshot was written")
        filler = fill(small_disk)
        hold(tmp_path, 0, 5).unlink()
        wait_for(tmp_path, 0, steps + 1)
        filler.unlink()
        hold(tmp_path, 0, steps + 1).unlink()
        ((warnings, (refused, accepted)),) = finished(group, tmp_path, 90)
        group.replace_server(0)
        # Another process of the rank: what the first one pushed is on the disk alone.
        group.command = command_of(first_value, folder=tmp_path)
        group.start_worker(0)
        ((version, value),) = finished(group, tmp_path, 90)
        server = f"server 0 at {group.endpoints[0]}"
    assert refused.startswith("GroupError: ")
    assert file in refused
    assert full in refused
    assert accepted == ""
    assert (version, value.tolist()) == (steps, (steps * PATTERN).tolist())
    assert len(warnings) == 1, warnings
    assert server in warnings[0]
    assert file in warnings[0]


@beside
def test_a_worker_whose_server_goes_before_it_was_welcomed_waits_for_it(folder):
    """Its rank is taken: the process before it is stopped, and the server has heard of that a moment ago."""
    hold(folder, 0, 3).touch()
    with start(steps_of, 1, str(folder), "dist_sync", [6], folder=folder, every=1) as group:
        wait_for(folder, 0, 3)
        # Time for the snapshot of this step.
        time.sleep(1)
        first = group.workers[0]
        (folder / "began-0").unlink()
        with stopped(first):
            group.start_worker(0)
            until((folder / "began-0").exists, "the second process has not begun")
            time.sleep(1)
            kill(group.servers[0])
            kill(first)
        hold(folder, 0, 3).unlink()
        # Longer than a server without a snapshot is waited for, and not as long as one with a snapshot.
        time.sleep(11)
        group.restart_server(0)
        ((error, value),) = finished(group, folder, 90)
    assert error == ""
    assert differences(value, right("dist_sync", [6, 0])) == []


@beside
def test_the_time_in_which_a_worker_was_stopped_is_no_absence_of_its_server(folder):
    """The server is away while the worker is stopped, and otherwise for less than the worker waits for it."""
    hold(folder, 0, 3).touch()
    arguments = str(folder), "dist_sync", [6], {"server_timeout": 8.0}
    with start(steps_of, 1, *arguments, folder=folder, every=1) as group:
        wait_for(folder, 0, 3)
        kill(group.servers[0])
        hold(folder, 0, 3).unlink()
        # Time for the worker to notice, and to ask for its next step.
        time.sleep(1)
        with stopped(group.workers[0]):
            time.sleep(12)
        time.sleep(1)
        group.restart_server(0)
        ((error, value),) = finished(group, folder, 90)
    assert error == ""
    assert differences(value, right("dist_sync", [6, 0])) == []


@pytest.fixture
def alone(tmp_path):
    with Alone(snapshot(tmp_path)) as run:
        run.store.set_gradient_compression(TWOBIT)
        run.store.init(["alone", *SMALL], [torch.zeros(4) for _ in ("alone", *SMALL)])
        yield run


def push_and_pull(store):
    """Push a key alone, and several together, compressed; each pull must give what the push became."""
    for keys in (["alone"], SMALL):
        outs = [torch.empty(4) for _ in keys]
        store.push(keys, [torch.full((4,), 0.5) for _ in keys])
        store.pull(keys, outs)
        for out in outs:
            assert out.tolist() == [0.5] * 4


def test_a_refused_init_harms_no_later_push(alone):
    """Neither in the same session, nor in the next one of the same server, nor after the server was started again."""
    push_and_pull(alone.store)
    with pytest.raises(GradwireError) as refused:
        alone.store.init("complex", torch.zeros(4, dtype=torch.complex64))
    push_and_pull(alone.store)
    alone.cable.cut()
    alone.cable.mend()
    push_and_pull(alone.store)
    alone.replace_server()
    push_and_pull(alone.store)
    assert isinstance(refused.value, ConfigError), refused.value
    assert "complex64" in str(refused.value)


def test_what_a_session_declared_is_declared_again_when_the_server_has_ended_it(alone):
    for _ in range(3):
        push_and_pull(alone.store)
        with pytest.raises(WireError):
            alone.store._ask([(0, Request("pull", {"items": []}))], "a pull of nothing")
    push_and_pull(alone.store)


def test_what_was_pushed_before_a_store_is_closed_is_in_the_file(tmp_path):
    """At once, when nothing of it may be on its way yet."""
    steps = 30
    server, endpoint = start_server(["--workers", "1", "--snapshot", str(tmp_path / "file")], Forks())
    try:
        kv = DistStore("dist_async", WorkerPlace((endpoint,), 0, 1), timeout=60)
        kv.init("w", torch.zeros(4))
        kv.set_optimizer("test", rescale_grad=1.0)
        for _ in range(steps):
            kv.push("w", torch.ones(4))
        kv.close()
    finally:
        kill(server)
    core = load(tmp_path / "file", Rules(workers=1))
    assert core.values.parts["w"].value.tolist() == [float(steps)] * 4


def test_two_servers_cannot_have_the_same_file(tmp_path):
    with pytest.raises(GroupError, match="server 1 ended with exit code 2 before it listened"):
        Group(["true"], 1, 2, ["--snapshot", str(tmp_path / "file")], None, [Forks()])
    with Group(["true"], 1, 2, ["--snapshot", str(tmp_path / "file-{server}")], None, [Forks()]):
        assert {each.name for each in tmp_path.iterdir()} == {"file", "file-0", "file-1"}


def test_a_forked_child_ends_in_peace_and_cannot_use_the_store(tmp_path):
    """Worker 1 is an interpreter of its own, so that its children end as those of users do."""
    machines = [Forks(), LocalMachine()]
    with Group(command_of(forks, str(tmp_path), folder=tmp_path), 2, 1, PATIENT, None, machines) as group:
        (_, other, _), (ended, seen, steps) = finished(group, tmp_path, 150)
    assert ended == [("exit", 0), ("end", 0), ("use", 0)]
    assert seen == other == [[3.0] * 4] * 3
    assert steps == 3
    for way in ("exit", "end", "use"):
        assert (tmp_path / f"said-{way}").read_text() == ""
    told = json.loads((tmp_path / "uses").read_text())
    assert told.keys() == USES.keys()
    for use, text in told.items():
        assert "fork" in text, use
