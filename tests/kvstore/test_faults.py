"""Processes that are killed, a cable that is cut: an error with a name, or the result of an undisturbed run.

What is killed is a process, by its own pid. Workers that nobody kills are threads of the test, and what they must come
to is computed without a store.
"""

import contextlib
import inspect
import itertools
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
import torch

from gradwire import ConfigError, GroupError
from gradwire.kvstore.launch.processes import start_server
from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.worker import connection
from gradwire.kvstore.worker.store import DistStore
from tests.forked import Forks
from tests.kvstore.group import kill, result, start_workers
from tests.kvstore.jobs import alone_then_killed, raises, slow_steps, until_killed
from tests.kvstore.proxy import Cable
from tests.kvstore.threads import SHAPE, Worker, undisturbed

TWOBIT = {"type": "2bit", "threshold": 0.5}
BIG = (1500, 2000)
"""Twelve pieces."""


class Servers:
    """Processes that are ended with the test."""

    def __init__(self):
        self.running = []

    def start(self, *options, workers=2, bind="tcp://127.0.0.1:0"):
        process, endpoint = start_server(["--workers", str(workers), "--bind", bind, *options], Forks())
        self.running.append(process)
        return process, endpoint

    def close(self):
        for process in self.running:
            kill(process)


@pytest.fixture
def servers():
    started = Servers()
    yield started
    started.close()


class Cables:
    """Cables that are taken away with the test."""

    def __init__(self):
        self.made = []

    def __call__(self, endpoint):
        self.made.append(Cable(endpoint))
        return self.made[-1]

    def close(self):
        for cable in self.made:
            cable.close()


BESIDE = {}


def beside(test):
    """Run a test in a thread, beside others of this file: they wait most of the time. It may have no other fixtures."""
    marks, asked = getattr(test, "pytestmark", []), inspect.signature(test).parameters
    names = [mark.args[0] for mark in marks]
    for values in itertools.product(*(mark.args[1] for mark in marks)):

        def run(folder, values=values):
            given, closing = dict(zip(names, values, strict=True)), contextlib.ExitStack()
            with closing:
                for name, make in (("servers", Servers), ("cables", Cables)):
                    if name in asked:
                        given[name] = closing.enter_context(contextlib.closing(make()))
                test(**given, **({"tmp_path": folder} if "tmp_path" in asked else {}))

        BESIDE[test.__name__, str(values)] = run

    def ended(running, **values):
        running[test.__name__, str(tuple(values[name] for name in names))].result()

    ended.__name__, ended.__doc__, ended.pytestmark = test.__name__, test.__doc__, marks
    places = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("running", *names)]
    ended.__signature__ = inspect.Signature(places)
    return ended


@pytest.fixture(scope="module", autouse=True)
def running(tmp_path_factory):
    """Four at a time, so that a beat is never long in coming."""
    with ThreadPoolExecutor(4) as threads:
        yield {name: threads.submit(run, tmp_path_factory.mktemp("beside")) for name, run in BESIDE.items()}


def both(endpoints, steps, allowed=None, **options):
    return [Worker(endpoints, rank, steps, **options).start(allowed) for rank in range(2)]


def same(workers, want):
    for worker in workers:
        value = worker.join()
        assert isinstance(value, torch.Tensor), value
        assert torch.equal(value, want)


def there(file, seconds=60):
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} is not there"
        time.sleep(0.02)


@beside
def test_two_processes_with_one_rank_are_told_apart(servers):
    _, endpoint = servers.start(workers=1)
    first = Worker([endpoint], 0, 3, world=1).start(allowed=1).wait(1)
    second = Worker([endpoint], 0, 3, world=1).start()
    error = second.join()
    assert isinstance(error, GroupError)
    assert "rank 0 is taken by a worker that was heard of" in str(error)
    first.go_on()
    same([first], undisturbed(3, ranks=[0]))
    with pytest.raises(ConfigError, match="closed"):
        first.store.push("w", torch.zeros(SHAPE))


@beside
def test_what_a_late_request_waits_for_is_said_when_its_time_is_over(servers):
    _, endpoint = servers.start(workers=3)
    stores = [DistStore("dist_sync", WorkerPlace((endpoint,), rank, 3), timeout=60) for rank in range(3)]
    first = stores[0]
    first.init("w", torch.zeros(SHAPE))
    stores[2].init("w", torch.zeros(SHAPE))
    for store in (first, stores[2]):
        store.push("w", torch.ones(SHAPE))
        store._flush()
    first._client.timeout = 2.0
    with pytest.raises(GroupError, match=r"within 2 s: step 1 of key 'w' waits for worker 1$"):
        first.pull("w", torch.zeros(SHAPE))
    with pytest.raises(GroupError, match=r"barrier 1 was not answered within 2 s: barrier 1 waits for workers 1, 2$"):
        first.barrier()
    nobody = DistStore("dist_sync", WorkerPlace(("tcp://127.0.0.1:1",), 0, 1), timeout=1)
    with pytest.raises(GroupError, match=r"server 0 at tcp://127\.0\.0\.1:1 never answered: is it started"):
        nobody.barrier()
    for store in (*stores, nobody):
        store.close()


