"""``gradwire try``: a script of one's own on a link, plain and compressed in turns."""

from __future__ import annotations

from pathlib import Path

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gradwire._files import replace_text
from gradwire.cli.command_group import Integer
from gradwire.cli.output import emit, json_option, writable
from gradwire.errors import ConfigError
from gradwire_lab.experiments.script_trial import FEWEST, Trial, page_of_trial, try_script
from gradwire_lab.netlab import Netlab
from gradwire_lab.netlab.names import MOST_WORKERS

__all__ = ["command"]


@click.command("try", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--workers", default=2, show_default=True, type=Integer(2, MOST_WORKERS), help="With a link each.")
@click.option("--link", default="1gbit", show_default=True, metavar="RATE", help="As 100mbit, 2.5gbit or none.")
@click.option("--delay", default="0ms", metavar="TIME", help="From one worker to another.")
@click.option("--steps", default=90, show_default=True, type=Integer(FEWEST), help="Of a turn.")
@click.option(
    "--passes",
    default=1,
    show_default=True,
    type=Integer(1),
    help="Backward passes of a step: batches whose gradients it adds up, or models.",
)
@click.option("--turns", default=3, show_default=True, type=Integer(1), help="Pairs of a plain and a compressed turn.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=writable,
    default="gradwire-try.html",
    show_default=True,
)
@json_option
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def command(
    workers: int,
    link: str,
    delay: str,
    steps: int,
    passes: int,
    turns: int,
    output: Path,
    json_to: str | None,
    program: tuple[str, ...],
) -> None:
    """Try a script as it is on links of a given rate, as `gradwire try --link 1gbit -- python train.py`. Needs root.

    COMMAND is started once for each worker, with what torchrun would set, and ended after --steps steps: plain,
    and compressed as by `gradwire run --apply`, by turns. The last third of a turn counts.
    """
    if program[0].endswith("torchrun"):
        raise ConfigError(
            f"COMMAND must start one worker, such as `python train.py`: {workers} are started, got torchrun"
        )
    with Netlab(workers, link, delay) as lab:
        found = try_script(
            lab,
            program,
            steps=steps * passes,
            turns=turns,
            link=str(lab.link),
            passes=passes,
            progress=lambda line: click.echo(line, err=True),
        )
    emit(found.as_dict(), json_to, lambda: _tables(found))
    replace_text(output, page_of_trial(found))


def _tables(trial: Trial) -> list[RenderableType]:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for head in ("turn", "ms a step", "loss", "compressed from step"):
        table.add_column(head, justify="left" if head == "turn" else "right", no_wrap=True)
    for turn in trial.turns:
        loss = "" if turn.loss is None else f"{turn.loss:.4g}"
        table.add_row(
            turn.mode, f"{1e3 * turn.seconds:,.1f}", loss, "" if turn.switched is None else str(turn.switched)
        )
    ratios = trial.ratios
    said = [f"times as fast with gradwire, by pairs: {', '.join(f'{each:.2f}' for each in ratios)}"]
    if not trial.changed:
        said.append("not all steps that count were compressed: what is gained may show with more --steps")
    return [table, *map(Text, said)]
