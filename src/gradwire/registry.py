"""Registry of methods, memories and strategies, which is the folder itself: a module there is registered.

Invariants:
    * The module ``gradwire/<kind>/<name>.py``, or ``gradwire/<kind>/<family>/<name>.py``, or one of these in
      ``gradwire/contrib``, defines exactly one public class with the line ``name = "<name>"``. Adding a method is
      adding that file; no list is edited anywhere.
    * Files in which no class has the file's name hold what methods are made of (``base``, ``ops`` and ``triton`` of a
      family, and others), and are skipped, as files are whose name starts with an underscore.
    * Other packages register theirs as entry points of the group ``gradwire.<kind>``, strategies of ``gradwire.comm``.
      They are imported when they are asked for, and never take the place of ours.
    * Compressors in a file that a command line names are found by their name, too (``gradwire.method_files``).
"""

import dataclasses
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from gradwire import method_files
from gradwire.errors import ConfigError, nearest, require
from gradwire.notices import log

__all__ = [
    "MXNET",
    "assignment",
    "build",
    "family",
    "find",
    "folders_in",
    "from_config",
    "named_of",
    "names",
    "names_in",
    "parameters",
    "places",
    "registered",
    "tier",
    "to_config",
    "usable",
]

MXNET = {"2bit": "twobit", "1bit": "onebit"}
"""MXNet's names of compressors, which its stores take."""

_DEPTH = 3

_FOLDERS = {"strategies": "engine.strategies"}
"""Folders of a kind that do not stand at the top."""

_GROUPS = {"strategies": "comm"}
"""Names that entry points have had since the first release, where they are not the kind's."""


@cache
def places(kind: str) -> dict[str, str]:
    """Map each name registered under a folder, its families and its second tier to the name's module.

    >>> places("compressors")["twobit"], places("compressors")["randomk"]
    ('gradwire.compressors.ternary.twobit', 'gradwire.contrib.compressors.sparse.randomk')
    """
    found: dict[str, str] = {}
    for top in (f"gradwire.{_FOLDERS.get(kind, kind)}", f"gradwire.contrib.{kind}"):
        package = importlib.import_module(top)
        families = [importlib.import_module(f"{top}.{name}") for name in folders_in(package.__path__)]
        for folder in (package, *families):
            found |= {
                name: f"{folder.__name__}.{name}" for name in names_in(folder.__path__) if _is_named(folder, name)
            }
    return found


def _is_named(folder: ModuleType, name: str) -> bool:
    """Return whether a class of a module has the module's name. The text is read, and nothing is imported."""
    files = [Path(place, f"{name}.py") for place in folder.__path__]
    return any(file.is_file() and f'\n    name = "{name}"\n' in file.read_text(encoding="utf-8") for file in files)


def tier(kind: str, name: str) -> str:
    """The tier of a name: "first", "second" (``gradwire.contrib`` says what that promises), or "outside" where another
    package registers it.

    >>> tier("compressors", "twobit"), tier("compressors", "randomk")
    ('first', 'second')
    """
    if name not in places(kind):
        return "outside"
    return "second" if places(kind)[name].startswith("gradwire.contrib.") else "first"


def family(kind: str, name: str) -> str:
    """The folder of a name's family; an empty string where there is none, or where another package registers the name.

    >>> family("compressors", "randomk"), family("memory", "residual")
    ('sparse', '')
    """
    folder = places(kind).get(name, "").rpartition(".")[0]
    return folder.rpartition(f".{kind}.")[2] if f".{kind}." in folder else ""


def names_in(path: Iterable[str]) -> tuple[str, ...]:
    """The modules in a package's ``__path__``, sorted, without those with an underscore.

    >>> from gradwire import memory
    >>> "residual" in names_in(memory.__path__)
    True
    """
    return tuple(sorted(module.name for module in pkgutil.iter_modules(path) if not module.name.startswith("_")))


def folders_in(path: Iterable[str]) -> tuple[str, ...]:
    """The packages in a package's ``__path__``, sorted: the families of methods.

    >>> from gradwire import compressors
    >>> "ternary" in folders_in(compressors.__path__)
    True
    """
    return tuple(sorted(module.name for module in pkgutil.iter_modules(path) if module.ispkg))


