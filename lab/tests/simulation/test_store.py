"""The simulation of the store: it finds faults that are put into it, does what ZeroMQ does, and repeats itself."""

import itertools
import os
import subprocess
import sys
import time

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from gradwire._system import Readings
from gradwire.kvstore.server.stored_part import StoredPart
from gradwire.kvstore.server.values import Progress
from gradwire.kvstore.system import System
from gradwire.kvstore.worker import connection
from gradwire_lab.simulation.case import shrink
from gradwire_lab.simulation.disk import Files
from gradwire_lab.simulation.faults import CLASSES
from gradwire_lab.simulation.machine import SimulatedMachine
from gradwire_lab.simulation.network import Network
from gradwire_lab.simulation.run import Case
from gradwire_lab.simulation.scheduler import Scheduler
from gradwire_lab.simulation.workload import SimulatedTraining


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("seed", range(2))
def test_each_class_of_faults(name, seed):
    assert (case := Case.draw(seed, name)).run().violations == [], str(case)


@pytest.mark.parametrize("name", Case.triples(0))
def test_each_pair_of_classes_with_a_third_one(name):
    assert (case := Case.draw(0, name)).run().violations == [], str(case)


def test_each_pair_is_in_a_triple_and_each_triple_comes():
    names = [name for name in CLASSES if name != "none"]
    lists = [[tuple(each.split("+")) for each in Case.triples(total)] for total in range(len(names))]
    for those in lists:
        pairs = {frozenset(pair) for each in those for pair in itertools.combinations(each, 2)}
        assert pairs == set(map(frozenset, itertools.combinations(names, 2)))
    assert {frozenset(each) for those in lists for each in those} >= set(
        map(frozenset, itertools.combinations(names, 3))
    )


def test_over_64_workers():
    work = SimulatedTraining(workers=65, steps=2, pace=2.0)
    case = Case.draw(1, "stop-server", work)
    assert case.faults[0].seconds > 8
    assert case.run().violations == []


