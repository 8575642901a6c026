"""Declared properties of a class that a method inside it determines."""

from __future__ import annotations

from gradwire.compressors.base import Compressor

__all__ = ["declare_as"]


def declare_as(inner: Compressor, code: Compressor, *names: str) -> None:
    """Set the declared properties of ``code``, a frozen instance that is being made, to those of ``inner``.

    Args:
        inner: the method inside.
        code: around it.
        names: names of class attributes of ``Compressor``.
    """
    for name in names:
        object.__setattr__(code, name, getattr(inner, name))
