"""Subcommands found by folder: every module of ``gradwire.cli.commands`` without an underscore is one.

Invariants:
    * ``<name>.py`` there defines a function ``command`` and is imported when ``gradwire <name>`` is asked for. Help
      reads its docstring from the file.
    * Other packages add a folder of their own by an entry point of ``gradwire.commands`` that names the package.
      Commands of gradwire itself have precedence.
    * Whatever needs an extra is imported within a command, so that its help needs none.

Failure modes:
    An error that gradwire raises on purpose ends the command with one line on stderr and exit code 2, and so does a
    package that an extra would bring.
"""

from __future__ import annotations

import ast
import errno
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from gradwire._extras import laboratory, remedy
from gradwire.cli import commands
from gradwire.cli._interrupt import interrupt_again
from gradwire.cli.command_group import CommandGroup
from gradwire.errors import GradwireError
from gradwire.registry import names_in
from gradwire.version import __version__

__all__ = ["app"]


INTERRUPTED = 130
"""The exit code that a shell gives for Ctrl-C."""

_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_NO_NEW_FILE = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.ENAMETOOLONG)
"""Errors where a file could be written, but its folder takes no new one that could replace it."""


class _Refused(click.ClickException):
    exit_code = 2


_OURS = ("gradwire", "gradwire_lab")

LABORATORY = ("advise", "bench", "check", "demo", "models", "netlab", "replay", "report", "sweep", "train", "try")
"""Commands that the laboratory joins: where it is not installed, they answer with the line that installs it."""


class Folder(CommandGroup):
    """A group whose commands are the modules of ``gradwire.cli.commands``, and of the folders that are joined to it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_files())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = _files().get(cmd_name)
        if found is None:
            if cmd_name in LABORATORY and not ctx.resilient_parsing:
                raise _Refused(f"{cmd_name!r} is a command of the laboratory, which is not installed: {laboratory()}")
            return super().get_command(ctx, cmd_name)
        command = _loaded(found[0], cmd_name)
        # What was loaded stays to the end; a last collection would look through it for half a second.
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        # Until here Ctrl-C ended the program at once; from now on it is an exception, which a command may answer.
        interrupt_again()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their first sentence, of files that are read and not imported: that takes seconds."""
        texts = {name: _described(file) for name, (_, file) in sorted(_files().items())}
        rows = [(name, click.Command(name, help=text).get_short_help_str(1000)) for name, text in texts.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        missing = [name for name in LABORATORY if name not in texts]
        if missing:
            with formatter.section("Laboratory"):
                formatter.write_text(f"{', '.join(missing)}: {laboratory()}")

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line():
            found = super().invoke(ctx)
            # Now, where it can still be said: a full disk shows when the last of the output is written.
            if sys.stdout is not None:
                sys.stdout.flush()
            return found


def _files() -> dict[str, tuple[str, Path]]:
    """Map each command to the package that has it, and to its file."""
    found: dict[str, tuple[str, Path]] = {}
    for package in (commands, *_joined()):
        for folder in package.__path__:
            for name in names_in([folder]):
                found.setdefault(name, (package.__name__, Path(folder, f"{name}.py")))
    return found


@cache
def _joined() -> list[ModuleType]:
    """Import the packages of commands that others join; one that cannot be imported must not take the others away."""
    found = []
    for point in entry_points(group="gradwire.commands"):
        owner = f"the package {point.dist.name}" if point.dist is not None else point.value
        try:
            package = importlib.import_module(point.value)
            if not hasattr(package, "__path__"):
                raise ImportError(f"{point.value} is no package, whose modules are commands")
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            click.echo(f"gradwire: warning: the commands of {owner} are left out: {said}", err=True)
        else:
            found.append(package)
    return found


def _loaded(package: str, name: str) -> click.Command:
    """Import a command; what another package has wrong is one line, and not a traceback of ours."""
    try:
        module = importlib.import_module(f"{package}.{name}")
        command: click.Command = module.command
    except Exception as error:
        if package.partition(".")[0] in _OURS or (isinstance(error, ImportError) and remedy(error)):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise _Refused(f"the command {name!r} of {package} cannot be loaded: {said}") from None
    return command


def _described(file: Path) -> str:
    """Read the help text of a command from its file; of another package's the file may be wrong."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        return f"Cannot be read: {error}."
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return ast.get_docstring(functions["command"]) or "" if "command" in functions else ""


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn what ends a command into one line on stderr and its exit code."""
    try:
        yield
    except GradwireError as error:
        raise _Refused(" ".join(str(error).split())) from error
    except ImportError as error:
        said = remedy(error)
        if said is None:
            raise
        raise _Refused(said) from error
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except OSError as error:
        if error.errno not in _UNWRITTEN and (error.filename is None or error.errno not in _NO_NEW_FILE):
            raise
        if error.filename is None:
            _forget_output()
        raise click.ClickException(f"{error.filename or 'the output'} cannot be written: {error.strerror}") from error


def _forget_output() -> None:
    """Send the remaining output nowhere, because flushing it at the end of the process would fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Folder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", package_name="gradwire")
def app() -> None:
    """Compressed gradients on the wire: what is there, what runs here, and what it costs."""
