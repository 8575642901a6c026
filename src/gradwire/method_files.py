"""Methods in a file of the user's own, which a command line names as ``FILE.py:Class``.

Invariants:
    * A file is a module of this module, whose ``__path__`` is the folders of the files: ``own.py`` is imported as
      ``gradwire.method_files.own``, so no module of the same name elsewhere is shadowed, and objects can be pickled.
    * What was named is in the environment variable ``GRADWIRE_METHOD_FILES``. Therefore every process that is started
      from here finds the method by its name, too: workers, servers and scripts.
    * Only a command line and that variable load a file; no configuration, checkpoint or message does.

The folder of a file is the last one in which its own imports are looked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gradwire
from gradwire.errors import ConfigError, nearest

__all__ = ["VARIABLE", "find_class", "name_of", "named_classes", "remember", "separate"]

VARIABLE = "GRADWIRE_METHOD_FILES"
"""Holds ``NAME=FILE.py:Class`` for each method, separated by semicolons."""

_FORM = re.compile(r"(?P<file>[^:]*\.py)(?::(?P<cls>[^:]*))?(?::(?P<params>.*))?", re.DOTALL)


def named_classes() -> dict[str, tuple[Path, str]]:
    """Map the name of each method that was named by a file to the file and the class."""
    found = {}
    for entry in filter(None, os.environ.get(VARIABLE, "").split(";")):
        name, _, place = entry.partition("=")
        file, _, cls = place.rpartition(":")
        found[name] = Path(file), cls
        _search(Path(file).parent)
    return found


def separate(text: str, folder: Path | None = None) -> tuple[Path, str, str] | None:
    """Separate ``FILE.py:Class:PARAMETER=VALUE,...`` into file, class and parameters; None if no file is named.

    Args:
        text: method as it was written.
        folder: folder from which the file is looked for; None: the current one.

    Raises:
        ConfigError: a file is named, and no class.

    Example:
        >>> separate("own.py:TopHalf:ratio=0.1", Path("/methods"))[1:], separate("topk:ratio=0.1")
        (('TopHalf', 'ratio=0.1'), None)
    """
    parts = _FORM.fullmatch(text)
    if parts is None:
        return None
    file = Path(folder or "", parts["file"]).expanduser().resolve()
    if not parts["cls"]:
        classes = ", ".join(_methods_in(_load(file)))
        raise ConfigError(
            f"a method in a file is written FILE.py:Class, got {text!r}; its methods: {classes or 'none'}"
        )
    return file, parts["cls"], parts["params"] or ""


def remember(name: str, file: Path, cls: str) -> None:
    """Let this process, and those that it starts, find a class in a file by a name."""
    known = {**named_classes(), name: (file, cls)}
    os.environ[VARIABLE] = ";".join(f"{name}={place}:{found}" for name, (place, found) in known.items())


def find_class(file: Path, name: str) -> type[Any]:
    """Load a class from a file.

    Args:
        file: absolute path.
        name: name of the class.

    Raises:
        ConfigError: there is no such file, it cannot be imported, has no such class, or the class is no compressor.
    """
    module = _load(file)
    if not hasattr(module, name):
        raise ConfigError(f"{file} has no class {name!r}: {nearest(name, _methods_in(module))}")
    cls: Any = getattr(module, name)
    registrable = is_dataclass(cls) and isinstance(getattr(cls, "name", None), str)
    if not (inspect.isclass(cls) and issubclass(cls, gradwire.Compressor | gradwire.SimpleCompressor)):
        allowed = "a subclass of gradwire.SimpleCompressor or gradwire.Compressor"
        raise ConfigError(f"{file}:{name} must be {allowed}, got {cls!r}")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"{file}:{name} must define {', '.join(missing)}")
    if issubclass(cls, gradwire.Compressor) and not registrable:
        raise ConfigError(f"{file}:{name} must be a frozen dataclass with a name, as name = {name.lower()!r}")
    return cls


def name_of(cls: type[Any], file: Path) -> str:
    """The registered name: of a simple method, whose class has none, the name of the class."""
    name: str = getattr(cls, "name", cls.__name__)
    if not re.fullmatch(r"\w+", name):
        raise ConfigError(f"the name of {file}:{cls.__name__} must be letters, digits and underscores, got {name!r}")
    return name


def _search(folder: Path) -> None:
    for path in (__path__, sys.path):
        if str(folder) not in path:
            path.append(str(folder))


def _load(file: Path) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"no such file: {file}")
    if not file.stem.isidentifier() or ";" in str(file):
        raise ConfigError(f"the name of a file with methods must be as that of a module, as own.py, got {file}")
    _search(file.parent)
    importlib.invalidate_caches()
    name = f"{__name__}.{file.stem}"
    spec = importlib.util.find_spec(name)
    if spec is None or Path(str(spec.origin)).resolve() != file.resolve():
        other = "no file" if spec is None else spec.origin
        raise ConfigError(f"{file} and {other} must have different names, to be used together")
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{file} cannot be imported: {_described(error, file)}") from None


def _described(error: BaseException, file: Path) -> str:
    """The error with the last line of the file that led to it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if isinstance(error, SyntaxError) and error.filename == str(file):
        lines = [error.lineno]
    where = f"line {lines[-1]}: " if lines else ""
    said = error.msg if isinstance(error, SyntaxError) else error
    return f"{where}{type(error).__name__}: {said}"


def _methods_in(module: ModuleType) -> list[str]:
    """The names of the methods that a file defines."""
    classes = inspect.getmembers(module, inspect.isclass)
    kinds = gradwire.Compressor | gradwire.SimpleCompressor
    return [name for name, cls in classes if issubclass(cls, kinds) and cls.__module__ == module.__name__]


__path__: list[str] = []
named_classes()  # An object of a class in such a file may be unpickled before any method is looked for.
