"""``gradwire version``: another way to write ``gradwire --version``."""

from __future__ import annotations

import click

from gradwire.version import __version__

__all__ = ["command"]


@click.command("version")
def command() -> None:
    """Show the version."""
    click.echo(f"gradwire, version {__version__}")
