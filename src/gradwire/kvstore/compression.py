"""What ``set_gradient_compression`` was told: MXNet's dictionary, read strictly."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradwire import registry
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, nearest, require
from gradwire.memory.base import Memory, default_memory
from gradwire.settings import build_compressor

__all__ = ["OFF", "Compression", "parse"]

MXNET = {"2bit": "twobit", "1bit": "onebit"}
"""MXNet's names of what it has."""

OWN = ("type", "memory")
"""Keys of the dictionary that are not parameters of the compressor."""


@dataclass(frozen=True)
class Compression:
    """How a store compresses.

    Args:
        push: of what workers send; None: float32 as it is.
        memory: what a sender does with the rest; None with ``push`` None.
    """

    push: Compressor | None = None
    memory: Memory | None = None

    def to_config(self) -> dict[str, Any]:
        """Plain values, for a message: what ``from_config`` takes."""
        return {"push": self.push and self.push.to_config(), "memory": self.memory and self.memory.to_config()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Compression:
        """The inverse of ``to_config``.

        Raises:
            ConfigError: an unknown name or a value out of range.
        """
        require(config.keys() == {"push", "memory"}, "compression", "push and memory", sorted(config))
        folders = {"push": "compressors", "memory": "memory"}
        built = {n: registry.from_config(folders[n], each) if each else None for n, each in config.items()}
        return cls(**built)


OFF = Compression()
"""Nothing is compressed."""


def parse(params: Any) -> Compression:
    """Read the dictionary of ``set_gradient_compression``.

    Args:
        params: ``type``: "2bit" or "1bit" for MXNet's codes, "none" to switch off, or the name of a registered
            compressor; the compressor's own parameters beside it, numbers also as strings as MXNet takes them;
            ``memory``: the name of another memory than the method's own.

    Raises:
        ConfigError: something else, with what is allowed.

    Example:
        >>> parse({"type": "2bit", "threshold": "0.25"}).push.threshold
        0.25
        >>> parse({"type": "topk", "ratio": 0.1}).memory
        Residual(beta=1.0, gamma=1.0, dtype='float32')
    """
    require(isinstance(params, Mapping), "compression_params", "a dict", params)
    push = _compressor(params, "compression_params")
    if push is None:
        require("memory" not in params, "compression_params['memory']", "left out with type 'none'", params)
        return OFF
    memory = params.get("memory") or default_memory(push)
    built: Memory = registry.build("memory", memory) if isinstance(memory, str) else memory
    return Compression(push, built)


def _compressor(params: Mapping[str, Any], name: str) -> Compressor | None:
    for key in params:
        require(isinstance(key, str), f"a key of {name}", "a str", key)
    require("type" in params, name, f"a dict with 'type': {', '.join(_types())}", dict(params))
    kind = params["type"] if isinstance(params["type"], str) else repr(params["type"])
    rest = {key: value for key, value in params.items() if key not in OWN}
    if kind == "none":
        require(not rest, name, "{'type': 'none'} alone", dict(params))
        return None
    if kind not in _types():
        raise ConfigError(f"{name} has an unknown type {kind!r}: {nearest(str(kind).lower(), _types())}")
    cls = registry.find("compressors", MXNET.get(kind, kind))
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in rest:
        if key not in fields:
            raise ConfigError(f"{name} of type {kind!r} has no {key!r}: {nearest(key, [*fields, *OWN])}")
    return build_compressor(cls.name, {key: _number(value, fields[key].default) for key, value in rest.items()})


def _number(value: Any, default: Any) -> Any:
    """MXNet reads numbers from strings; here too, where a number is expected."""
    if not isinstance(value, str) or isinstance(default, bool) or not isinstance(default, int | float):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _types() -> list[str]:
    return [*MXNET, *registry.names("compressors")]
