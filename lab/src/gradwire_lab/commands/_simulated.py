"""Commands that run simulated cases over seeds: their options, and what they print."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gradwire.cli.command_group import Integer

if TYPE_CHECKING:
    from gradwire_lab.simulation.case import SimulatedCase

__all__ = ["check_cases", "simulation_options"]

OPTIONS = (
    click.option("--seeds", default=10, show_default=True, type=Integer(1), help="Runs of each class of faults."),
    click.option("--first", default=0, show_default=True, type=Integer(0), help="The first seed."),
    click.option(
        "--fault-class",
        "classes",
        multiple=True,
        metavar="CLASS",
        help="Class of faults, or several with a plus between them; repeatable. Default: each, pairs, some triples.",
    ),
    click.option(
        "--replay", metavar="LINE", help="Run the case of a line that was printed, and show all that happens."
    ),
)


def simulation_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all such commands."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def check_cases(
    ctx: click.Context,
    kind: type[SimulatedCase],
    *,
    seeds: int,
    first: int,
    classes: tuple[str, ...],
    replay: str | None,
) -> None:
    """Run the cases of a kind, and end with exit code 1 where a promise did not hold.

    Args:
        ctx: context of the command.
        kind: kind of the cases.
        seeds: runs of each class of faults.
        first: first seed.
        classes: classes of faults; none: each, each pair, and some triples.
        replay: line of a case to run instead, and to show.
    """
    from gradwire_lab.simulation.case import shrink

    if replay is not None:
        outcome = kind.parse(replay).run(log=True)
        click.echo("\n".join([*outcome.log, f"digest {outcome.digest}", *outcome.violations]))
        ctx.exit(bool(outcome.violations))
    known = [name for name in kind.classes if name != "none"]
    names = classes or ("none", *known, *("+".join(pair) for pair in itertools.combinations_with_replacement(known, 2)))
    for name in names:
        unknown = [each for each in name.split("+") if each not in kind.classes]
        if unknown:
            raise click.UsageError(f"unknown class of faults {unknown[0]!r}. Known: {', '.join(kind.classes)}", ctx)
    # An optimizer looks through all objects for who else has its parameters: not through those that stay.
    kind.draw(0, "none").run()
    gc.collect()
    gc.freeze()
    failed, made, begun = 0, 0, time.perf_counter()
    chosen = [(seed, name) for name in names for seed in range(first, first + seeds)]
    chosen += [(seed, name) for seed in range(first, first + seeds) for name in (() if classes else kind.triples(seed))]
    try:
        for seed, name in chosen:
            case = kind.draw(seed, name)
            if case.run().violations:
                failed += 1
                smallest = shrink(case)
                click.echo(f"{name}: {smallest}")
                for text in smallest.run().violations:
                    click.echo(f"    {text}")
            made += 1
    finally:
        # Also at Ctrl-C: thousands of runs say something, too.
        left = f", {len(chosen) - made} were not made" if made < len(chosen) else ""
        seconds = (time.perf_counter() - begun) / max(1, made)
        click.echo(f"{failed} of {made} runs failed, {seconds:.3f} s a run{left}", err=True)
    ctx.exit(bool(failed))