@cache
def _outside(kind: str) -> dict[str, list[EntryPoint]]:
    """Map each name that other packages register under a folder to its entry point."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=f"gradwire.{_GROUPS.get(kind, kind)}"):
        if point.name in places(kind):
            told = f"{_package(point)} registers a {_singular(kind)} {point.name!r}, which is left out"
            log.warning("%s: gradwire has one of this name", told)
        else:
            found.setdefault(point.name, []).append(point)
    return found


def _package(point: EntryPoint) -> str:
    return f"the package {point.dist.name}" if point.dist is not None else f"the entry point {point.value}"


def _load(kind: str, name: str) -> type[Any]:
    """Load a class that another package registers."""
    point, *others = _outside(kind)[name]
    if others:
        packages = " and ".join(sorted(map(_package, (point, *others))))
        raise ConfigError(f"{_singular(kind)} {name!r} is registered by {packages}: only one of them may be installed")
    try:
        cls = point.load()
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{_singular(kind)} {name!r} of {_package(point)} cannot be imported: {said}") from None
    if not (inspect.isclass(cls) and dataclasses.is_dataclass(cls) and getattr(cls, "name", None) == name):
        raise ConfigError(f"{point.value} of {_package(point)} must be a dataclass with name = {name!r}, got {cls!r}")
    return cls


def names(kind: str) -> tuple[str, ...]:
    """The names registered under a folder (``"compressors"``, ``"memory"``, ``"strategies"``), sorted.

    >>> "twobit" in names("compressors")
    True
    """
    return tuple(sorted({*places(kind), *_outside(kind), *_in_files(kind)}))


@cache
def usable(kind: str) -> tuple[str, ...]:
    """The names without those that other packages register and that cannot be loaded, each of which is logged once.

    >>> "twobit" in usable("compressors")
    True
    """
    found = []
    for name in names(kind):
        try:
            find(kind, name)
        except ConfigError as error:
            if tier(kind, name) != "outside":
                raise
            log.warning("%s; it is left out", error)
        else:
            found.append(name)
    return tuple(found)


def _in_files(kind: str) -> dict[str, tuple[Path, str]]:
    return method_files.named_classes() if kind == "compressors" else {}


@cache
def find(kind: str, name: str) -> type[Any]:
    """Find the class called ``name``.

    Raises:
        ConfigError: no such file and no package that registers it; the message gives the nearest known name. Or what
            a package registers is no class of this name.
    """
    if name not in names(kind):
        former = MXNET.get(name) if kind == "compressors" else None
        hint = f"that is MXNet's name of {former!r}" if former else nearest(name, names(kind))
        raise ConfigError(f"unknown {_singular(kind)} {name!r}: {hint}")
    if name in _outside(kind):
        return _load(kind, name)
    if name in _in_files(kind):
        return method_files.find_class(*_in_files(kind)[name])
    module = importlib.import_module(places(kind)[name])
    classes = list(
        {
            cls: None  # once, whatever other names it has there
            for _, cls in inspect.getmembers(module, inspect.isclass)
            if cls.__module__ == module.__name__ and getattr(cls, "name", None) == name
        }
    )
    if len(classes) != 1:
        raise ConfigError(f"{module.__name__} must define exactly one class with name = {name!r}, found {classes}")
    return classes[0]


def registered(text: str, folder: Path | None = None) -> str:
    """Return the text of a compressor by which every process finds it, after its file was loaded; a name is unchanged.

    Args:
        text: ``NAME``, ``FILE.py:Class``, or either with ``:PARAMETER=VALUE,...``.
        folder: folder from which the file is looked for; None: the current one.

    Raises:
        ConfigError: there is no such file, it cannot be imported, has no such class, or the class is no compressor.

    Example:
        >>> registered("topk:ratio=0.1")
        'topk:ratio=0.1'
    """
    parts = method_files.separate(text, folder)
    if parts is None:
        return text
    file, cls, params = parts
    name = method_files.name_of(method_files.find_class(file, cls), file)
    if method_files.named_classes().get(name) != (file, cls):
        if name in names("compressors"):
            raise ConfigError(f"{file}:{cls} is called {name!r}, as another method is: give it another name")
        method_files.remember(name, file, cls)
    return f"{name}:{params}" if params else name


def named_of(text: str) -> dict[str, Any]:
    """Read ``NAME:PARAMETER=VALUE,...`` into a table, with the name under "name".

    Raises:
        ConfigError: the text is not of this form, or a parameter is called "name".

    Example:
        >>> named_of("compressed_step:every=4")
        {'name': 'compressed_step', 'every': 4}
    """
    name, _, tail = text.partition(":")
    params: dict[str, Any] = {}
    for given, value in (assignment(part) for part in tail.split(",") if tail):
        require(given not in params, f"{name}.{given}", f"given once, beside {params.get(given)!r}", value)
        params[given] = value
    require("name" not in params, f"{name}.name", "left out", params.get("name"))
    return {"name": name, **params}


def assignment(part: str) -> tuple[str, Any]:
    """Read ``NAME=VALUE``; a value is JSON, or else the text itself.

    Raises:
        ConfigError: there is no equals sign.

    Example:
        >>> assignment("bits=8"), assignment("norm=l2")
        (('bits', 8), ('norm', 'l2'))
    """
    name, equals, value = part.partition("=")
    if not equals:
        raise ConfigError(f"a parameter is written NAME=VALUE, got {part!r}")
    try:
        return name.strip(), json.loads(value)
    except (ValueError, RecursionError):  # no JSON; or a number or a nesting that Python does not read
        return name.strip(), value


def build(kind: str, name: str, params: Mapping[str, Any] | None = None) -> Any:
    """Build ``find(kind, name)(**params)``; the error names an unknown parameter and its nearest neighbour.

    Args:
        name: registered name, or one with parameters as ``named_of`` reads them.
        params: further ones.

    Raises:
        ConfigError: an unknown name or parameter, one that is given twice, or a value out of range.
    """
    told = named_of(name)
    name = told.pop("name")
    cls, params = find(kind, name), dict(params or {})
    for given in told.keys() & params.keys():
        raise ConfigError(f"{given} of {name!r} is given twice: {told[given]!r} in its name, and {params[given]!r}")
    params = {**told, **params}
    known = parameters(cls)
    for given in params:
        if given not in known:
            allowed = nearest(given, known) if known else "it takes no parameters"
            raise ConfigError(f"{cls.__name__} has no parameter {given!r}: {allowed}")
    nested = _nested(cls)
    made = cls(**{key: _inner(value) if key in nested else value for key, value in params.items()})
    return made.adapted({"name": name, **params}) if hasattr(cls, "adapted") else made


def parameters(cls: type[Any]) -> dict[str, Any]:
    """Map the parameters of a registered class to their defaults, ``dataclasses.MISSING`` where there is none; those of
    a simple method are the arguments of its constructor.

    >>> parameters(find("compressors", "topk"))["ratio"]
    0.01
    """
    if dataclasses.is_dataclass(cls):
        return {field.name: field.default for field in dataclasses.fields(cls) if field.init}
    found = inspect.signature(cls).parameters.values()
    return {each.name: dataclasses.MISSING if each.default is each.empty else each.default for each in found}


def _nested(cls: type[Any]) -> set[str]:
    """Build the parameters that are compressors themselves."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return {f.name for f in fields if f.type == "Compressor"}