@beside
def test_a_killed_worker_comes_again_and_is_named_when_it_does_not(tmp_path, servers):
    """One of three workers is killed, and another process takes its rank; then one is killed for good."""
    _, endpoint = servers.start("--dead-after", "3", workers=3)
    first = Worker([endpoint], 0, 10**6, world=3).start(allowed=2)
    with start_workers(until_killed, 2, 0, endpoint, str(tmp_path), folder=tmp_path) as group:
        first.wait(2)
        kill(group.workers[0])
        again = Worker([endpoint], 1, 10**6, world=3).start()
        first.go_on()
        first.wait(10)
        group.workers[1].kill()
        errors = [worker.join() for worker in (first, again)]
    for worker, error in zip((first, again), errors, strict=True):
        assert isinstance(error, GroupError)
        assert "worker 2 has not been heard of for 3 s" in str(error)
        assert worker.step >= 10
        # Of the step that was not made nothing is in the value.
        assert torch.equal(worker.out, undisturbed(worker.step, ranks=range(3)))


@beside
def test_a_worker_that_an_exception_ended_is_missing_and_has_not_finished(tmp_path):
    with start_workers(raises, 2, 1, folder=tmp_path, options=["--dead-after", "2"]) as group:
        assert group.workers[1].wait(60) == 1
        assert group.workers[0].wait(60) == 0
    assert "worker 1 has not been heard of for 2 s" in result(tmp_path, 0)


@beside
def test_the_others_go_on_without_a_worker_that_was_killed_in_a_push(tmp_path, servers):
    """It dies when some pieces of its push are with the server: those never count. Another process takes its place."""
    _, endpoint = servers.start("--dead-after", "2", "--on-dead-worker", "continue")
    worker = Worker([endpoint], 0, 4, shape=BIG).start(allowed=1)
    with start_workers(alone_then_killed, 1, 0, endpoint, BIG, folder=tmp_path) as group:
        assert group.workers[0].wait(90) == -signal.SIGKILL
    worker.wait(1)
    worker.go_on()
    worker.wait(3)
    # With both, from where the key is.
    late = Worker([endpoint], 1, 4, shape=BIG).start()
    theirs, ours = late.join(), worker.join()
    assert isinstance(ours, torch.Tensor), ours
    assert isinstance(theirs, torch.Tensor), theirs


@beside
@pytest.mark.parametrize("compression", [None, TWOBIT])
def test_a_killed_server_comes_again_from_its_snapshot_and_nothing_is_lost(compression, tmp_path, servers):
    options = ["--snapshot", str(tmp_path / "snapshot"), "--snapshot-every", "3"]
    process, endpoint = servers.start(*options)
    workers = both([endpoint], 12, allowed=5, compression=compression)
    for worker in workers:
        worker.wait(5)
    there(tmp_path / "snapshot")
    kill(process)
    for worker in workers:
        worker.go_on()
    servers.start(*options, bind=endpoint)
    same(workers, undisturbed(12, compression))


@beside
def test_one_of_two_servers_is_killed_and_comes_again(tmp_path, servers):
    options = [["--snapshot", str(tmp_path / f"snapshot-{i}"), "--snapshot-every", "2"] for i in range(2)]
    started = [servers.start(*each) for each in options]
    workers = both([endpoint for _, endpoint in started], 8, allowed=3, bound=100, compression=TWOBIT)
    for worker in workers:
        worker.wait(3)
    there(tmp_path / "snapshot-1")
    kill(started[1][0])
    for worker in workers:
        worker.go_on()
    servers.start(*options[1], bind=started[1][1])
    same(workers, undisturbed(8, TWOBIT))


@beside
@pytest.mark.parametrize("reconnected", [False, True])
def test_without_a_snapshot_the_values_are_lost_and_every_worker_is_told(servers, reconnected):
    """The time at which workers ask: before they have heard that the server is another one, or after it."""
    process, endpoint = servers.start()
    workers = both([endpoint], 10, allowed=2)
    for worker in workers:
        worker.wait(2)
    kill(process)
    servers.start(bind=endpoint)
    if reconnected:
        time.sleep(2)
    for worker in workers:
        worker.go_on()
    for worker in workers:
        error = worker.join()
        assert isinstance(error, GroupError)
        assert "restarted without a snapshot" in str(error)


