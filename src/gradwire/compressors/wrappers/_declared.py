"""What a class declares, where a method inside decides it."""

from __future__ import annotations

from gradwire.compressors.base import Compressor

__all__ = ["declare_as"]


def declare_as(inner: Compressor, code: Compressor, *names: str) -> None:
    """Let ``code``, a frozen one that is being made, declare what ``inner`` does.

    Args:
        inner: the method inside.
        code: around it.
        names: of class attributes of ``Compressor``.
    """
    for name in names:
        object.__setattr__(code, name, getattr(inner, name))
