"""Check that the sum of the ranks' levels fits into the bits in which it travels."""

from __future__ import annotations

from gradwire.errors import ConfigError

__all__ = ["check_room"]


def check_room(name: str, levels: int, room: int, world: int) -> None:
    """Refuse a number of ranks whose levels may add up to more than an 8-bit code can hold.

    Args:
        name: name of the parameter, for the message.
        levels: the largest code of a rank.
        room: the largest sum that fits.
        world: ranks whose codes are added.

    Raises:
        ConfigError: the levels do not fit; the message names the most levels that fit, or other methods where none do.

    >>> check_room("THC.levels", 15, 255, 18)
    Traceback (most recent call last):
    gradwire.errors.ConfigError: THC.levels must be at most 255 // 18 = 14 with 18 workers, ...
    """
    most = room // world
    if levels <= most:
        return
    told = f"{name} must be at most {room} // {world} = {most} with {world} workers, whose codes are summed in 8 bits"
    remedy = f"use levels={most}, or" if most else f"up to {room} workers fit, at levels=1: use"
    raise ConfigError(f"{told}, got {levels}: {remedy} a method that sums no codes, such as 'qsgd'")
