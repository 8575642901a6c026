"""``gradwire check store``: does the distributed store keep its promises, whatever happens to its processes?"""

from __future__ import annotations

from typing import Any

import click

from gradwire_lab.commands._simulated import check_cases, simulation_options

__all__ = ["store_command"]


@click.command("store")
@simulation_options
@click.pass_context
def store_command(ctx: click.Context, /, **options: Any) -> None:
    """Run the servers and workers of a dist store on simulated machines that fail.

    A seed is a run: the network, the clocks, the disks and the order of all threads are simulated, and the same seed
    always gives the same run. Prints the cases in which a promise of the store did not hold, each with its faults left
    out as far as it still fails, in a line for --replay. Ends with exit code 1 where there is one.
    """
    # Here, so that help needs no extra.
    from gradwire_lab.simulation.run import Case

    check_cases(ctx, Case, **options)
