"""A virtual environment for a peer whose dependencies must not mix with ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gradwire.errors import GradwireError

__all__ = ["PeerError", "python_with"]

_HOLDS = "gradwire-peer.json"
_INSTALL_DEADLINE = 600.0


class PeerError(GradwireError):
    """A peer cannot be installed here, died, or did not answer in time."""


def python_with(requirements: Sequence[str], directory: Path) -> Path:
    """Make a virtual environment that holds exactly these pinned requirements, and return its interpreter.

    An environment that is there already and was made for them is used as it is; another one is made anew.

    Args:
        requirements: requirements in pip's syntax.
        directory: folder of the environment; its parents are made.

    Raises:
        PeerError: ``directory`` holds something else, or pip cannot install the requirements.
    """
    python = directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    holds = directory / _HOLDS
    if holds.is_file() and json.loads(holds.read_text("utf-8")) == list(requirements):
        return python
    _refuse_foreign(directory)
    _call([sys.executable, "-m", "venv", "--clear", str(directory)])
    holds.write_text("[]", "utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "2"]
    _call([*pip, *requirements])
    holds.write_text(json.dumps(list(requirements)), "utf-8")
    return python


def _refuse_foreign(directory: Path) -> None:
    """Refuse a folder that is neither empty nor an environment made here, because making one empties the folder."""
    if directory.exists() and not (directory / _HOLDS).is_file() and any(directory.iterdir()):
        raise PeerError(f"{directory} must be empty or an environment made by gradwire: choose another, or delete it")


def _call(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        raise PeerError(f"{' '.join(command)} did not end within {_INSTALL_DEADLINE:g} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        raise PeerError(f"{' '.join(command)} failed: {' '.join(errors)}")
