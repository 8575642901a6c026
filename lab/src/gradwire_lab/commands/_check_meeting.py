"""``gradwire check meeting``: do the rounds of a meeting keep their promises, whatever happens to the workers?"""

from __future__ import annotations

from typing import Any

import click

from gradwire_lab.commands._simulated import check_cases, simulation_options

__all__ = ["meeting_command"]


@click.command("meeting")
@simulation_options
@click.pass_context
def meeting_command(ctx: click.Context, /, **options: Any) -> None:
    """Run the workers of a meeting on simulated machines that fail.

    A seed is a run: the meeting place, the connections to it, the clocks and the order of all threads are simulated,
    and the same seed always gives the same run. Workers, some of them islands of several ranks, are killed and start
    again, are stopped, come late, leave and share a name; the place dies. Prints the cases in which a promise of the
    meeting did not hold, each with its faults left out as far as it still fails, in a line for --replay. Ends with exit
    code 1 where there is one.
    """
    # Here, so that help needs no extra.
    from gradwire_lab.simulation.meeting_run import MeetingCase

    check_cases(ctx, MeetingCase, **options)
