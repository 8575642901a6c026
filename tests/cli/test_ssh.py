"""``gradwire launch --host-file`` over a real sshd on loopback, with a key and a configuration of its own."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradwire import ConfigError
from gradwire.kvstore.launch import agent, remote
from gradwire.kvstore.launch.remote import (
    AgentMachine,
    Host,
    check_reachable,
    end_all,
    local_agent,
    over_ssh,
    placed,
    read_hosts,
)
from tests.cli.test_launch import SCRIPT, alive, appear, finish, gone

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin")
KEYGEN = shutil.which("ssh-keygen")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """A host file's words for this machine, and the ssh command that gets there."""
    if SSHD is None or KEYGEN is None:
        pytest.skip("no sshd here: apt-get install openssh-server")
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user"):
        subprocess.run([KEYGEN, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\nPermitRootLogin yes\nMaxStartups 50\n"
    )
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # its own precondition, where it separates privileges
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.PIPE)
    wait_until_open(port, process)
    yield f"{getpass.getuser()}@127.0.0.1:{port}", f"ssh -F none -i {folder}/user -o UserKnownHostsFile={folder}/known"
    process.terminate()
    process.communicate(timeout=10)


def wait_until_open(port, process):
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"sshd does not start: {process.stderr.read().decode() if process.poll() else port}")
            time.sleep(0.05)


