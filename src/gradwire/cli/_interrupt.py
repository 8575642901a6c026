"""Ctrl-C while the program is being loaded: one line, as it is later in the command itself."""

import contextlib
import os
import signal
from typing import NoReturn

__all__ = ["end_on_interrupt", "interrupt_again", "stopped"]


def end_on_interrupt() -> None:
    """Let Ctrl-C end the program at once, until `interrupt_again` is called: when the subcommand has been loaded.

    An exception would not do while modules are imported: where it comes in a callback of the import system (the one
    that forgets a module's lock), Python prints it and goes on. A program that ignores Ctrl-C goes on ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def interrupt_again() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    stopped()


def stopped() -> NoReturn:
    """Say that Ctrl-C has ended the program, and end it: 130."""
    # Written past Python's buffer, in which the signal may have found the program.
    with contextlib.suppress(OSError):
        os.write(2, b"stopped\n")
    # At once: what is loaded by half cannot be unloaded in order. A command that has begun puts away its own.
    os._exit(130)
