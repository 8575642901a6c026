"""Groups of commands, and option types with ranges: a mistake is answered with the values that are allowed."""

from __future__ import annotations

import math
from typing import Any

import click

from gradwire.errors import ConfigError, nearest
from gradwire.registry import registered

__all__ = ["METHOD", "METHOD_FORMS", "CommandGroup", "Integer", "Number"]

METHOD_FORMS = "NAME or FILE.py:Class, or one of these with :PARAMETER=VALUE,..."
"""Forms of a method on the command line, for help texts."""


class CommandGroup(click.Group):
    """A group that shows whole sentences in its help, and names the nearest command when one is unknown."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is None and not ctx.resilient_parsing:
            raise click.UsageError(f"unknown command {cmd_name!r}: {nearest(cmd_name, self.list_commands(ctx))}", ctx)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their whole first sentence, which click would cut at the width of the terminal."""
        listed = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(limit=1000)) for name, each in listed if each and not each.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class Integer(click.IntRange):
    """An option type: integers in a range."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not an integer: it must be one in the range {self._describe_range()}.", param, ctx)
        found: int = super().convert(value, param, ctx)
        return found


class Number(click.FloatRange):
    """An option type: numbers in a range. Unlike click's it refuses "nan", which no limit would stop."""

    noun = "a number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            known = not math.isnan(float(value))
        except ValueError:
            known = False
        if not known:
            self.fail(
                f"{value!r} is not {self.noun}: it must be one in the range {self._describe_range()}.", param, ctx
            )
        found: float = super().convert(value, param, ctx)
        return found


class MethodText(click.types.StringParamType):
    """An option type: a method by name, or by file and class, which is loaded; in both cases with parameters.

    The value is the text with the name under which the method is registered from then on, in this process and in those
    that it starts.
    """

    name = "METHOD"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return registered(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


METHOD = MethodText()
