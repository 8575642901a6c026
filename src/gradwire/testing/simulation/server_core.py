"""Servers of a simulated run, made as ``gradwire server`` makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from gradwire.kvstore.server.snapshot import Snapshots, open_core
from gradwire.testing.simulation.machine import SimulatedMachine

__all__ = ["make_core"]

FILE = Path("/server")
"""Path of a server's file on its machine."""


def make_core(
    machine: SimulatedMachine, rules: Rules, every: int, *, flushed: bool
) -> tuple[ServerCore, Callable[[], None]]:
    """Make a server's core from its file, if there is one.

    Args:
        machine: machine that it runs on.
        rules: settings of its behaviour.
        every: steps from one snapshot to the next; 0: it keeps none.
        flushed: true if what it keeps survives a power cut.

    Returns:
        The core, and what is called after each batch of messages.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not every:
        return ServerCore(rules, system=machine), lambda: None
    core, snapshots = open_core(FILE, rules, machine, flushed=flushed), Snapshots(every)
    return core, lambda: snapshots.after(core)
