"""``gradwire launch``: a script with its servers."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from gradwire.cli.command_group import METHOD, Integer
from gradwire.errors import ConfigError, require

if TYPE_CHECKING:
    from gradwire.kvstore.launch.remote import Machine

__all__ = ["command"]

REMOTE = {"ssh": "--ssh", "python": "--python", "folder": "--folder", "names": "--env"}
"""Parameters of the command that say how processes run on other machines, and their options."""


@click.command("launch", context_settings={"allow_interspersed_args": False})
@click.option("-n", "--workers", type=Integer(1), default=2, show_default=True, help="Processes of the script.")
@click.option("-s", "--servers", type=Integer(1), default=1, show_default=True)
@click.option(
    "--compressor",
    multiple=True,
    type=METHOD,
    expose_value=False,
    metavar="FILE.py:Class",
    help="A method of yours that servers and workers know by its name; may be repeated.",
)
@click.option("--keys", type=click.Path(path_type=Path, file_okay=False), help="A folder of gradwire keygen.")
@click.option(
    "--server-option",
    multiple=True,
    metavar="OPTION",
    help="For gradwire server, as --staleness=4; {server} in it is the index of each.",
)
@click.option(
    "--host-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Start over ssh on these machines; each line: [USER@]HOST[:PORT] [slots=N] [address=IP].",
)
@click.option("--ssh", default="ssh", show_default=True, metavar="COMMAND", help="With options, as 'ssh -i key'.")
@click.option("--python", default=sys.executable, help="On those machines, with gradwire. Default: the one here.")
@click.option("--folder", help="On those machines, where the script runs. Default: the one here.")
@click.option("--env", "names", multiple=True, metavar="NAME", help="A variable that they are to have, too.")
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    workers: int,
    servers: int,
    keys: Path | None,
    server_option: tuple[str, ...],
    host_file: Path | None,
    ssh: str,
    python: str,
    folder: str | None,
    names: tuple[str, ...],
    script: tuple[str, ...],
) -> None:
    """Start servers and workers, as ``gradwire launch -n 4 -s 2 -- python train.py``.

    Every worker finds its rank and the servers in its environment. Ends with the exit code of the first process that
    failed, 128 + n after signal n; the others are ended then, and at Ctrl-C.
    """
    # Here, so that help needs no extra.
    from gradwire.kvstore.launch.processes import Group
    from gradwire.kvstore.launch.remote import check_reachable, over_ssh, placed, read_hosts
    from gradwire.kvstore.protocol.environment import split_options

    # Under nohup SIGHUP is ignored, and stays so.
    ending = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in ending}
    machines: list[Machine] | None = None
    if host_file is not None:
        where = folder or os.getcwd()
        hosts = read_hosts(host_file)
        made = {host: over_ssh(host, split_options("--ssh", ssh), python, where, variables(names)) for host in hosts}
        taken = placed(hosts, workers)
        check_reachable(taken, servers)
        machines = [made[host] for host in taken]
    else:
        for name, option in REMOTE.items():
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise ConfigError(f"{option} has no effect without --host-file: leave it out")
    try:
        with Group(script, workers, servers, server_option, keys, machines) as group:
            code = group.wait()
            if code:
                click.echo(f"{group.failure()[0]} ended with exit code {code}", err=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    sys.exit(code)


def stop(number: int, *_: Any) -> NoReturn:
    """End the group as Ctrl-C would, when this process is asked to end."""
    sys.exit(128 + number)


def variables(names: Sequence[str]) -> dict[str, str]:
    """The environment variables that workers get: those called GRADWIRE_..., and those that were named."""
    for name in names:
        right = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and name in os.environ
        require(right, "--env", "the name of a variable that is set", name)
    return {name: value for name, value in os.environ.items() if name.startswith("GRADWIRE_") or name in names}
