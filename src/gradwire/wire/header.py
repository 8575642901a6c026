"""The header of a frame: strict JSON that says which compressor and which shape.

Law: what ``load`` returns is safe to use, and everything it refuses is a ``WireError``. A name is looked up among
the registered compressors and those the caller knows; it is never imported, and no value is ever evaluated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any

from gradwire import registry
from gradwire.errors import ConfigError, WireError, is_int, require
from gradwire.types import Layout, align

if TYPE_CHECKING:
    from gradwire.compressors.base import Compressor

__all__ = ["MAX_DIMS", "MAX_HEADER", "dump", "load"]

MAX_HEADER = 64 * 1024
"""Bytes: a configuration is a few dozen, and parsing must stay cheap whoever sends garbage."""

MAX_DIMS = 16
"""Dimensions of a shape: more than any parameter has."""

_QUOTED = 300
"""Characters of a lower error's text that are repeated; it may quote what the peer sent."""


def dump(compressor: Compressor, shape: Sequence[int], start: int) -> bytes:
    """Serialise the header, padded with spaces so that the bytes after it are aligned.

    Args:
        compressor: compressor whose configuration travels.
        shape: shape of the tensor, at most ``MAX_DIMS`` dimensions.
        start: offset of the header in the frame, in bytes.

    Raises:
        ConfigError: the configuration is not plain JSON, or too long.
    """
    require(len(shape) <= MAX_DIMS, "frame.shape", f"of at most {MAX_DIMS} dimensions", tuple(shape))
    fields = {"compressor": compressor.to_config(), "shape": list(shape)}
    try:
        text = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{compressor.name!r} cannot be framed, its configuration is not JSON: {error}") from error
    text = text.ljust(align(start + len(text)) - start)
    require(len(text) <= MAX_HEADER, "frame header", f"at most {MAX_HEADER} bytes", len(text))
    return text


def load(
    header: bytes | bytearray, known: Sequence[Compressor], max_bytes: int
) -> tuple[Compressor, tuple[int, ...], Layout]:
    """Read and check a header.

    Args:
        header: bytes of the header, padding included.
        known: unregistered compressors, accepted where the configuration is equal.
        max_bytes: limit of the tensor that the payload stands for, in float32.

    Raises:
        WireError: the header is not strict JSON or not of the right form, or names a configuration that does not exist
            here.
    """
    fields = _parse(header)
    if not isinstance(fields, dict) or fields.keys() != {"compressor", "shape"}:
        raise WireError(f"frame header must be an object with 'compressor' and 'shape' alone, got {brief(fields)}")
    shape, config = _check_shape(fields["shape"], max_bytes), fields["compressor"]
    if not isinstance(config, dict):
        raise WireError(f"frame compressor must be an object, got {brief(config)}")
    try:
        compressor = _find(config, known)
        return compressor, shape, compressor.layout(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"frame compressor {brief(config)} is refused: {str(error)[:_QUOTED]}") from error


def _find(config: dict[str, Any], known: Sequence[Compressor]) -> Compressor:
    for compressor in known:
        if compressor.to_config() == config:
            return compressor
    found: Compressor = registry.from_config("compressors", config)
    return found


def _check_shape(shape: Any, max_bytes: int) -> tuple[int, ...]:
    limit = max_bytes // 4
    if not isinstance(shape, list) or not all(is_int(size, 0) for size in shape):
        raise WireError(f"frame shape must be a list of integers >= 0, got {brief(shape)}")
    if len(shape) > MAX_DIMS:
        raise WireError(f"frame shape must have at most {MAX_DIMS} dimensions, got {len(shape)}")
    # A size of 0 makes the product 0, so each size has to be within the limit too.
    if max(math.prod(shape), *shape, 0) > limit:
        raise WireError(f"frame shape must have at most {limit} elements (max_bytes={max_bytes}), got {brief(shape)}")
    return tuple(shape)


def _parse(header: bytes | bytearray) -> Any:
    """Parse strict JSON: UTF-8, no key twice, no NaN or infinity, no integer beyond 64 bits, no nesting that exhausts
    the stack.
    """
    try:
        return json.loads(
            header.decode(), object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite, parse_int=_int64
        )
    except (ValueError, RecursionError) as error:
        raise WireError(f"frame header is not strict JSON: {str(error)[:_QUOTED]}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError(f"a key appears twice among {brief([key for key, _ in pairs])}")
    return fields


def _refuse(text: str) -> float:
    raise ValueError(f"{brief(text)} is not a finite number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _int64(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"integer {brief(text)} does not fit into 64 bits")
    return int(text)