FOUND = [
    # A worker that waited for nothing heard no more of why its introduction was refused.
    "seed=2 servers=2 optimizer=adam steps=8 snapshot=100 pull=3 exits=1 swap=server-0@3.817+0.35",
    # What an older file did not have was waited for.
    "seed=52 optimizer=adam steps=8 pull=3 older=server-0@3.696+1.68",
    # A flipped bit in a record that ended with zeros made it one that a power cut had torn.
    "seed=8 workers=1 servers=2 sync=0 optimizer=sgd bits=1 keys=3 steps=8 snapshot=10 flip=server-1@0.816+3.83",
    # A worker that had finished before the other one came was waited for after a restart.
    "seed=2 servers=2 sync=0 optimizer=sgd bits=1 steps=4 snapshot=3 proceed=1 pull=3 pace=0.2 late=3.0 "
    "kill=server-0@1.517+999 kill=server-1@finished1.265+4.23",
    # An exchanged file is told as "another server's"; and a wait of 60 s was partly for a worker that was stopped.
    "seed=2000000 workers=1 servers=2 sync=0 optimizer=adam steps=4 uneven=2 exits=1 swap=server-0@0.027+3.39",
    "seed=1000029 workers=3 late=3.0 optimizer=adam cut=1 steps=8 snapshot=0 proceed=1 pull=3 "
    "stop=worker-2@5.11+10.53 hang=server-0@7.462+999",
    # A worker that came again said to a server that had lost its state only that the numbers of settings do not fit.
    "seed=6000006 servers=2 sync=0 optimizer=sgd settings=1 steps=8 snapshot=0 kill=worker-1@2.912+13.36#2 "
    "kill=server-0@2.229+3.66#1",
    # A request waited for a server that stood still and was then killed, a short time ago.
    "seed=8000024 workers=3 barrier=2 steps=4 uneven=2 snapshot=0 exits=1 kill=server-0@1.762+15.29#3 "
    "hang=server-0@0.982+58.58",
    # A worker that one server had told that it was finished did not hear that this server then lost what it had had.
    "seed=8000025 workers=3 servers=2 sync=0 cut=1 steps=8 uneven=2 snapshot=100 pull=3 full=server-0@finishing0+1.91 "
    "older=server-1@1.987+0.6",
    # A worker waited for one that computed for seconds after its server had come again.
    "seed=8000014 pace=3.0 optimizer=sgd bits=1 keys=3 steps=8 snapshot=3 proceed=1 refused=1 "
    "hang=server-0@4.365+56.23 kill=worker-1@3.745+9.02#1",
    # What an error says of a worker ended in a comma.
    "seed=8000008 pace=3.0 late=3.0 servers=2 sync=0 keys=3 steps=8 snapshot=0 proceed=1 staleness=2 "
    "swap=server-0@3.362+1.31 kill=worker-0@1.874+60#2",
    # A setting that an older copy does not have was said to be lost for want of a snapshot.
    "seed=9000017 workers=3 pace=3.0 late=3.0 servers=2 settings=1 steps=8 snapshot=10 proceed=1 "
    "older=server-0@3.344+0.62 kill=worker-0@0.986+10.21#5",
    # When a run was over, a thread of a killed process still got an error.
    "seed=11000006 servers=2 sync=0 keys=3 steps=8 snapshot=100 pull=3 exits=1 staleness=2 "
    "kill=worker-0@1.744+4.52#5 flip=server-1@1.052+0.61",
    # A server did not take a worker in while it wrote its file, and then stood still.
    "seed=11000003 pace=3.0 servers=2 sync=0 optimizer=none cut=1 steps=8 snapshot=10 proceed=1 pull=3 "
    "hang=server-0@13.337+999 kill=worker-1@0.184+13.12",
    # A server that had been killed, and whose connection then stalled, counted as away for ever.
    "seed=11000012 workers=3 pace=0.2 optimizer=adam keys=3 cut=1 steps=8 snapshot=10 exits=1 "
    "stall=worker-2~server-0@0.265+3.65 kill=server-0@0.031+45.16",
    # The first process of a rank never came to one of the servers, for which the second one is the first.
    "seed=11000015 workers=3 pace=3.0 late=3.0 servers=2 settings=1 steps=8 snapshot=100 proceed=1 refused=1 "
    "kill=worker-0@0.393+13",
    # A process that was killed while it bound its socket kept the address for ever.
    "seed=14000015 workers=3 servers=2 settings=1 steps=4 snapshot=100 pull=3 kill=server-0@0+23.09#1",
    # A worker waited for one that ended itself because a server was away, and then met that server.
    "seed=15000012 pace=0.2 servers=2 optimizer=sgd settings=1 barrier=2 steps=8 snapshot=10 proceed=1 exits=1 "
    "stall=worker-0~server-0@0.616+17.61 kill=server-0@1.211+999",
    # An older file was put back when all workers had finished, and the server was not started with it any more.
    "seed=15000018 pace=0.2 sync=0 settings=1 steps=4 snapshot=10 proceed=1 exits=1 refused=1 staleness=2 "
    "stop=worker-1@0.575+1.42#1 older=server-0@0.717+3.26",
    # A worker that had finished was started again with the others, who did not wait for it: it pulled a later value.
    "seed=18000002 late=3.0 optimizer=adam cut=1 steps=8 snapshot=10 proceed=1 full=server-0@finishing0+20.11 "
    "kill=server-0@finishing20.848+0.66 job=all@finished0.09+0.53#1",
    # A barrier that an older copy does not have was refused without a word of why.
    "seed=19000013 workers=3 pace=0.2 sync=0 barrier=2 steps=8 uneven=2 snapshot=100 staleness=2 "
    "stop=worker-1@0.968+21.87 full=server-0@finishing0+22.39 kill=server-0@finishing22.699+3.57 "
    "older=server-0@0.954+3.96",
    # A request has the time that it may take, whatever the server does meanwhile.
    "seed=19000024 late=3.0 sync=0 optimizer=none keys=3 barrier=2 steps=8 snapshot=0 pull=3 "
    "kill=server-0@7.561+24.09#8 hang=server-0@0.306+39.78",
]


@pytest.mark.parametrize("line", FOUND)
def test_what_was_found_is_mended(line):
    assert Case.parse(line).run().violations == []


CASES = [Case.draw(seed, name) for seed, name in enumerate(["cut+kill-server", "stall+torn", "kill-worker+stop-both"])]
DIGESTS = """
import sys
from gradwire_lab.simulation.run import Case
for line in sys.argv[1:]:
    print(Case.parse(line).run().digest)
"""


