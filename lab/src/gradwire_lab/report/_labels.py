"""Placement of labels beside the dots of a crowded plot: a label that would cover something is left out.

Invariants:
    A label that is shown touches no other label and no other dot, on a plot of ``WIDTH`` by ``HEIGHT`` pixels. A dot
    without a label still shows its name when it is pointed at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["HEIGHT", "WIDTH", "Box", "place"]

WIDTH, HEIGHT = 960, 400
"""Pixels between the axes, on a desktop."""

_LETTER, _LINE, _DOT = 6.4, 13.0, 5.0
"""Pixels: the width of a letter and the height of a line at 11 px, half the size of a dot."""

_PLACES = {
    "top right": (1, -1),
    "bottom right": (1, 1),
    "top left": (-1, -1),
    "bottom left": (-1, 1),
    "middle right": (1, 0),
    "middle left": (-1, 0),
    "top center": (0, -1),
    "bottom center": (0, 1),
}
"""Plotly's names, in the order of preference, and in which direction of the dot they are; down is positive.

Corners come first: error bars go up, down and sideways.
"""


class Box(NamedTuple):
    """A rectangle of the screen."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Return whether two boxes overlap in more than an edge."""
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)


def place(names: Sequence[str], dots: Sequence[tuple[float, float]]) -> list[str | None]:
    """Choose a place for each label; earlier labels choose first.

    Args:
        names: names of the dots.
        dots: shares of the width from the left and of the height from the top, [0, 1]; what is outside gets no label.

    Returns:
        One of Plotly's ``textposition`` for each, or None.

    Example:
        >>> place(["topk", "qsgd", "none"], [(0.2, 0.5), (0.22, 0.5), (2.0, 0.5)])
        ['top right', 'bottom right', None]
    """
    centres = [(WIDTH * x, HEIGHT * y) for x, y in dots]
    marks = [Box(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in centres]
    placed: list[Box] = []
    chosen: list[str | None] = []
    for number, name in enumerate(names):
        others = [*placed, *(mark for each, mark in enumerate(marks) if each != number)]
        found = _free(name, centres[number], others)
        chosen.append(found and found[0])
        if found:
            placed.append(found[1])
    return chosen


def _free(name: str, centre: tuple[float, float], others: Sequence[Box]) -> tuple[str, Box] | None:
    frame = Box(0, 0, WIDTH, HEIGHT)
    dot = Box(centre[0], centre[1], centre[0], centre[1])
    if not (frame.left <= dot.left <= frame.right and frame.top <= dot.top <= frame.bottom):
        return None
    for position in _PLACES:
        box = around(name, centre, position)
        inside = box.left >= frame.left and box.right <= frame.right
        if inside and not any(box.meets(other) for other in others):
            return position, box
    return None


def around(name: str, centre: tuple[float, float], position: str) -> Box:
    """The box that a label covers."""
    across, down = _PLACES[position]
    wide, (x, y) = _LETTER * len(name), centre
    left = x - wide / 2 if not across else x + _DOT + 1 if across > 0 else x - _DOT - 1 - wide
    top = y - _LINE / 2 if not down else y + _DOT if down > 0 else y - _DOT - _LINE
    return Box(left, top, left + wide, top + _LINE)
