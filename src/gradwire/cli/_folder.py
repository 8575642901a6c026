"""The folder is the list of subcommands.

Law: ``gradwire/cli/<name>.py`` defines ``command`` and is imported when ``gradwire <name>`` is asked for, or help lists
it. Files that start with an underscore, and ``main``, are machinery. An error that gradwire raises on purpose ends the
command with one line on stderr and exit code 2, and so does a package that an extra would bring. Whatever needs an
extra is imported within a command, so that its help needs none.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import click

from gradwire import cli
from gradwire._extras import remedy
from gradwire.errors import GradwireError, nearest
from gradwire.version import __version__

__all__ = ["Folder", "app"]


class _Refused(click.ClickException):
    exit_code = 2


class Folder(click.Group):
    """A click group whose commands are the modules of ``gradwire.cli``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = (module.name for module in pkgutil.iter_modules(cli.__path__))
        return sorted({name for name in found if not name.startswith("_") and name != "main"})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        known = self.list_commands(ctx)
        if cmd_name not in known:
            raise click.UsageError(f"unknown command {cmd_name!r}: {nearest(cmd_name, known)}", ctx)
        command: click.Command = importlib.import_module(f"gradwire.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GradwireError as error:
            raise _Refused(" ".join(str(error).split())) from error
        except ImportError as error:
            said = remedy(error)
            if said is None:
                raise
            raise _Refused(said) from error


@click.group(cls=Folder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="gradwire")
def app() -> None:
    """Compressed gradients on the wire: what is there, what runs here, and what it costs."""
