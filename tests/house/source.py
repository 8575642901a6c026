"""The source of the library and of its laboratory as syntax trees: what the house rules look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "src" / "gradwire", ROOT / "lab" / "src" / "gradwire_lab")
NAMES = tuple(package.name for package in PACKAGES)


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of every module and package; scripts as users write them are none."""
    files = ((package, file) for package in PACKAGES for file in sorted(package.rglob("*.py")))
    return {dotted(package, file): file for package, file in files if "run_scripts" not in file.parts}


def dotted(package: Path, file: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public(module: str) -> bool:
    """No part of its name starts with an underscore."""
    return not any(part.startswith("_") for part in module.split("."))


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def from_imports(module: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each ``from gradwire... import name`` that runs, or of its laboratory; what only a type checker
    reads is left out."""
    for node in executed(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in NAMES:
            for alias in node.names:
                yield node.module, alias.name


def imported(module: str) -> set[str]:
    """The modules of both packages that a module imports, wherever in the file."""
    found = {alias.name for node in executed(tree(module)) if isinstance(node, ast.Import) for alias in node.names}
    for source, name in from_imports(module):
        found.add(f"{source}.{name}" if f"{source}.{name}" in modules() else source)
    return {name for name in found if name in modules()} - {module}


def executed(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from executed(child)


def exported(module: str) -> list[str] | None:
    """The names in ``__all__``; None where there is none."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def defined(module: str) -> dict[str, ast.stmt]:
    """Top-level name -> the statement that binds it (definitions, assignments, imports)."""
    names: dict[str, ast.stmt] = {}
    for node in tree(module).body:
        for name in bound(node):
            names[name] = node
    return names


def bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Try | ast.If):
        for child in [*node.body, *node.orelse]:
            yield from bound(child)
