"""The same script under MXNet's tracker, torchrun and Slurm: real processes, told by nothing but their environment."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import PrefixStore

from gradwire import ConfigError, GradwireError, GroupError, kvstore
from gradwire.kvstore.launch import torchrun
from tests.forked import Forked

SCRIPT = Path(__file__).with_name("script.py")
FOREIGN = ("GRADWIRE_", "DMLC_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "LOCAL_")


def environment_with(told):
    """The environment of a process that knows nothing of its place but what it is told."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return own | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in told.items()}


def start(command, **told):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment_with(told), text=True, **pipes)


def ended(processes, seconds=90):
    """(exit code, stdout, stderr) of each."""
    told = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=seconds)
            told.append((process.returncode, out, err))
    finally:
        for process in (each for each in processes if each.poll() is None):
            process.terminate()
            process.wait(30)
    return told


def lines(*outputs):
    """The lines that workers printed, sorted."""
    return sorted(line for out in outputs for line in out.splitlines() if line.startswith("rank "))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def roles(scheduler=1, server=1, worker=2, **more):
    """All processes of a run, as MXNet's local tracker starts them."""
    told = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": free_port(),
        "DMLC_NUM_WORKER": 2,
        "DMLC_NUM_SERVER": 1,
        **more,
    }
    counts = {"scheduler": scheduler, "server": server, "worker": worker}
    places = [environment_with({"DMLC_ROLE": role, **told}) for role, count in counts.items() for _ in range(count)]
    return [Forked([str(SCRIPT)], place, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for place in places]


def test_mxnets_tracker_starts_the_script_in_every_role_and_all_of_them_end():
    results = ended(roles())
    assert [code for code, _, _ in results] == [0] * 4, results
    assert lines(*(out for _, out, _ in results)) == [f"rank {r} of 2, 1 servers: [3.0, 3.0, 3.0]" for r in range(2)]


def test_a_server_of_mxnets_trackers_has_its_index_in_its_options(tmp_path):
    options = f"--snapshot={tmp_path}/{{server}}.snapshot"
    results = ended(roles(DMLC_SERVER_ID=3, GRADWIRE_SERVER_OPTIONS=options))
    assert [code for code, _, _ in results] == [0] * 4, results
    assert (tmp_path / "3.snapshot").is_file()


def own_address():
    """At which other machines reach this one, as MXNet's tracker finds it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return probe.getsockname()[0]


@pytest.mark.timeout(300)
def test_mxnets_tracker_names_the_machine_by_its_address_on_the_network():
    results = ended(roles(worker=1, DMLC_NUM_WORKER=1, DMLC_PS_ROOT_URI=own_address(), GRADWIRE_INSECURE=1), 250)
    assert [code for code, _, _ in results] == [0] * 3, results
    assert lines(*(out for _, out, _ in results)) == ["rank 0 of 1, 1 servers: [1.0, 1.0, 1.0]"]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"DMLC_ROLE": "worker_"}, "DMLC_ROLE must be one of worker, server, scheduler"),
        ({"DMLC_ROLE": "server"}, "DMLC_PS_ROOT_PORT is missing"),
        ({"DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_PORT": "x"}, "DMLC_PS_ROOT_PORT must be an integer"),
        (
            {"DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_URI": "0.0.0.0", "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1"},
            "can be reached by others.*GRADWIRE_INSECURE=1",
        ),
        (
            {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "192.0.2.1", "DMLC_NUM_WORKER": "1"},
            "can be reached by others.*GRADWIRE_INSECURE=1",
        ),
        (
            {"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "1", "GRADWIRE_SERVER_OPTIONS": "--snapshot={server}"},
            "GRADWIRE_SERVER_OPTIONS must be without {server} where DMLC_SERVER_ID is not set",
        ),
        (
            {"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "1", "GRADWIRE_SERVER_OPTIONS": "--snapshot='file"},
            "GRADWIRE_SERVER_OPTIONS must be words as a shell reads them, got .*: No closing quotation",
        ),
    ],
)
def test_a_role_that_cannot_be_taken_is_named(told, message, monkeypatch):
    # A server that is not refused would take the place of this process.
    monkeypatch.setattr(os, "execv", lambda *_: None)
    for name, value in {"DMLC_PS_ROOT_PORT": "9000", "DMLC_PS_ROOT_URI": "127.0.0.1", **told}.items():
        monkeypatch.setenv(name, value)
    if "is missing" in message:
        monkeypatch.delenv("DMLC_PS_ROOT_PORT")
    with pytest.raises(ConfigError, match=message):
        kvstore.create("dist_sync")


def running(mark):
    """Processes whose command has an argument."""
    commands = {entry: entry / "cmdline" for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    found = []
    for entry, command in commands.items():
        with contextlib.suppress(OSError):
            found += [entry.name] if mark.encode() in command.read_bytes().split(b"\0") else []
    return found


def test_torchrun_needs_no_servers_of_its_own_and_leaves_none():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    mark = "--dead-after=61.5"
    told = {"GRADWIRE_NUM_SERVERS": 2, "GRADWIRE_SERVER_OPTIONS": mark}
    ((code, out, err),) = ended([start([*command, str(SCRIPT)], **told)])
    assert code == 0, err
    assert lines(out) == [f"rank {rank} of 2, 2 servers: [3.0, 3.0, 3.0]" for rank in range(2)]
    assert running(mark) == []


def test_rank_0_that_ends_by_an_exception_ends_its_servers_and_waits_for_nobody():
    mark, here = "--dead-after=62.5", {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}
    told = {**here, "GRADWIRE_SERVER_OPTIONS": mark}
    scripts = [[sys.executable, str(SCRIPT), how] for how in ("fail", "interrupt")]
    results = ended([start(script, **told, MASTER_PORT=free_port()) for script in scripts])
    assert [lines(out) for _, out, _ in results] == [["rank 0 of 1, 1 servers: [1.0, 1.0, 1.0]"]] * 2
    for (code, _, err), message in zip(results, ("RuntimeError: it fails", "KeyboardInterrupt"), strict=True):
        assert code != 0
        assert message in err
    assert running(mark) == []


def as_rank_0(monkeypatch, world, **told):
    """Give this process the environment of rank 0."""
    here = {"RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**here, "MASTER_PORT": free_port(), **told}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"GRADWIRE_SERVER_OPTIONS": "--bogus"}, "server 0 ended with exit code 2"),
        ({"GRADWIRE_SERVER_OPTIONS": "--dead-after '20"}, "GRADWIRE_SERVER_OPTIONS must be words as a shell reads"),
        ({"GRADWIRE_NUM_SERVERS": "0"}, "GRADWIRE_NUM_SERVERS must be an integer >= 1"),
        ({"LOCAL_WORLD_SIZE": "0"}, "GRADWIRE_HOST must be the address"),
        ({"LOCAL_WORLD_SIZE": "0", "GRADWIRE_HOST": "no.such.host.invalid"}, "GRADWIRE_HOST must be the address"),
    ],
)
def test_rank_0_says_why_it_has_no_servers(told, message, monkeypatch):
    as_rank_0(monkeypatch, 1, **told)
    with pytest.raises(GradwireError, match=message):
        kvstore.create("dist_sync")


class Gone(PrefixStore):
    """A store that is gone when an error is to be told."""

    def set(self, key, value):
        if value.startswith("!"):
            raise RuntimeError("the store is gone")
        super().set(key, value)


@pytest.mark.parametrize("store", [PrefixStore, Gone])
def test_a_server_that_has_started_ends_when_another_one_does_not_start(store, tmp_path, monkeypatch):
    monkeypatch.setattr(torchrun, "PrefixStore", store)
    mark = "--dead-after=63.5"
    options = f"{mark} --snapshot={tmp_path / 'file'}"
    as_rank_0(monkeypatch, 1, GRADWIRE_NUM_SERVERS=2, GRADWIRE_SERVER_OPTIONS=options)
    with pytest.raises(GroupError, match="server 1 ended with exit code 2"):
        kvstore.create("dist_sync")
    assert running(mark) == []


def test_the_other_ranks_learn_of_any_error_of_rank_0(monkeypatch):
    def refused(*_):
        raise OSError("no more processes")

    as_rank_0(monkeypatch, 2, GRADWIRE_START_TIMEOUT=60)
    both_learn(monkeypatch, refused, OSError, "no more processes", "OSError: no more processes")


def both_learn(monkeypatch, start, error, text, told):
    """The error with which rank 0 starts its servers is raised there, and its text on the other rank."""
    monkeypatch.setattr(torchrun, "start_server", start)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(torchrun.start_servers_on_rank_0, {**os.environ, "RANK": "1"})
        with pytest.raises(error, match=text):
            kvstore.create("dist_sync")
        with pytest.raises(GroupError, match=f"rank 0 could not start the servers: {told}"):
            other.result()


def test_the_servers_of_rank_0_have_one_deadline_and_the_other_ranks_learn_that_it_passed(monkeypatch):
    deadlines = []

    def hangs(_arguments, _machine, index, deadline):
        deadlines.append(deadline)
        if index == 0:
            return subprocess.Popen(["true"]), "tcp://127.0.0.1:1"
        # It is ended when its time is over, which takes a moment, too.
        time.sleep(deadline - time.monotonic() + 1.0)
        raise GroupError("server 1 hangs")

    as_rank_0(monkeypatch, 2, GRADWIRE_START_TIMEOUT=5, GRADWIRE_NUM_SERVERS=2)
    both_learn(monkeypatch, hangs, GroupError, "server 1 hangs", "server 1 hangs")
    assert len(set(deadlines)) == 1


SRUN = """#!/bin/bash
# Slurm's, as far as the script uses it: the command once for each task, with its number.
tasks=$SLURM_NTASKS
while [[ $1 == --* ]]; do [[ $1 == --ntasks=* ]] && tasks=${1#*=}; shift; done
for ((task = 0; task < tasks; task++)); do SLURM_NTASKS=$tasks SLURM_PROCID=$task "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit ${code:-0}
"""


def test_the_batch_script_for_slurm_runs_as_it_is_documented(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "kvstore_start.md").read_text()
    (script,) = re.findall(r"^```bash[^\n]*\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert script.count(":7000") == 1
    commands = {
        "srun": SRUN,
        "scontrol": "#!/bin/bash\necho first\necho elsewhere\n",
        # As where /etc/hosts has a loopback address for the machine's own name.
        "getent": f"#!/bin/bash\necho 127.0.1.1 STREAM first\necho {own_address()} STREAM\n",
        "gradwire": f'#!/bin/bash\necho "$@" >> {tmp_path}/calls\nexec {sys.executable} -m gradwire "$@"\n',
        "python": f"#!/bin/bash\nexec {sys.executable} {SCRIPT}\n",
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    port = free_port()
    (tmp_path / "job").write_text(script.replace(":7000", f":{port}"))
    told = {"SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": 2, "SLURM_SUBMIT_DIR": tmp_path, "SLURM_JOB_ID": 1}
    path = f"{tmp_path}:{os.environ['PATH']}"
    ((code, out, err),) = ended([start(["bash", str(tmp_path / "job")], **told, PATH=path)])
    assert code == 0, err
    assert f"--bind tcp://{own_address()}:{port} " in (tmp_path / "calls").read_text()
    assert lines(out) == [f"rank {rank} of 2, 1 servers: [3.0, 3.0, 3.0]" for rank in range(2)]
