"""CURVE keys: one pair for the servers and one for each worker, in folders to be handed out one by one."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import zmq
import zmq.auth

from gradwire.errors import ConfigError, is_int, require

__all__ = ["make_keys"]


def make_keys(folder: str | Path, workers: int) -> list[Path]:
    """Make a folder for the servers and one for each worker; none needs any other folder.

    Args:
        folder: must not exist yet.
        workers: number of pairs of keys, >= 1.

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
        # After the rename nothing is there; after a failure private keys must not stay in a folder that nobody knows.
        shutil.rmtree(draft, ignore_errors=True)
    return [folder / name for name in names]


def _make(folder: Path, workers: int) -> list[str]:
    """Make the folders, and return their names."""
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
