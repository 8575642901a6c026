"""``gradwire keygen``: keys for servers and workers."""

from __future__ import annotations

from pathlib import Path

import click

from gradwire.cli.command_group import Integer

__all__ = ["command"]


@click.command("keygen")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--workers", type=Integer(1), required=True, help="How many workers get a key.")
def command(folder: Path, workers: int) -> None:
    """Make FOLDER/servers and FOLDER/worker-0, ...: CURVE keys with which only these workers may speak to the servers.

    Give each machine its own folder and no other one. Servers take theirs by --keys, workers by GRADWIRE_KEYS.
    """
    # Here, so that help needs no extra.
    from gradwire.kvstore.launch.keygen import make_keys

    for made in make_keys(folder, workers):
        click.echo(made)
