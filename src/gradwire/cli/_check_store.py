"""``gradwire check store``: does the distributed store keep its promises, whatever happens to its processes?"""

from __future__ import annotations

import itertools
import time

import click

from gradwire.cli._command_group import Integer

__all__ = ["store_command"]


@click.command("store")
@click.option("--seeds", default=10, show_default=True, type=Integer(1), help="Runs of each class of faults.")
@click.option("--first", default=0, show_default=True, type=Integer(0), help="The first seed.")
@click.option(
    "--fault-class",
    "classes",
    multiple=True,
    metavar="CLASS",
    help="Class of faults, or several with a plus between them; repeatable. Default: each, each pair, some triples.",
)
@click.option("--replay", metavar="LINE", help="Run the case of a line that was printed, and show all that happens.")
@click.pass_context
def store_command(ctx: click.Context, seeds: int, first: int, classes: tuple[str, ...], replay: str | None) -> None:
    """Run the servers and workers of a dist store on simulated machines that fail.

    A seed is a run: the network, the clocks, the disks and the order of all threads are simulated, and the same seed
    always gives the same run. Prints the cases in which a promise of the store did not hold, each with its faults left
    out as far as it still fails, in a line for --replay. Ends with exit code 1 where there is one.
    """
    # Here, so that help needs no extra.
    from gradwire.testing.simulation.faults import CLASSES, triples
    from gradwire.testing.simulation.run import Case, run, shrink

    if replay is not None:
        outcome = run(Case.parse(replay), log=True)
        click.echo("\n".join([*outcome.log, f"digest {outcome.digest}", *outcome.violations]))
        ctx.exit(bool(outcome.violations))
    known = [name for name in CLASSES if name != "none"]
    names = classes or ("none", *known, *("+".join(pair) for pair in itertools.combinations_with_replacement(known, 2)))
    for name in names:
        unknown = [each for each in name.split("+") if each not in CLASSES]
        if unknown:
            raise click.UsageError(f"unknown class of faults {unknown[0]!r}. Known: {', '.join(CLASSES)}", ctx)
    failed, begun = 0, time.perf_counter()
    chosen = [(seed, name) for name in names for seed in range(first, first + seeds)]
    chosen += [(seed, name) for seed in range(first, first + seeds) for name in (() if classes else triples(seed))]
    for seed, name in chosen:
        case = Case.draw(seed, name)
        if run(case).violations:
            failed += 1
            smallest = shrink(case)
            click.echo(f"{name}: {smallest}")
            for text in run(smallest).violations:
                click.echo(f"    {text}")
    seconds = (time.perf_counter() - begun) / len(chosen)
    click.echo(f"{failed} of {len(chosen)} runs failed, {seconds:.3f} s a run", err=True)
    ctx.exit(bool(failed))
