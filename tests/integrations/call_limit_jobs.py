"""Calls that all ranks must make, and one rank does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from gradwire.errors import GroupError
from gradwire.frontends import setup
from gradwire.frontends.adapters._gather import gathered
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.transport.failures import timeout_of
from tests.integrations.jobs import model_of

SHORT = 2.0


def made(group: Any = None, **options: Any) -> Any:
    model = model_of()
    return compress_optimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, "qsgd", process_group=group, **options
    )


def limits(rank: int) -> tuple[list[float | None], str, float, float | None]:
    """The limits of calls, by who has given a timeout; and what comes of a call that rank 1 does not make.

    Returns:
        The limits without a timeout, with one, and with one of the group; the error, the seconds until it came, and the
        timeout that the exchange has afterwards.
    """
    usual, own = (dist.new_group(timeout=limit) for limit in (default_pg_timeout, timedelta(seconds=400)))
    states = [made(usual), made(usual, timeout=600.0), made(own)]
    found = [state.exchange.channel.call_limit for state in states]
    text, seconds = waited(rank, states[0], lambda: states[0].load_state_dict(states[0].state_dict()))
    return found, text, seconds, timeout_of(states[0].exchange.channel.group)


def waited(rank: int, state: Any, call: Callable[[], object]) -> tuple[str, float]:
    """The error of a call that rank 1 does not make, and the seconds until it came."""
    text, began = "", time.monotonic()
    state.exchange.channel.call_limit = SHORT
    if rank == 0:
        try:
            call()
        except GroupError as error:
            text = str(error)
    else:
        time.sleep(2 * SHORT)
    return text, time.monotonic() - began


def gathers(rank: int) -> tuple[str, float]:
    state = made(dist.new_group(timeout=default_pg_timeout))
    return waited(rank, state, lambda: gathered(state))


def alone(rank: int) -> str:
    """The error of a set-up that rank 1 does not come to, under a limit shorter than what is waited in any case."""
    setup.CALL_LIMIT, usual = SHORT, dist.new_group(timeout=default_pg_timeout)
    if rank == 0:
        try:
            made(usual)
        except GroupError as error:
            return str(error)
    else:
        time.sleep(12.0)
    return ""
