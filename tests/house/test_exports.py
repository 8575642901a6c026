"""``__all__`` is what a module offers: it exists, it is documented, and nobody reaches past it."""

from __future__ import annotations

import ast

import pytest

import gradwire
from tests.cases import together
from tests.house.source import defined, exported, from_imports, modules, public, tree

OFFERING = [module for module in modules() if public(module) and exported(module) is not None]


def test_the_package_offers_exactly_what_it_finds() -> None:
    """A name brings what a type checker reads for it."""
    checked = [node for node in tree("gradwire").body if isinstance(node, ast.If)]
    imports = [node for block in checked for node in block.body if isinstance(node, ast.ImportFrom)]
    told = {alias.name: node.module for node in imports for alias in node.names}
    modules_there = {name for name, module in told.items() if module == "gradwire"}
    homes = {name: f"gradwire.{module}" for name, module in gradwire._HOMES.items()}
    assert homes == {name: module for name, module in told.items() if name not in modules_there}
    assert sorted({*told, "__version__"}) == gradwire.__all__ == sorted(gradwire.__all__)
    assert all(hasattr(gradwire, name) for name in gradwire.__all__)


@together
@pytest.mark.parametrize("module", modules())
def test_every_module_says_what_it_is_and_offers(module: str) -> None:
    assert ast.get_docstring(tree(module)), f"{module} has no docstring"
    defines = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree(module).body)
    assert not (public(module) and defines) or exported(module), f"{module} defines something and has no __all__"


@together
@pytest.mark.parametrize("module", OFFERING)
def test_what_is_offered_is_there_and_documented(module: str) -> None:
    there = defined(module)
    for name in exported(module) or []:
        assert name in there, f"{module}.__all__ has {name!r}, which is not there"
        node = there[name]
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not is_kernel(module, name):
            assert ast.get_docstring(node), f"{module}.{name} has no docstring"


def is_kernel(module: str, name: str) -> bool:
    """A GPU kernel is documented by the operation of its name."""
    family = module.removesuffix("triton") + "ops" if module.endswith(".triton") else ""
    operations = module.replace(".triton", "") if ".kernels.triton." in module else family
    return operations in modules() and name in (exported(operations) or [])


@together
@pytest.mark.parametrize("module", modules())
def test_a_module_takes_only_what_another_offers(module: str) -> None:
    for source, name in from_imports(module):
        if f"{source}.{name}" in modules() or source.rpartition(".")[0] == module.rpartition(".")[0] != "gradwire":
            continue
        assert name in (exported(source) or []), f"{module} takes {name!r}, which {source}.__all__ does not offer"


def test_a_class_has_a_name_of_its_own() -> None:
    """One meaning for each name."""
    found: dict[str, list[str]] = {}
    for module in modules():
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}
