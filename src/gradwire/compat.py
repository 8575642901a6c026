"""GRACE's parameter dictionary, translated into our objects, for users of GRACE.

Invariants:
    * A key means here what it means there, or it is refused with the reason. None is ignored silently.
    * A default of GRACE's helper is the default here, except that a memory and a communicator that are not named are
      chosen from what the compressor declares (GRACE takes ``none`` and ``allreduce``, which suits few methods).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire import registry
from gradwire._short_traceback import short_traceback
from gradwire.compressors.base import Compressor
from gradwire.engine.strategies.base import Strategy
from gradwire.errors import ConfigError, is_int, nearest, require
from gradwire.memory import facts
from gradwire.memory.base import Memory

__all__ = ["MethodChoice", "from_params"]

_RENAMED = {
    "compress_ratio": "ratio",
    "quantum_num": "bits",
    "bucket_size": "block",
    "compress_rank": "rank",
    "momentum": "beta",
    "quantiles": "buckets",
    "threshold": "v",
}
"""GRACE's words in ours, where the method or its memory does not have the same word itself."""

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "topk": {"compress_ratio": 0.3},
    "qsgd": {"quantum_num": 127},
    "powersgd": {"compress_rank": 1},
}

_MEMORIES = {"powersgd": "residual", "efsignsgd": "residual"}
"""GRACE's PowerSGD memory is a residual that also holds the warm start, which here is the compressor's state. Its
EFsignSGD memory multiplies gradients by a constant that the compressor divides by again: a residual without it."""

_COMMUNICATORS = {"all_to_all": "two_phase"}

_NAMES = {"adaq": "adaptive_threshold", "onebit": "onebit_sgd", "sketch": "sketchml", "u8bit": "dynamic8"}
"""GRACE's methods that have another name here. Its ``onebit`` is 1-bit SGD; gradwire's is MXNet's code."""


@dataclass(frozen=True)
class MethodChoice:
    """The arguments that ``compress_ddp`` and ``compress_optimizer`` take in place of a compressor.

    Args:
        compressor: the method.
        memory: None: what the compressor declares.
        strategy: None: chosen from declared properties and the number of workers.
        force: take the memory although the method loses with it what it does not send.
    """

    compressor: Compressor
    memory: Memory | None = None
    strategy: Strategy | None = None
    force: bool = False


