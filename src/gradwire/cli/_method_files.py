"""Methods as their files describe them, read without importing any: that would load torch, for seconds.

Only a method in a file of the user's own is loaded, because its parameters may be those of its constructor.
"""

from __future__ import annotations

import ast
import inspect
import re
from contextlib import suppress
from dataclasses import MISSING, dataclass, field
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from gradwire import method_files, registry
from gradwire.errors import ConfigError

__all__ = ["DescribedMethod", "described_methods"]


@dataclass(frozen=True)
class DescribedMethod:
    """A method in words.

    Args:
        name: registered name.
        family: folder of the method; of another package's method, the name of the package.
        tier: "first", "second", "outside" where it is another package's, or "file".
        summary: first line of the class's docstring.
        parameters: source text of each parameter's default, empty where it has none.
        reference: publication.
        text: whole docstring of the class.
        cls: name of the class of a method in a file.
    """

    name: str
    family: str
    tier: str = "outside"
    summary: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    reference: str = ""
    text: str = ""
    cls: str = ""


def described_methods() -> list[DescribedMethod]:
    """Describe every registered method, in the order of their names.

    Those of other packages are described as far as their files can be found without importing them.
    """
    found = {}
    for name, module in registry.places("compressors").items():
        spec = find_spec(module)
        assert spec is not None
        tier = registry.tier("compressors", name)
        found[name] = described(Path(str(spec.origin)), name, registry.family("compressors", name), tier)
    for point in entry_points(group="gradwire.compressors"):
        package = point.dist.name if point.dist is not None else point.value.partition(".")[0]
        found.setdefault(point.name, foreign(point, package))
    for name, place in method_files.named_classes().items():
        found[name] = in_file(name, *place)
    return [found[name] for name in sorted(found)]


def in_file(name: str, file: Path, cls: str) -> DescribedMethod:
    """Describe a method in a file of the user's own, which is loaded; one that cannot be is described by the reason."""
    try:
        kind = method_files.find_class(file, cls)
    except ConfigError as error:
        return DescribedMethod(name, file.name, "file", f"It cannot be loaded: {error}", text=str(error), cls=cls)
    defaults = {each: "" if value is MISSING else repr(value) for each, value in registry.parameters(kind).items()}
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    reference = getattr(kind, "reference", "")
    return DescribedMethod(name, file.name, "file", text.partition("\n")[0], defaults, reference, text, cls)


def described(file: Path, name: str, family: str, tier: str = "outside") -> DescribedMethod:
    """Describe a method by the class of its name in a file."""
    text = file.read_text(encoding="utf-8")
    # What is told stands before the first method of the class; to parse only that takes a third of the time.
    for part in (re.split(r"\n    (?:@|def )", text, maxsplit=1)[0], text):
        with suppress(SyntaxError):
            tree = ast.parse(part)
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and constant(node, "name") == name:
                    told = ast.get_docstring(node) or ""
                    given, source = parameters(tree, node), constant(node, "reference")
                    return DescribedMethod(name, family, tier, told.partition("\n")[0], given, source, told)
    return DescribedMethod(name, family, tier)


def parameters(tree: ast.Module, node: ast.ClassDef) -> dict[str, str]:
    """Map the fields of a dataclass to the source text of their defaults, those that a family shares first."""
    found: dict[str, str] = {}
    bases = {ast.unparse(base) for base in node.bases}
    for each in tree.body:
        if isinstance(each, ast.ImportFrom) and each.module and not each.module.endswith(".base"):
            spec = find_spec(each.module) if bases & {alias.name for alias in each.names} else None
            if spec is not None and spec.origin:
                inside = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
                for other in inside.body:
                    if isinstance(other, ast.ClassDef) and other.name in bases:
                        found |= parameters(inside, other)
    # Elsewhere than in a dataclass, an annotation alone declares what subclasses have.
    whole = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each.annotation) and (whole or each.value):
            value = each.value
            if isinstance(value, ast.Call):  # field(default=..., metadata=...)
                value = next((word.value for word in value.keywords if word.arg == "default"), None)
            found[ast.unparse(each.target)] = "" if value is None else ast.unparse(value)
    return found


def constant(node: ast.ClassDef, name: str) -> str:
    """Read a string that a class assigns to a name, or an empty one."""
    for each in node.body:
        if isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            named = name in map(ast.unparse, targets)
            if named and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str):
                return each.value.value
    return ""


def foreign(point: EntryPoint, package: str) -> DescribedMethod:
    """Describe a method of another package, as far as its file can be found."""
    named = point.pattern.match(point.value)
    top, *inside = named["module"].split(".") if named else [""]
    spec = find_spec(top) if top else None  # Of a name without a dot, which imports nothing.
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    files = [Path(place, *inside) for place in places] if inside else [Path(place, "__init__") for place in places]
    if spec is not None and spec.origin and not places:
        files = [Path(spec.origin).with_suffix("")]
    for file in (each for base in files for each in (base.with_suffix(".py"), base / "__init__.py")):
        if file.is_file():
            return described(file, point.name, package)
    return DescribedMethod(point.name, package)
