"""Settings of ``set_gradient_compression``: MXNet's dictionary, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, nearest, require
from gradwire.kernels.stored import FLOAT32
from gradwire.kvstore.protocol.payloads import require_alone
from gradwire.memory import facts
from gradwire.memory.base import Memory, check_memory, default_memory

__all__ = ["OFF", "Compression", "parse"]

OWN = ("type", "memory", "pull", "force")
"""Keys of the dictionary that are not parameters of the compressor."""

PULL = "compression_params['pull']"

CORRECTION = "variance_correction"
"""An option of the wrappers that a store does not have."""


@dataclass(frozen=True)
class Compression:
    """The compression of a store.

    Args:
        push: compression of what workers send; None: float32 as it is.
        memory: memory of a sender for what is not sent; None with ``push`` None.
        pull: compressor of what the store answers; None: the value as it is.
    """

    push: Compressor | None = None
    memory: Memory | None = None
    pull: Compressor | None = None

    def __post_init__(self) -> None:
        own = self.memory is None or not facts.follows_mean(self.memory)
        allowed = (
            "one that needs not know what became of the mean, which a store alone makes; with this one train by "
            "compress_ddp, whose ranks make the mean themselves"
        )
        require(own, "compression_params['memory']", allowed, self.memory and self.memory.name)

    def to_config(self) -> dict[str, Any]:
        """Return plain values for a message, from which ``from_config`` makes it again."""
        return {name: part and part.to_config() for name, part in vars(self).items()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Compression:
        """Make a compression from the values of ``to_config``.

        Raises:
            ConfigError: an unknown name or a value out of range.
        """
        folders = {"push": "compressors", "memory": "memory", "pull": "compressors"}
        require(config.keys() == folders.keys(), "compression", "push and memory and pull", sorted(config))
        built = cls(**{n: registry.from_config(folders[n], each) if each else None for n, each in config.items()})
        _check_pull(built.pull)
        return built


OFF = Compression()
"""Nothing is compressed."""


def parse(params: Any) -> Compression:
    """Read the dictionary of ``set_gradient_compression``.

    Args:
        params: ``type``: "2bit" or "1bit" for MXNet's codes, "none" to switch off, or the name of a registered
            compressor; the compressor's own parameters beside it, numbers also as strings as MXNet takes them;
            ``memory``: the name of another memory than the method's own; ``force``: True, for one with which the method
            loses what it does not send, or diverges; ``pull``: a dictionary like this one, without these two, of what
            the store answers.

    Raises:
        ConfigError: the dictionary has another form; the message says what is allowed.

    Example:
        >>> parse({"type": "2bit", "threshold": "0.25"}).push.threshold
        0.25
        >>> parse({"type": "topk", "ratio": 0.1}).memory
        Residual(beta=1.0, gamma=1.0, dtype='float32')
        >>> parse({"type": "none", "pull": {"type": "2bit", "threshold": "auto"}}).pull.threshold
        'auto'
    """
    require(isinstance(params, Mapping), "compression_params", "a dict", params)
    push, pull = _compressor(params, "compression_params"), _pull(params)
    if push is None:
        require("memory" not in params, "compression_params['memory']", "left out with type 'none'", params)
        return Compression(pull=pull)
    memory = params.get("memory") or default_memory(push)
    built: Memory = registry.build("memory", memory) if isinstance(memory, str) else memory
    force = params.get("force", False)
    require(isinstance(force, bool), "compression_params['force']", "True or False", force)
    check_memory(push, built, force=force)
    if built.form != FLOAT32:
        push = capabilities.in_16_bits(push)
    return Compression(push, built, pull)


def _pull(params: Mapping[str, Any]) -> Compressor | None:
    if params.get("pull") is None:
        return None
    told = params["pull"]
    require(isinstance(told, Mapping), PULL, "a dict", told)
    own = [name for name in OWN[1:] if name in told]
    require(not own, PULL, "without 'memory', 'pull' and 'force': the store keeps what it did not deliver", dict(told))
    pull = _compressor(told, PULL)
    _check_pull(pull)
    return pull


def _check_pull(pull: Compressor | None) -> None:
    """Refuse a method whose errors would accumulate in a store that keeps values, or that saves nothing there."""
    require_alone(pull)
    if pull is not None and pull.feedback == "unsafe":
        raise ConfigError(
            f"{PULL} must be safe with error feedback, which {pull!r} is not, because its noise is larger than its "
            f"signal: use {capabilities.bounded(pull) or 'another method'}"
        )


def _compressor(params: Mapping[str, Any], name: str) -> Compressor | None:
    for key in params:
        require(isinstance(key, str), f"a key of {name}", "a str", key)
    if CORRECTION in params:
        raise ConfigError(
            f"{name} must be without {CORRECTION!r}, got {params[CORRECTION]!r}: it compares what arrives with the "
            "exact mean, which neither a store nor its workers have. Train by compress_ddp(model, method, "
            "variance_correction=optimizer), or raise the learning rate of set_optimizer: docs/kvstore_reference.md "
            "says by how much"
        )
    require("type" in params, name, f"a dict with 'type': {', '.join(_types())}", dict(params))
    kind = params["type"] if isinstance(params["type"], str) else repr(params["type"])
    rest = {key: value for key, value in params.items() if key not in OWN}
    if kind == "none":
        require(not rest, name, "{'type': 'none'} alone", dict(params))
        return None
    if kind not in _types():
        raise ConfigError(f"{name} has an unknown type {kind!r}: {nearest(str(kind).lower(), _types())}")
    cls = registry.find("compressors", registry.MXNET.get(kind, kind))
    defaults = registry.parameters(cls)
    for key in rest:
        if key not in defaults:
            raise ConfigError(f"{name} of type {kind!r} has no {key!r}: {nearest(key, [*defaults, *OWN])}")
    numbers = {key: _number(value, defaults[key]) for key, value in rest.items()}
    built: Compressor = registry.build("compressors", registry.MXNET.get(kind, kind), numbers)
    return built


def _number(value: Any, default: Any) -> Any:
    """Convert a string to a number if a number is expected, as MXNet does."""
    if not isinstance(value, str) or isinstance(default, bool) or not isinstance(default, int | float):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _types() -> list[str]:
    return [*registry.MXNET, *registry.names("compressors")]
