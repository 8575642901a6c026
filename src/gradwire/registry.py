"""The folder is the registry.

Law: the module ``gradwire/<kind>/<name>.py`` defines exactly one public class with ``name = "<name>"``. Adding a
method is adding that file; no list is edited anywhere. Files that hold shared machinery (``base``, ``simple``) and
files whose name starts with an underscore define no ``name`` of their own and are skipped.
"""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from gradwire.errors import ConfigError, nearest

__all__ = ["build", "find", "from_config", "names", "to_config"]

_MACHINERY = frozenset({"base", "simple"})
_DEPTH = 3


@cache
def names(kind: str) -> tuple[str, ...]:
    """The names registered under a folder (``"compressors"``, ``"memory"``, ``"comm"``), sorted.

    >>> "twobit" in names("compressors")
    True
    """
    package = importlib.import_module(f"gradwire.{kind}")
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(sorted(n for n in found if not n.startswith("_") and n not in _MACHINERY))


@cache
def find(kind: str, name: str) -> type[Any]:
    """The class called ``name``.

    Raises:
        ConfigError: no such file; the message gives the nearest known name.
    """
    if name not in names(kind):
        raise ConfigError(f"unknown {_singular(kind)} {name!r}: {nearest(name, names(kind))}")
    module = importlib.import_module(f"gradwire.{kind}.{name}")
    classes = [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__ and getattr(cls, "name", None) == name
    ]
    if len(classes) != 1:
        raise ConfigError(f"{module.__name__} must define exactly one class with name = {name!r}, found {classes}")
    return classes[0]


def build(kind: str, name: str, params: Mapping[str, Any] | None = None) -> Any:
    """``find(kind, name)(**params)``, with an error that names an unknown parameter and its nearest neighbour."""
    cls, params = find(kind, name), dict(params or {})
    known = [field.name for field in dataclasses.fields(cls) if field.init]
    for given in params:
        if given not in known:
            allowed = nearest(given, known) if known else "it takes no parameters"
            raise ConfigError(f"{cls.__name__} has no parameter {given!r}: {allowed}")
    nested = {f.name for f in dataclasses.fields(cls) if f.type == "Compressor"}
    return cls(**{key: _inner(value) if key in nested else value for key, value in params.items()})


def _inner(value: Any) -> Any:
    """A compressor inside another one may be given as such, by name, or as its configuration."""
    if isinstance(value, str):
        return build("compressors", value)
    return from_config("compressors", value) if isinstance(value, Mapping) else value


def _deeper(value: Any, depth: int) -> bool:
    return isinstance(value, Mapping) and (depth == 0 or any(_deeper(each, depth - 1) for each in value.values()))


def to_config(obj: Any) -> dict[str, Any]:
    """A registered object as plain JSON values: its name and its parameters."""
    values = {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj) if f.init}
    return {"name": obj.name, **{key: v.to_config() if hasattr(v, "to_config") else v for key, v in values.items()}}


def from_config(kind: str, config: Mapping[str, Any]) -> Any:
    """The inverse of ``to_config``: ``from_config(kind, to_config(x)) == x``."""
    params = dict(config)
    name = params.pop("name", None)
    if _deeper(config, _DEPTH):
        raise ConfigError(f"a {_singular(kind)} configuration must not be nested more than {_DEPTH} deep")
    if not isinstance(name, str):
        raise ConfigError(f"a {_singular(kind)} configuration needs a 'name', got {dict(config)!r}")
    return build(kind, name, params)


def _singular(kind: str) -> str:
    return {"compressors": "compressor", "comm": "strategy", "bench.tasks": "task"}.get(kind, kind)