def test_a_server_that_stays_away_is_named_within_the_time_of_a_silent_worker(servers, monkeypatch):
    assert Rules(workers=1).dead_after == connection.DISCONNECT_TIMEOUT
    monkeypatch.setattr(connection, "DISCONNECT_TIMEOUT", 2.0)
    started = [servers.start() for _ in range(2)]
    workers = both([endpoint for _, endpoint in started], 10, allowed=2, bound=100, server_timeout=None)
    for worker in workers:
        worker.wait(2)
    kill(started[1][0])
    for worker in workers:
        worker.go_on()
    errors = [worker.join() for worker in workers]
    for error in errors:
        assert isinstance(error, GroupError)
        assert f"server 1 at {started[1][1]} has been away for 2." in str(error)
        assert "it keeps no snapshot" in str(error)
        assert "GRADWIRE_SERVER_TIMEOUT" in str(error)


@beside
@pytest.mark.parametrize("moment", ["between steps", "in a push", "in a pull"])
def test_a_cable_that_is_cut_and_mended_loses_nothing_and_repeats_nothing(moment, servers, cables):
    """The cable is cut for a second, which is less than what makes a worker dead."""
    _, endpoint = servers.start("--dead-after", "60")
    cable = cables(endpoint)
    shape = SHAPE if moment == "between steps" else BIG
    workers = [Worker([where], rank, 4, shape=shape).start(2) for rank, where in enumerate((cable.endpoint, endpoint))]
    for worker in workers:
        worker.wait(2)
    if moment != "between steps":
        # After three of twelve pieces, on the way there or on the way back.
        cable.cut_after(3 * 2**20, to_server=moment == "in a push")
    for worker in workers:
        worker.go_on()
    if moment == "between steps":
        cable.cut()
    assert cable.gone.wait(60)
    time.sleep(1.0)
    cable.mend()
    same(workers, undisturbed(4, shape=shape))


@beside
def test_unequal_numbers_of_batches_on_several_servers(servers):
    endpoints = [servers.start()[1] for _ in range(2)]
    short, long = Worker(endpoints, 0, 2, bound=100).start(), Worker(endpoints, 1, 5, bound=100).start()
    values = short.join(), long.join()
    assert torch.equal(values[0], undisturbed(2))
    assert not torch.equal(values[1], values[0])
    assert torch.isfinite(values[1]).all()


@beside
def test_a_pull_that_nobody_will_answer_ends_at_its_deadline(servers):
    _, endpoint = servers.start()
    store = DistStore("dist_sync", WorkerPlace((endpoint,), 0, 2), timeout=60)
    store.init("w", torch.zeros(SHAPE))
    store.push("w", torch.ones(SHAPE))
    store._client.timeout = 1.0
    with pytest.raises(GroupError, match="the pull of 'w' was not answered within 1 s"):
        store.pull("w", torch.zeros(SHAPE))
    store.close()


@beside
def test_a_process_that_was_stopped_for_longer_than_the_dead_may_be_goes_on(tmp_path):
    arguments = (30, str(tmp_path), TWOBIT, 0.02)
    with start_workers(slow_steps, 1, 1, *arguments, folder=tmp_path, options=["--dead-after", "0.5"]) as group:
        there(tmp_path / "step-0")
        group.workers[0].send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        group.workers[0].send_signal(signal.SIGCONT)
        assert group.workers[0].wait(60) == 0
    text, steps, value = result(tmp_path, 0)
    assert (text, steps) == ("", 30)
    assert torch.equal(value, undisturbed(30, TWOBIT, ranks=[0]))


def test_a_server_is_not_started_from_what_is_no_snapshot(tmp_path, servers):
    (tmp_path / "snapshot").write_bytes(b"\x80\x04garbage")
    with pytest.raises(GroupError, match="exit code 2"), contextlib.redirect_stderr(None):
        servers.start("--snapshot", str(tmp_path / "snapshot"))


def test_a_server_with_a_snapshot_is_waited_for_as_long_as_it_is_said(tmp_path, servers, monkeypatch, running):
    wait(running.values())  # Their processes would inherit the variable.
    options = ["--snapshot", str(tmp_path / "snapshot")]
    monkeypatch.setenv("GRADWIRE_SERVER_TIMEOUT", "2")
    process, endpoint = servers.start(*options, workers=1)
    worker = Worker([endpoint], 0, 10, world=1, server_timeout=None).start(allowed=2).wait(2)
    kill(process)
    worker.go_on()
    error = worker.join()
    assert isinstance(error, GroupError)
    assert f"server 0 at {endpoint} has been away for 2." in str(error)
    assert "start it again at this address with the --snapshot file" in str(error)