def test_a_case_repeats_itself():
    first = [case.run().digest for case in CASES]
    assert [Case.parse(str(case)).run().digest for case in CASES] == first
    command = [sys.executable, "-c", DIGESTS, *map(str, CASES)]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == first


def test_another_seed_is_another_run():
    assert len({Case(seed, SimulatedTraining(steps=2)).run().digest for seed in range(3)}) == 3


def found(name, count=12, work=None):
    """The violations of some seeds of a class."""
    return [text for seed in range(count) for text in Case.draw(seed, name, work).run().violations]


ASYNC = SimulatedTraining(workers=2, sync=False, steps=4, pace=0.3)


def test_a_repeated_push_that_counts_twice_is_found(monkeypatch):
    original = StoredPart.apply_one

    def twice(part, rank, step, push, updaters):
        if step <= part.last.get(rank, 0):
            part._update([push], updaters)
        return original(part, rank, step, push, updaters)

    assert found("cut", 12, ASYNC) == []
    monkeypatch.setattr(StoredPart, "apply_one", twice)
    assert any("count" in text for text in found("cut", 12, ASYNC))


def test_a_promise_to_keep_what_is_in_memory_alone_is_found(monkeypatch):
    work = SimulatedTraining(workers=2, sync=False, steps=6, snapshot=100, pace=0.3, pull=3)
    monkeypatch.setattr(Progress, "durable", Progress.version)
    assert any("count" in text or "waits" in text for text in found("kill-server", 12, work))


def test_a_live_worker_that_is_declared_dead_is_found(monkeypatch):
    def read(self):
        self.now = self._clock()
        return self.now

    work = SimulatedTraining(workers=2, steps=4, pace=1.0)
    assert found("stop-server", 12, work) == []
    monkeypatch.setattr(Readings, "read", read)
    assert any("dead, which is alive" in text for text in found("stop-server", 12, work))


def test_an_error_that_comes_too_late_is_found(monkeypatch):
    assert found("gone", 4) == []
    monkeypatch.setattr(connection, "RESTART_TIMEOUT", 40.0)
    assert any("too late" in text for text in found("gone", 4))


def test_a_push_that_disappears_is_found(monkeypatch):
    original = StoredPart.lend
    monkeypatch.setattr(StoredPart, "lend", lambda part: original(part) * (part.version % 3 > 0))
    assert any("no longer count that did before" in text for text in found("none", 1, ASYNC))


def test_a_failing_case_is_shrunk_to_its_faults(monkeypatch):
    case = Case.draw(0, "cut+jump+kill-server+stall", ASYNC)
    smallest = shrink(case, lambda case: any(fault.kind == "kill" for fault in case.faults))
    assert [fault.kind for fault in smallest.faults] == ["kill"]
    assert Case.parse(str(smallest)) == smallest


class Real(System):
    """The machine of this process, with a function that waits."""

    def sleep(self, seconds):
        time.sleep(seconds)


def scenario(play):
    """Return the results of a scenario over ZeroMQ, and over the simulated sockets."""
    scheduler = Scheduler("0")
    machine = SimulatedMachine(Network(scheduler), "process", Files(scheduler.random))
    simulated = []
    scheduler.start(machine.simulated, lambda: simulated.extend(play(machine)), "main")
    scheduler.run(lambda: not machine.simulated.tasks, 60.0)
    scheduler.end()
    assert not scheduler.failures
    return play(Real()), simulated


