"""``gradwire help``: another way to write ``--help`` after a command."""

from __future__ import annotations

import click

from gradwire.errors import nearest

__all__ = ["command"]


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, as `gradwire help bench codec`; without one, of all of them."""
    asked = ctx.find_root()
    for word in words:
        group = asked.command
        found = group.get_command(asked, word) if isinstance(group, click.Group) else None
        if found is None:
            known = isinstance(group, click.Group) and nearest(word, group.list_commands(asked))
            raise click.UsageError(f"unknown command {word!r}: {known or f'{asked.info_name} has none'}", asked)
        asked = click.Context(found, asked, word)
    click.echo(asked.command.get_help(asked))
