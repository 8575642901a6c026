"""Python processes that fork from one that has imported torch and gradwire: real ones, which start in milliseconds.

What imports take is most of what a short process costs. Whoever tests that start itself, an environment variable that
is read by an import, or a module that is missing, starts an interpreter of its own.
"""

import atexit
import contextlib
import multiprocessing as mp
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from multiprocessing.connection import Connection

import pytest

from gradwire.kvstore.launch.remote import Lines, Machine, pump
from gradwire.testing import processes
from gradwire_lab.experiments import launch

IMPORTED = [
    *processes.PRELOAD,
    "gradwire.kvstore.worker.store",
    "gradwire.cli.main",
    "gradwire.cli.commands.server",
    "gradwire.cli.commands.launch",
    "gradwire.cli.commands.meeting",
    "gradwire_lab.experiments.convergence",
    "gradwire_lab.experiments.replay",
    "gradwire_lab.experiments.sweep",
    "sklearn.datasets",
    "tests.frozen",
]


def context():
    """The server from which processes fork; the same as that of ``gradwire.testing``, whichever of both starts it."""
    forkserver = mp.get_context("forkserver")
    forkserver.set_forkserver_preload(IMPORTED)
    return forkserver


def fork_workers(monkeypatch):
    """Let ``experiments.launch`` fork its workers, which it starts with interpreters of their own otherwise."""
    context()
    monkeypatch.setattr(launch, "LaunchConfig", partial(launch.LaunchConfig, start_method="forkserver"))


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch, one_thread):
    """Fixture of a ``conftest.py`` that imports it: workers fork, and this process computes with one thread as they
    do."""
    fork_workers(monkeypatch)


def fork_own_workers():
    """In a forked process, before its command: let its workers fork from it, in its session."""
    launch.LaunchConfig = partial(launch.LaunchConfig, start_method="fork")


class Forked:
    """``python *arguments`` as a ``subprocess.Popen`` is, with ``-m MODULE`` or a script first.

    Args:
        arguments: behind ``python``.
        environment: all of it; None: that of this process.
        stdout: ``subprocess.PIPE``; None: that of this process.
        stderr: likewise.
        begin: called first in the process.
    """

    def __init__(self, arguments, environment=None, stdout=None, stderr=None, begin=int):
        self.args, self.stdin, self.returncode = list(arguments), None, None
        (self.stdout, out), (self.stderr, err) = destination(stdout, 1), destination(stderr, 2)
        told = dict(os.environ if environment is None else environment)
        given = self.args, told, os.getcwd(), out, err, begin
        # A daemon is ended with this process, and must have no workers.
        self._process = context().Process(target=interpret, args=given, daemon=begin is not fork_own_workers)
        self._process.start()
        out.close()
        err.close()
        self.pid = self._process.pid

    def poll(self):
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            # It may have ended, and its exit code not be here yet: as with a Popen that is no error.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        """Wait until the process has ended, and return its output."""
        deadline, told = None if timeout is None else time.monotonic() + timeout, {}
        streams = {"stdout": self.stdout, "stderr": self.stderr}
        readers = [
            threading.Thread(target=lambda name=name, stream=stream: told.update({name: stream.read()}), daemon=True)
            for name, stream in streams.items()
            if stream is not None
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return tuple(None if told.get(name) is None else told[name].decode() for name in streams)


def destination(wanted, number):
    """The end that this process reads, and the one that the other process writes to."""
    if wanted is None:
        return None, Connection(os.dup(number), readable=False)
    assert wanted == subprocess.PIPE
    read, write = os.pipe()
    return open(read, "rb"), Connection(write, readable=False)


def interpret(arguments, environment, folder, out, err, begin):
    """In the process: be ``python *arguments``, to the calls at its end."""
    for file, number in ((out, 1), (err, 2)):
        os.dup2(file.fileno(), number)
        file.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    code = 0
    try:
        begin()
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(arguments)
            sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.exit(code)


class Forks(Machine):
    """This machine, where servers and workers are forked."""

    @property
    def address(self):
        return "127.0.0.1"

    def start(self, command, environment, label):
        return Forked(command[1:], {**os.environ, **environment})

    def serve(self, command, label):
        process, first = Forked(command[1:], stdout=subprocess.PIPE), Lines()
        # The pump closes what it reads.
        process.pump = pump(process.stdout, label, sys.stdout, first)
        return process, first
