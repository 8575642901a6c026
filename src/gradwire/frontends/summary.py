"""Figures of an exchange, and a summary in a few lines of plain words, which ``print(state)`` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradwire._short_traceback import ShortTracebacks
from gradwire.engine.exchange import Exchange

__all__ = ["Summarised", "in_words"]

UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class Summarised(ShortTracebacks):
    """Base of states and optimizers, which hold an exchange."""

    exchange: Exchange

    def metrics(self) -> dict[str, Any]:
        """Return bytes, ratio, times, steps with values that are not finite, and the norm of this rank's residuals.

        "ratio" is that of the last 32 to 64 exchanges, "total_ratio" that since the start.
        """
        return self.exchange.metrics()

    def decisions(self) -> dict[str, Any]:
        """Return what "auto" has chosen and why, with the names of parameters; empty with another method.

        Another run is given it as ``decisions=``, to make the same decisions again in the same steps.
        """
        return self.exchange.decisions()

    def __str__(self) -> str:
        return "\n".join(_lines(type(self).__name__, self.exchange, self.metrics()))


def _lines(what: str, exchange: Exchange, figures: Mapping[str, Any]) -> Iterator[str]:
    world = exchange.channel.world
    # Workers of a meeting have no group.
    ranks = "" if exchange.channel.group is None else f"{world} rank{'s' if world > 1 else ''}, "
    yield f"gradwire {what}: {ranks}step {figures['steps']}"
    controller = exchange.controller
    if controller is not None:
        yield from (f"  {name:<9} {text}" for name, text in controller.status())
    else:
        main = exchange.methods.compressor
        yield f"  method    {main!r} over {exchange.methods.strategy_for(main).name}"
        if exchange.methods.policy.overrides:
            yield f"  overrides {', '.join(exchange.methods.policy.overrides)}"
    recent, counters = exchange.counters.recent(), exchange.counters
    steps, each = exchange.step - recent.step, "round" if "rounds" in figures else "step"
    if steps:
        now = (
            f"{in_words(recent.bytes_sent / steps)} a {each} now, {figures['ratio']:.3g} times fewer than uncompressed"
        )
        whole = f"{in_words(figures['bytes_sent'])} in all, {figures['total_ratio']:.3g} times fewer"
        yield f"  bytes     {now}; {whole}"
        made = exchange.step - counters.begun
        spent = [f"{name} {1e3 * seconds / made:.3g} ms" for name, seconds in counters.seconds.items()]
        beside = "" if "rounds" in figures else ", most of it beside the backward pass"
        yield f"  work      {', '.join(spent)} a {each} on average of all{beside}"
    if figures["residual_norm"]:
        yield f"  residual  values of norm {figures['residual_norm']:.3g} wait on this rank to be sent later"
    if figures["nonfinite_steps"]:
        yield f"  skipped   {figures['nonfinite_steps']} steps, whose gradients were not finite"


def in_words(nbytes: float) -> str:
    """A number of bytes in words.

    >>> in_words(1234567), in_words(12)
    ('1.23 MB', '12 bytes')
    """
    for least, unit in UNITS:
        if nbytes >= least:
            return f"{nbytes / least:.3g} {unit}"
    return f"{nbytes:.0f} bytes"
