"""The bandwidth at which a method costs as much as no compression: below it compression pays, above it does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gradwire_lab.report._bars import Mark, rows_figure, rows_height
from gradwire_lab.report._codec_rows import by_method
from gradwire_lab.report._families import BASELINE, family_of
from gradwire_lab.report._look import Plot, elements, log_axis, rate_text
from gradwire_lab.report._replayed_exchanges import Crossing, ReplayedExchanges, crossing, exchanges
from gradwire_lab.report._results import Results

__all__ = ["NOTE", "PLACE", "TITLE", "blocks", "codec_marks", "link_marks"]

PLACE = 130
TITLE = "Break-even bandwidth"
NOTE = (
    "Of a model, from replayed exchanges: between two measured links B₁ < B₂ the time of a step is taken for a + b / "
    "B, so with D the method's time above that of plain DDP, or of what is named below where that was not replayed, "
    "and D(B₁) < 0 ≤ D(B₂), it breaks even where "
    "1/B = 1/B₁ + (1/B₂ - 1/B₁) · D(B₁) / (D(B₁) - D(B₂)); the loopback counts as 1/B = 0. A triangle is a bound: "
    "the method was faster still on the fastest link, or slower on every one. Of a tensor, from the codec alone: two "
    "workers send n elements of w bits in place of 32 and nothing overlaps, B = n · (32 - w) / (seconds to encode + to "
    "decode)."
)

_SHAPES = {"break-even": "circle", "pays at least up to here": "triangle-right", "pays at most below": "triangle-left"}
_EXACT, _ABOVE, _BELOW = _SHAPES


def blocks(results: Results) -> Iterator[Plot]:
    """One plot for each replayed model and number of workers, and one for each size of a codec's tensors."""
    for found in exchanges(results):
        yield from _plot(found.title, link_marks(found), found.instead())
    for size in sorted({row["size"] for row in results.codecs}, reverse=True):
        yield from _plot(f"the codec alone, {elements(size)}", codec_marks(results.codecs, size))


def link_marks(found: ReplayedExchanges) -> list[Mark]:
    """Make a mark for each compressing method that ran on a link of known rate, the highest bandwidth first."""
    crossings = {name: crossing(found, name) for name in found.methods if found.family(name) != BASELINE}
    marks = [_mark(name, found.family(name), at) for name, at in crossings.items() if at is not None]
    return sorted(marks, key=lambda mark: (list(_SHAPES).index(mark.series) == 2, -mark.x, mark.name))


def codec_marks(rows: Sequence[dict[str, Any]], size: int) -> list[Mark]:
    """Make a mark for each method that sends fewer than 32 bits an element, from the medians of its two operations."""
    marks = [_codec_mark(name, phases) for name, phases in by_method(rows, size, "seconds").items()]
    return sorted((mark for mark in marks if mark is not None), key=lambda mark: -mark.x)


def _plot(choice: str, marks: Sequence[Mark], notes: Sequence[str] = ()) -> Iterator[Plot]:
    if marks:
        x = log_axis("bandwidth of a worker's link, bit/s", [mark.x for mark in marks], _short)
        yield Plot(choice, rows_figure(marks, x, symbols=_SHAPES), rows_height(marks), notes)


def _mark(name: str, family: str, at: Crossing) -> Mark:
    if at.rate is not None:
        return Mark(name, family, _EXACT, at.rate, [rate_text(at.rate)])
    if at.above is not None:
        fastest = "the loopback" if at.everywhere else rate_text(at.above)
        return Mark(name, family, _ABOVE, at.above, [f"faster still on {fastest}"])
    assert at.below is not None
    return Mark(name, family, _BELOW, at.below, [f"slower at {rate_text(at.below)} already"])


def _codec_mark(name: str, phases: dict[str, dict[str, Any]]) -> Mark | None:
    saved = 32 - phases["encode"]["wire_bits_per_element"]
    if saved <= 0:
        return None
    rate = phases["encode"]["size"] * saved / sum(row["seconds"] for row in phases.values())
    family = family_of(phases["encode"]["method"], phases["encode"]["method"])
    return Mark(name, family, _EXACT, rate, [rate_text(rate)])


def _short(rate: float) -> str:
    return rate_text(rate).removesuffix("bit/s").replace(" ", "")
