"""CURVE keys: one pair for the server, one for each worker, in folders that are handed out one by one."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator

from gradwire.errors import ConfigError, is_int, require

__all__ = ["lock_peer", "lock_server", "lock_worker", "make_keys"]


def make_keys(folder: str | Path, workers: int) -> list[Path]:
    """Make a folder for the servers and one for each worker; nobody needs more than its own.

    Args:
        folder: must not exist yet.
        workers: how many pairs, >= 1.

    Returns:
        The folders: the servers' first, then the workers'.

    Raises:
        ConfigError: the folder exists.
    """
    folder = Path(folder)
    require(is_int(workers, 1), "workers", "an integer >= 1", workers)
    if folder.exists():
        raise ConfigError(f"folder {folder} exists: keys are never overwritten, give another name")
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        names = _make(draft, workers)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return [folder / name for name in names]


def _make(folder: Path, workers: int) -> list[str]:
    """The folders' names."""
    servers = folder / "servers"
    allowed = servers / "workers"
    allowed.mkdir(parents=True, mode=0o700)
    zmq.auth.create_certificates(servers, "server")
    made = [servers.name]
    for rank in range(workers):
        mine = folder / f"worker-{rank}"
        mine.mkdir(mode=0o700)
        public, _ = zmq.auth.create_certificates(mine, f"worker-{rank}")
        shutil.copy(public, allowed)
        shutil.copy(servers / "server.key", mine)
        made.append(mine.name)
    # Servers speak to a scheduler, which lets in whom they let in.
    shutil.copy(servers / "server.key", allowed)
    for secret in folder.rglob("*.key_secret"):
        secret.chmod(0o600)
    return made


def lock_worker(socket: zmq.Socket[Any], folder: Path) -> None:
    """Let a worker's socket speak with its key, to servers that have theirs.

    Args:
        socket: not connected yet.
        folder: the worker's.

    Raises:
        ConfigError: it is no worker's folder.
    """
    secrets, public = sorted(folder.glob("*.key_secret")), folder / "server.key"
    found = len(secrets) == 1 and public.is_file()
    require(found, "keys", "a worker's folder made by gradwire keygen", str(folder))
    socket.curve_publickey, socket.curve_secretkey = zmq.auth.load_certificate(secrets[0])
    socket.curve_serverkey, _ = zmq.auth.load_certificate(public)


def lock_peer(socket: zmq.Socket[Any], folder: Path) -> None:
    """Let a worker's socket or a server's speak to whoever has the servers' key, with the key that its folder has."""
    if not (folder / "server.key_secret").is_file():
        lock_worker(socket, folder)
        return
    public, private = zmq.auth.load_certificate(folder / "server.key_secret")
    socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = public, private, public


def lock_server(context: zmq.Context[Any], socket: zmq.Socket[Any], folder: Path) -> ThreadAuthenticator:
    """Let a socket listen to those alone whose key is in the servers' folder.

    Args:
        context: of the socket.
        socket: not bound yet.
        folder: the servers'.

    Returns:
        What must be stopped at the end.

    Raises:
        ConfigError: it is not the servers' folder.
    """
    secret = folder / "server.key_secret"
    require(secret.is_file(), "keys", "a folder made by gradwire keygen", str(folder))
    public, private = zmq.auth.load_certificate(secret)
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve(domain="*", location=str(folder / "workers"))
    socket.curve_publickey, socket.curve_secretkey = public, private
    socket.curve_server = True
    return authenticator