def started(sshd, folder, what, *options, slots=2):
    hosts = folder / "hosts"
    hosts.write_text(f"# the only one\n{sshd[0]} slots={slots}\n")
    command = [
        sys.executable,
        "-m",
        "gradwire",
        "launch",
        "--host-file",
        str(hosts),
        "--ssh",
        sshd[1],
        *options,
        "--",
        sys.executable,
        str(SCRIPT),
        what,
        str(folder),
    ]
    environment = {**os.environ, "GRADWIRE_TEST": "it's $HOME; `id`", "OTHER": "a b"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def test_workers_on_the_hosts_of_a_file_meet(sshd, tmp_path):
    code, out, err = finish(started(sshd, tmp_path, "add", "-n", "2"))
    assert code == 0, err
    for rank in range(2):
        assert f"[worker {rank}] rank {rank} of 2: it's $HOME; `id`\n" in out
        assert f"[worker {rank}] sum [3.0, 3.0, 3.0]\n" in out


def test_the_exit_code_comes_over_ssh_and_the_others_are_ended(sshd, tmp_path):
    process = started(sshd, tmp_path, "fail", "-n", "2")
    pids = appear(tmp_path / "pid-0", tmp_path / "child-0")
    code, _, err = finish(process)
    assert code == 7
    assert "worker 1 ended with exit code 7" in err
    gone(*pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_the_launcher_ends_what_it_started_elsewhere(number, sshd, tmp_path):
    process = started(sshd, tmp_path, "stay", "-n", "1")
    pids = appear(tmp_path / "pid-0", tmp_path / "child-0")
    assert all(alive(pid) for pid in pids)
    process.send_signal(number)
    assert finish(process)[0] == (130 if number == signal.SIGINT else -9)
    gone(*pids)


def test_a_host_that_lets_nobody_in_is_an_error(sshd, tmp_path):
    code, _, err = finish(
        started((sshd[0], "ssh -F none -o UserKnownHostsFile=/dev/null"), tmp_path, "stay", "-n", "1")
    )
    assert code == 2
    assert "[server 0] " in err
    assert "server 0 ended with exit code 255" in err


def test_the_forms_of_a_line(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("\n# two\nnode1 slots=2 # fast\nada@node-2.lan:2222 address=10.0.0.2\n[::1]:22\n")
    hosts = read_hosts(file)
    assert hosts == [Host("node1", slots=2), Host("node-2.lan", "ada", 2222, address="10.0.0.2"), Host("::1", port=22)]
    assert [host.name for host in placed(hosts, 4)] == ["node1", "node1", "node-2.lan", "::1"]
    assert hosts[1].listen() == "10.0.0.2"
    with pytest.raises(ConfigError, match="at most 4"):
        placed(hosts, 5)
    for name in ("no-such-host.invalid", "::1"):
        with pytest.raises(ConfigError, match="resolves to no IPv4 address: write address=IP"):
            Host(name).listen()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one host"),
        ("-oProxyCommand=id", "HOST"),
        ("a b", "HOST"),
        ("a slots=0", "slots in .*line 1"),
        ("a\nb slots=x", "slots in .*line 2"),
        ("a:0", "port in"),
        ("a:99999", "port in"),
        ("a slot=3", "HOST"),
        ("a address=b", "address in .*line 1 must be an IPv4 address, got 'b'"),
        ("a address=fd00::2", "address in .*line 1 must be an IPv4 address, got 'fd00::2'"),
        ("$(id)@a", "HOST"),
    ],
)
def test_another_form_is_refused(text, message, tmp_path):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_hosts(tmp_path / "hosts")


def test_a_server_that_workers_on_other_hosts_cannot_reach_is_refused():
    here, other = Host("localhost"), Host("other", address="10.0.0.2")
    with pytest.raises(ConfigError, match=r"'localhost' must have an address .*, got 127\.0\.0\.1: write address=IP"):
        check_reachable([here, other], 1)
    with pytest.raises(ConfigError, match="'localhost' must have an address"):
        check_reachable([other, here], 2)
    named = Host("no-such-host.invalid")
    with pytest.raises(ConfigError, match="'localhost' must have an address"):
        check_reachable([here, named], 1)
    with pytest.raises(ConfigError, match=r"'no-such-host\.invalid' resolves to no IPv4 address"):
        check_reachable([named, other], 1)
    # The only server is at the other host, and the name of a host without one is for ssh alone.
    check_reachable([other, here, named], 1)
    check_reachable([Host("localhost", address="10.0.0.1"), other], 2)
    check_reachable([here, here], 1)


@pytest.mark.parametrize(
    ("hosts", "ssh", "message"),
    [
        ("localhost\nother address=10.0.0.2\n", "ssh", "'localhost' must have an address"),
        ("localhost slots=2\n", "ssh -i 'key", "--ssh must be words as a shell reads them"),
    ],
)
def test_a_launch_that_cannot_work_is_refused_before_anything_is_started(hosts, ssh, message, tmp_path, gradwire):
    (tmp_path / "hosts").write_text(hosts)
    done = gradwire("launch", "--host-file", str(tmp_path / "hosts"), "--ssh", ssh, "--", "python")
    assert done.exit_code == 2
    assert message in done.stderr


def test_an_agent_ends_its_command_when_nothing_comes_from_the_launcher_for_long(monkeypatch):
    """Its machine or the network is gone, and no end of the connection tells of it."""
    monkeypatch.setattr(remote, "beat", lambda _: None)
    machine = AgentMachine(Host("there"), [sys.executable, agent.__file__], silence=0.5)
    process = machine.start(["sleep", "600"], {}, "worker 0")
    try:
        assert process.wait(90) == 128 + signal.SIGTERM
    finally:
        end_all([process])


def test_an_agent_on_another_machine_gets_signs_of_life(monkeypatch):
    monkeypatch.setattr(remote, "BEAT", 0.01)
    program = "import json, sys; told = json.loads(sys.stdin.buffer.readline()); sys.stdin.buffer.read(3)"
    ssh = [sys.executable, "-c", f"{program}; sys.exit(int(told['silence']))"]
    process = over_ssh(Host("there"), ssh).start(["true"], {}, "worker 0")
    try:
        assert process.wait(90) == remote.SILENCE
    finally:
        end_all([process])


def test_an_agent_on_this_machine_waits_for_the_end_of_stdin_alone():
    """A script that computes for long with the interpreter's lock is not gone, and could send no sign of life."""
    machine = local_agent(Host("here"))
    assert machine.silence is None
    process = machine.start(["sleep", "600"], {}, "worker 0")
    end_all([process])
    assert process.returncode == 128 + signal.SIGTERM
