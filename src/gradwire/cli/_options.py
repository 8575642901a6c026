"""The forms in which a size and a method are written on the command line."""

from __future__ import annotations

import json
import re
from typing import Any

from gradwire import registry
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError

__all__ = ["parse_method", "parse_size"]

_LARGEST = 1 << 31


def parse_size(text: str) -> int:
    """A number of elements, 1 to 2^31.

    >>> parse_size("2^24"), parse_size("16777216"), parse_size("25_000_000")
    (16777216, 16777216, 25000000)
    """
    found = re.fullmatch(r"(\d[\d_]*)(?:(?:\^|\*\*)(\d{1,3}))?", text.strip())
    size = int(found[1]) ** int(found[2] or 1) if found else 0
    if not 1 <= size <= _LARGEST:
        raise ConfigError(f"a size must be in [1, 2^31], as 16777216 or 2^24, got {text!r}")
    return size


def parse_method(text: str) -> Compressor:
    """A registered compressor with parameters: ``NAME`` or ``NAME:PARAMETER=VALUE,...``.

    >>> parse_method("twobit:threshold=0.25").threshold
    0.25
    """
    name, _, tail = text.partition(":")
    params = dict(_assignment(part) for part in tail.split(",")) if tail else {}
    compressor: Compressor = registry.build("compressors", name, params)
    return compressor


def _assignment(part: str) -> tuple[str, Any]:
    name, equals, value = part.partition("=")
    if not equals:
        raise ConfigError(f"a parameter is written NAME=VALUE, got {part!r}")
    try:
        return name.strip(), json.loads(value)
    except json.JSONDecodeError:
        return name.strip(), value
