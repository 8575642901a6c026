"""``gradwire run``: a training script as it is, watched or compressed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import click

from gradwire.cli.command_group import Integer
from gradwire.cli.output import refused

__all__ = ["command"]


@click.command("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.option("--watch", "mode", flag_value="watch", default="watch", help="Say what would be gained. The default.")
@click.option("--apply", "mode", flag_value="apply", help="Compress what is safe, and check it.")
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    default="gradwire-report",
    show_default=True,
    help="Path of the report, of which .json and .html are made.",
)
@click.option(
    "--sentinel",
    type=Integer(1),
    default=100,
    show_default=True,
    metavar="STEPS",
    help="From one exact mean to the next.",
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def command(mode: str, report: Path, sentinel: int, program: tuple[str, ...]) -> None:
    """Watch or compress a script without a change of it, as `gradwire run -- torchrun --nproc-per-node 2 train.py`.

    COMMAND may also be one process of several, or a launcher that starts Python itself. Its exit status is that of this
    command, and what it writes is left as it is.
    """
    from gradwire.run.child import run_command
    from gradwire.run.session import say

    # No reason to end: on another machine of the job it may well be written, or by nobody.
    said = refused(Path(f"{report.absolute()}.json"))
    if said:
        say(f"the report cannot be written here: {said}")
    status = run_command(program, mode, report, sentinel)
    if status < 0:
        # The same end, for whoever looks at how a process ended.
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler that could be set.
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        status = 128 - status
    sys.exit(status)
