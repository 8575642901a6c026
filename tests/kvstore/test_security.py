"""Workers that may speak to a server, and addresses at which it may be reached."""

import subprocess
import threading

import pytest
import torch
import zmq

from gradwire import ConfigError
from gradwire.kvstore.launch.keygen import make_keys
from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.protocol.messages import VERSION, pack
from gradwire.kvstore.server.access import check_exposure
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.server import Server
from gradwire.kvstore.worker.store import DistStore
from tests.forked import Forked


@pytest.fixture
def served():
    """Start servers in threads; they end with the test."""
    stop, started = threading.Event(), []

    def start(**options):
        server = Server(ServerCore(Rules(workers=1)), **options)
        thread = threading.Thread(target=server.run, args=(stop.is_set,))
        thread.start()
        started.append((server, thread))
        return server.endpoint

    yield start
    stop.set()
    for server, thread in started:
        thread.join(10)
        server.close()


@pytest.fixture
def keys(tmp_path):
    make_keys(tmp_path / "keys", 2)
    return tmp_path / "keys"


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:5000", "tcp://*:5000", "tcp://192.168.1.2:5000", "tcp://[::]:0"])
def test_an_address_that_others_reach_needs_keys(endpoint):
    with pytest.raises(ConfigError, match="gradwire keygen"):
        check_exposure(endpoint, locked=False, insecure=False)
    check_exposure(endpoint, locked=True, insecure=False)
    check_exposure(endpoint, locked=False, insecure=True)


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "tcp://localhost:0", "tcp://[::1]:0", "ipc:///tmp/x"])
def test_loopback_does_not(endpoint):
    check_exposure(endpoint, locked=False, insecure=False)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:0", "udp://127.0.0.1:0", "tcp://", ""])
def test_another_form_is_refused(endpoint):
    with pytest.raises(ConfigError, match="tcp://ADDRESS:PORT"):
        check_exposure(endpoint, locked=False, insecure=False)


def test_the_command_refuses_too():
    command = ["-m", "gradwire", "server", "--workers", "1", "--bind", "tcp://0.0.0.0:0"]
    process = Forked(command, stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "gradwire keygen" in said


def test_a_worker_with_its_key_is_served(served, keys):
    endpoint = served(keys=keys / "servers")
    kv = DistStore("dist_sync", WorkerPlace((endpoint,), 0, 1, keys / "worker-0"), timeout=20)
    kv.init("w", torch.ones(3))
    out = torch.zeros(3)
    kv.pull("w", out)
    kv.close()
    assert torch.equal(out, torch.ones(3))


def test_a_rank_belongs_to_its_key(served, keys):
    endpoint = served(keys=keys / "servers")
    kv = DistStore("dist_sync", WorkerPlace((endpoint,), 0, 1, keys / "worker-1"), timeout=20)
    with pytest.raises(ConfigError, match="rank 0 has a key of its own, this is the key of worker 1"):
        kv.init("w", torch.ones(3))
    kv.close()


def test_a_worker_without_a_key_or_with_a_strangers_is_not_heard(served, keys, tmp_path):
    endpoint = served(keys=keys / "servers")
    strangers = tmp_path / "strangers"
    make_keys(strangers, 1)
    (strangers / "worker-0" / "server.key").write_bytes((keys / "servers" / "server.key").read_bytes())
    refused(endpoint, None, "it takes only who has a key, and this process has none. Set GRADWIRE_KEYS")
    refused(endpoint, strangers / "worker-0", "refused the key of this process.*must be in the folder 'workers'")


def test_a_worker_does_not_speak_to_another_server(served, keys, tmp_path):
    make_keys(tmp_path / "others", 1)
    endpoint = served(keys=tmp_path / "others" / "servers")
    refused(endpoint, keys / "worker-0", r"ends every handshake: it has another key than the one that .*server\.key")


def test_a_worker_with_a_key_does_not_speak_to_a_server_without(served, keys):
    refused(served(), keys / "worker-0", "it has no keys.*Start the server with --keys FOLDER/servers")


def refused(endpoint, folder, message):
    """Check that the error has the server's name and a remedy; that of the store's deadline has another text."""
    kv = DistStore("dist_sync", WorkerPlace((endpoint,), 0, 1, folder), timeout=60)
    with pytest.raises(ConfigError, match=f"server 0 at {endpoint} .*{message}"):
        kv.init("w", torch.ones(3))
    kv.close()


def test_keys_are_never_overwritten_and_secrets_are_the_owners(keys):
    with pytest.raises(ConfigError, match="never overwritten"):
        make_keys(keys, 1)
    secrets = list(keys.rglob("*.key_secret"))
    assert len(secrets) == 3
    assert all(secret.stat().st_mode & 0o077 == 0 for secret in secrets)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("server.key_secret", lambda text: text[: text.index("public-key")]),
        ("server.key_secret", lambda text: text.replace('key = "', 'key = "x')),
        ("workers/worker-1.key", lambda text: text[: text.index("public-key")]),
    ],
    ids=["server cut", "server longer", "worker cut"],
)
def test_a_damaged_key_is_said_and_leaves_nothing_behind(keys, name, damage):
    file, threads = keys / "servers" / name, threading.active_count()
    file.write_text(damage(file.read_text()))
    with pytest.raises(ConfigError, match=r"cannot be used.*gradwire keygen"):
        Server(ServerCore(Rules(workers=1)), keys=keys / "servers")
    assert threading.active_count() == threads


def test_a_message_that_is_too_large_ends_the_connection_and_nothing_else(served):
    endpoint = served()
    context = zmq.Context()
    flood = context.socket(zmq.DEALER)
    flood.setsockopt(zmq.LINGER, 0)
    flood.connect(endpoint)
    hello = pack("hello", version=VERSION, rank=0, world=1, server=0, servers=1, sync=True, session=bytes(16))
    flood.send_multipart([hello, bytes(2**21)])
    kv = DistStore("dist_sync", WorkerPlace((endpoint,), 0, 1), timeout=20)
    kv.init("w", torch.ones(3))
    kv.close()
    flood.close()
    context.term()
