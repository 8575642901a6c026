"""``gradwire launch``: a script with its servers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gradwire.kvstore.launch import Group

__all__ = ["command"]


@click.command("launch", context_settings={"ignore_unknown_options": True})
@click.option("-n", "--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes of the script.")
@click.option("-s", "--servers", type=click.IntRange(1), default=1, show_default=True)
@click.option("--keys", type=click.Path(path_type=Path, file_okay=False), help="A folder of gradwire keygen.")
@click.option("--server-option", multiple=True, metavar="OPTION", help="For gradwire server, as --staleness=4.")
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    workers: int, servers: int, keys: Path | None, server_option: tuple[str, ...], script: tuple[str, ...]
) -> None:
    """Start servers and workers on this machine, as ``gradwire launch -n 4 -s 2 -- python train.py``.

    Every worker finds its rank and the servers in its environment. Ends with the exit code of the first worker that
    failed; the others and the servers are ended then.
    """
    try:
        with Group(script, workers, servers, server_option, keys) as group:
            code = group.wait()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
