"""``gradwire check soak``: does nothing get lost while everything goes wrong that may?"""

from __future__ import annotations

import dataclasses

import click
from rich.console import RenderableType

from gradwire.cli.command_group import Integer, Number
from gradwire.cli.output import emit, json_option
from gradwire_lab.experiments.soak import GROWTH, ROUNDING, SoakPlan, SoakReport, soak

__all__ = ["soak_command"]


@click.command("soak")
@click.option("--minutes", default=10.0, show_default=True, type=Number(0, 10_000), help="To train for.")
@click.option("--steps", default=0, type=Integer(0), help="To make at least; with --minutes 0 these alone.")
@click.option("--workers", default=4, show_default=True, type=Integer(2, 64))
@click.option("--seed", default=0, show_default=True, type=Integer(0), help="Of all that is drawn.")
@json_option
@click.pass_context
def soak_command(ctx: click.Context, minutes: float, steps: int, workers: int, seed: int, json_to: str | None) -> None:
    """Train with faults in the gradients, restarts from checkpoints and changes of the method.

    At the end the workers must hold the same bits, what was sent and the residuals must add up to the gradients, and no
    worker may have grown. Ends with exit code 1 where one of these does not hold.
    """
    if not minutes and not steps:
        raise click.UsageError("one of --minutes and --steps must be above 0", ctx)
    report = soak(SoakPlan(60 * minutes, steps, seed, workers))
    emit({**dataclasses.asdict(report), "broken": report.broken}, json_to, lambda: list(lines(report)))
    if report.broken:
        ctx.exit(1)


def lines(report: SoakReport) -> list[RenderableType]:
    """Return the figures, one in each line, and then the verdict."""
    faults = ", ".join(f"{count} {kind}" for kind, count in report.faults.items())
    before, after = (max(each[i] for each in report.rss) for i in range(2))
    verdict = "; ".join(f"FAILED: {each}" for each in report.broken) or "holds"
    return [
        f"steps       {report.steps:,}, {report.skipped:,} of them skipped",
        f"faults      {faults}",
        f"restarts    {report.restarts}",
        f"changes     {report.changes}",
        f"identity    {report.error:.1e} of the gradients apart, with {report.worst}; allowed {ROUNDING:.0e}",
        f"parameters  {'the same bits' if report.identical else 'DIFFERENT'} on all workers",
        f"memory      {before:,} bytes, {after:,} at the end; allowed {GROWTH[0]:,} and {GROWTH[1]:.0%} more",
        f"loss        {report.loss:.3f}",
        verdict,
    ]