class Ends:
    """A ROUTER and DEALERs of one machine."""

    def __init__(self, machine):
        self.machine, self.context = machine, machine.context()
        self.endpoint = ""
        self.open = []

    def router(self):
        socket = self.context.socket(zmq.ROUTER)
        for option in (zmq.ROUTER_MANDATORY, zmq.ROUTER_HANDOVER):
            socket.setsockopt(option, 1)
        for option, value in ((zmq.LINGER, 0), (zmq.SNDHWM, 64), (zmq.RCVHWM, 64)):
            socket.setsockopt(option, value)
        socket.bind(self.endpoint or "tcp://127.0.0.1:0")
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.open.append(socket)
        return socket

    def dealer(self, name=b"a", interval=50):
        socket = self.context.socket(zmq.DEALER)
        for option, value in (
            (zmq.IDENTITY, name),
            (zmq.LINGER, 1000),
            (zmq.SNDHWM, 16),
            (zmq.RCVHWM, 0),
            (zmq.RECONNECT_IVL, interval),
            (zmq.RECONNECT_IVL_MAX, 10 * interval),
        ):
            socket.setsockopt(option, value)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        socket.connect(self.endpoint)
        self.open += [monitor, socket]
        return socket, monitor

    def settle(self, seconds=0.4):
        self.machine.sleep(seconds)

    def close(self, *sockets):
        for socket in sockets or self.open:
            socket.close(0)
        self.open = [each for each in self.open if each not in sockets]
        if not sockets:
            self.context.term()


def received(socket):
    messages = []
    while True:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return messages
        messages.append([frame.bytes for frame in frames])


def sent(socket, *frames):
    try:
        socket.send_multipart(list(frames), zmq.NOBLOCK, copy=False)
    except zmq.ZMQError as error:
        return error.errno
    return "sent"


def events(monitor):
    names = {zmq.EVENT_HANDSHAKE_SUCCEEDED: "up", zmq.EVENT_DISCONNECTED: "down"}
    seen = []
    while monitor.poll(0):
        seen.append(names[parse_monitor_message(monitor.recv_multipart())["event"]])
    return seen


def a_conversation(ends):
    router = ends.router()
    yield sent(router, b"a", b"too early")
    dealer, monitor = ends.dealer()
    yield [sent(dealer, b"%d" % i, b"data") for i in range(5)]
    ends.settle()
    yield [received(router), events(monitor), sent(router, b"a", b"answer"), sent(router, b"b", b"to nobody")]
    ends.settle()
    yield received(dealer)


def a_server_that_comes_later(ends):
    ends.close(ends.router())
    ends.settle()
    dealer, monitor = ends.dealer()
    yield [sent(dealer, b"%d" % i) for i in range(20)]
    ends.settle()
    router = ends.router()
    ends.settle(1.5)
    yield [received(router), events(monitor), sent(dealer, b"more")]


def a_server_that_comes_again(ends):
    router = ends.router()
    dealer, monitor = ends.dealer()
    sent(dealer, b"one")
    ends.settle()
    yield received(router)
    ends.close(router)
    ends.settle()
    yield [sent(dealer, b"two"), events(monitor)]
    router = ends.router()
    ends.settle(1.5)
    yield [received(router), events(monitor), sent(router, b"a", b"answer")]
    ends.settle()
    yield received(dealer)


def a_worker_that_goes(ends):
    router = ends.router()
    dealer, _ = ends.dealer()
    sent(dealer, b"one")
    sent(dealer, b"two")
    ends.settle()
    dealer.close()
    ends.settle()
    # What has arrived is read, and nothing can be sent.
    yield [sent(router, b"a", b"answer"), received(router), sent(router, b"a", b"answer")]


def a_name_that_is_taken_over(ends):
    router = ends.router()
    first, _ = ends.dealer(interval=5000)
    sent(first, b"first")
    ends.settle()
    yield received(router)
    second, _ = ends.dealer()
    sent(second, b"second")
    ends.settle()
    yield [received(router), sent(router, b"a", b"answer")]
    ends.settle()
    yield [received(first), received(second), sent(first, b"kept for the next connection")]


def a_worker_that_does_not_read(ends):
    router = ends.router()
    dealer, monitor = ends.dealer()
    sent(dealer, b"one")
    ends.settle()
    yield [received(router), [sent(router, b"a", b"%d" % i) for i in range(10)]]
    ends.settle()
    yield [received(dealer), events(monitor)]


@pytest.mark.parametrize(
    "play",
    [
        a_conversation,
        a_server_that_comes_later,
        a_server_that_comes_again,
        a_worker_that_goes,
        a_name_that_is_taken_over,
        a_worker_that_does_not_read,
    ],
)
def test_the_simulated_sockets_do_what_zeromq_does(play):
    def played(machine):
        ends = Ends(machine)
        try:
            return list(play(ends))
        finally:
            ends.close()

    real, simulated = scenario(played)
    assert simulated == real
