"""Servers of a simulated run, made as ``gradwire server`` makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.snapshot import Snapshots, load_core
from gradwire.testing.simulation.disk import Files
from gradwire.testing.simulation.machine import SimulatedMachine

__all__ = ["make_core"]

FILE = Path("/server")
"""Path of a server's file on its machine."""


def make_core(
    machine: SimulatedMachine, files: Files, rules: Rules, every: int
) -> tuple[ServerCore, Callable[[], None]]:
    """Make a server's core from its file, if there is one.

    Args:
        machine: machine that it runs on.
        files: files of the machine.
        rules: settings of its behaviour.
        every: steps from one snapshot to the next; 0: it keeps none.

    Returns:
        The core, and what is called after each batch of messages.

    Raises:
        ConfigError: the file cannot be read.
    """
    core = load_core(FILE, rules, machine.disk) if every and FILE in files.now else ServerCore(rules)
    core.epoch = machine.random(16)
    if not every:
        return core, lambda: None
    snapshots = Snapshots(FILE, every, machine.disk)
    return core, lambda: snapshots.after(core)