def _inner(value: Any) -> Any:
    """Build a compressor inside another one, given as such, by name, or as its configuration."""
    if isinstance(value, str):
        return build("compressors", value)
    return from_config("compressors", value) if isinstance(value, Mapping) else value


def _deeper(value: Any, depth: int) -> bool:
    return isinstance(value, Mapping) and (depth == 0 or any(_deeper(each, depth - 1) for each in value.values()))


def to_config(obj: Any) -> dict[str, Any]:
    """Convert a registered object to plain JSON values: its name and its parameters.

    A parameter that was added when others had been written down already, with ``metadata={"later": True}``, is left out
    at its default: so the ids of recorded runs stay what they were.
    """
    values = {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj) if f.init}
    for field in dataclasses.fields(obj):
        if field.metadata.get("later") and values.get(field.name) == field.default:
            del values[field.name]
    return {"name": obj.name, **{key: v.to_config() if hasattr(v, "to_config") else v for key, v in values.items()}}


def from_config(kind: str, config: Mapping[str, Any]) -> Any:
    """Build an object from its configuration: ``from_config(kind, to_config(x)) == x``."""
    params = dict(config)
    name = params.pop("name", None)
    if _deeper(config, _DEPTH):
        raise ConfigError(f"a {_singular(kind)} configuration must not be nested more than {_DEPTH} deep")
    if not isinstance(name, str):
        raise ConfigError(f"a {_singular(kind)} configuration needs a 'name', got {dict(config)!r}")
    for each in _nested(find(kind, name)) & params.keys():
        inside = params[each]
        if isinstance(inside, str) and ":" in inside:
            raise ConfigError(f"{each} of {name!r} must have no parameters in a configuration, got {inside[:80]!r}")
    return build(kind, name, params)


def _singular(kind: str) -> str:
    return {"compressors": "compressor", "strategies": "strategy"}.get(kind, kind)