@short_traceback
def from_params(params: Mapping[str, Any]) -> MethodChoice:
    """Read the dictionary that GRACE's ``grace_from_params`` takes.

    Args:
        params: ``compressor``, ``memory`` and ``communicator`` by name, and their parameters:
            ``compress_ratio`` in (0, 1] is our ``ratio``;
            ``quantum_num`` from 1 to 127, the levels on each side of zero, is our ``levels`` in as few ``bits`` as hold
            them (127: 8);
            ``bucket_size`` is our ``block``, ``compress_rank`` our ``rank``, ``momentum`` the memory's ``beta``,
            ``quantiles`` our ``buckets``;
            ``threshold``, ``beta``, ``gamma`` and every parameter of ours under its own name are themselves.
            ``memory`` "none" is taken with a warning where the method needs error feedback; by itself
            ``compress_ddp`` wants ``force=True`` for that.
            ``world_size`` is ignored with a warning: the process group knows it; so is the ``lr`` of ``efsignsgd``.

    Returns:
        The compressor, and the memory and strategy that were named.

    Raises:
        ConfigError: an unknown name or key, with the nearest known one; a value out of range; a communicator that
            cannot carry the compressor.

    Example:
        >>> recipe = from_params({"compressor": "topk", "memory": "residual", "communicator": "allgather",
        ...                       "compress_ratio": 0.01})
        >>> recipe.compressor.ratio, recipe.memory.name, recipe.strategy.name
        (0.01, 'residual', 'allgather')
    """
    require(isinstance(params, Mapping), "params", "a mapping of names to values", params)
    rest = dict(params)
    if rest.pop("world_size", None) is not None:
        warnings.warn("world_size is ignored: the process group knows it", UserWarning, stacklevel=2)
    if rest.get("compressor") == "efsignsgd" and rest.pop("lr", None) is not None:
        warnings.warn("lr is ignored: GRACE multiplies by it and divides again", UserWarning, stacklevel=2)
    name, memory_name, communicator = (_pop_name(rest, key) for key in ("compressor", "memory", "communicator"))
    cls = _compressor_class("none" if name is None else name)
    memory_cls = None if memory_name is None else registry.find("memory", _MEMORIES.get(memory_name, memory_name))
    # A memory that depends on the parameters is a property, and chosen where the method is used.
    own = getattr(cls, "memory", None)
    if memory_name in (None, "none") and isinstance(own, str):
        # A method that has its momentum in itself there has it in its memory here.
        memory_cls = registry.find("memory", own)
    known = [name for used in (cls, memory_cls) if used is not None for name in _parameters(used)]
    words = {key: key if key in known else _RENAMED.get(key, key) for key in [*rest, *_RENAMED]}
    if memory_cls is None or not facts.beta_is_momentum(memory_cls):
        words["momentum"] = "momentum"  # Another memory's beta is not a momentum.
    given = _translate({**_defaults(cls.name, rest), **rest}, words)
    compressor: Compressor = cls(**_take(given, cls))
    memory: Memory | None = None if memory_cls is None else memory_cls(**_take(given, memory_cls))
    _refuse_rest([key for key in rest if words[key] in given], [cls, memory_cls])
    strategy: Strategy | None = None
    if communicator is not None:
        strategy = registry.build("strategies", _COMMUNICATORS.get(communicator, communicator))
        strategy.check(compressor)
    lossy = memory is not None and facts.keeps_nothing(memory) and compressor.feedback == "required"
    if lossy:
        # Somebody's written experiment, and not a slip: it runs as it would there.
        warnings.warn(
            f"memory 'none' loses for good what {compressor!r} does not send, as it does in GRACE: without "
            "'memory' the method gets the residual that it needs",
            UserWarning,
            stacklevel=2,
        )
    return MethodChoice(compressor, memory, strategy, lossy)


def _pop_name(params: dict[str, Any], key: str) -> str | None:
    name: str | None = params.pop(key, None)
    require(name is None or isinstance(name, str), key, "a name", name)
    return name


def _compressor_class(name: str) -> type[Any]:
    return registry.find("compressors", _NAMES.get(name, name))


def _defaults(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Take GRACE's defaults for parameters that are given neither by its names nor by ours."""
    defaults = _DEFAULTS.get(name, {})
    return {key: value for key, value in defaults.items() if key not in given and _RENAMED[key] not in given}


def _translate(params: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Translate keys and values into ours."""
    given: dict[str, Any] = {}
    for key, value in params.items():
        ours = words[key]
        if ours in given:
            raise ConfigError(f"{key!r} and {ours!r} are the same parameter: give one of them")
        given[ours] = _bits(value) if key == "quantum_num" else value
        if key == "quantum_num" and value != (1 << (given[ours] - 1)) - 1:
            given["levels"] = value
    return given


def _bits(quantum_num: Any) -> int:
    require(is_int(quantum_num, 1, 127), "quantum_num", "an integer from 1 to 127 (8 bits with the sign)", quantum_num)
    return int(quantum_num).bit_length() + 1


def _take(given: dict[str, Any], cls: type[Any]) -> dict[str, Any]:
    return {name: given.pop(name) for name in _parameters(cls) if name in given}


def _parameters(cls: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.init]


def _refuse_rest(keys: Sequence[str], classes: Iterable[type[Any] | None]) -> None:
    if not keys:
        return
    used = [cls for cls in classes if cls is not None]
    known = {"compressor", "memory", "communicator"}.union(*map(_parameters, used))
    known |= {theirs for theirs, ours in _RENAMED.items() if ours in known}
    names = " and ".join(f"{cls.name!r}" for cls in used)
    raise ConfigError(f"{keys[0]!r} is no parameter of {names}: {nearest(keys[0], known)}")


Recipe = MethodChoice  # The name until 0.2.
