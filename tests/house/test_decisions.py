"""Nothing is decided by a name: classes declare what code chooses by, so that new classes can declare it, too."""

import ast

import pytest

from tests.house.source import modules, tree


def literal(node):
    """Return whether a node is a text, texts in brackets or branches of a condition, or a constant of a module."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(literal(each) for each in node.elts)
    if isinstance(node, ast.IfExp):
        return literal(node.body) or literal(node.orelse)
    if isinstance(node, ast.Name | ast.Attribute):
        return (node.id if isinstance(node, ast.Name) else node.attr).isupper()
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_method(node):
    """Return whether a node is the name of a compressor, a memory or a strategy."""
    owner = node.value if is_name(node) else None
    return isinstance(owner, ast.Name | ast.Attribute) and (
        (owner.id if isinstance(owner, ast.Name) else owner.attr) in ("compressor", "memory", "strategy")
    )


def is_name(node):
    return isinstance(node, ast.Attribute) and node.attr == "name"


def decides(node):
    """Return whether a node compares an attribute ``name`` with texts."""
    if isinstance(node, ast.Match):
        return is_name(node.subject)
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    for op, left, right in zip(node.ops, sides[:-1], sides[1:], strict=True):
        if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) and is_name(left) and literal(right):
            return True
        if isinstance(op, ast.Eq | ast.NotEq) and literal(left) and is_name(right):
            return True
        if isinstance(op, ast.Eq | ast.NotEq) and is_method(left) and is_method(right):
            return True
    return False


def overriding(node):
    """Return whether a node compares what two classes have under a name."""
    if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)):
        return False
    sides = (node.left, node.comparators[0])
    if all(isinstance(side, ast.Attribute) for side in sides):
        return sides[0].attr == sides[1].attr and any(of_class(side.value) for side in sides)
    return all(called(side, "getattr") for side in sides)


def of_class(node):
    return called(node, "type") or (isinstance(node, ast.Name) and node.id[0].isupper() and not node.id.isupper())


def called(node, function):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function


def decisions(parsed):
    """The lines at which a module decides by a name."""
    found = (node.subject if isinstance(node, ast.Match) else node for node in ast.walk(parsed) if decides(node))
    return [node.lineno for node in found]


@pytest.mark.parametrize(
    "text",
    [
        "code.name == 'none'",
        "x = 1 if a.b.name != 'none' else 2",
        "code.name in ('residual', 'none')",
        "code.name not in {'residual'}",
        "'none' == code.name",
        "strategy.name == ('allreduce' if few else 'two_phase')",
        "config.name == TEST",
        "config.name not in LAZY",
        "keys.TEST != config.name",
        "compressor.name != self.compressor.name",
        "match code.name:\n    case 'none':\n        pass",
    ],
)
def test_a_decision_by_name_is_found(text):
    assert decisions(ast.parse(text)) == [1]


@pytest.mark.parametrize("text", ["code.name == other.name", "'/' in place.name", "name == 'none'", "code.kind == 'a'"])
def test_what_is_no_decision_by_name_is_left_alone(text):
    assert decisions(ast.parse(text)) == []


KEYED = {"gradwire_lab.experiments.unpacked", "gradwire_lab.bench.operation_examples"}
"""Modules whose ``name`` is that of a field or an operation, which are no classes and are looked up in a table."""


def test_no_class_is_told_by_its_name():
    found = [f"{module}:{line}" for module in modules() if module not in KEYED for line in decisions(tree(module))]
    assert not found, f"declare a property on the class in place of comparing its name: {', '.join(found)}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("type(code).encode is Compressor.encode", True),
        ("getattr(type(code), name) is not getattr(Compressor, name)", True),
        ("first.unit.compressor is piece.unit.compressor", False),
        ("each.dtype is torch.int8", False),
    ],
)
def test_a_comparison_of_methods_is_found(text, found):
    assert overriding(ast.parse(text).body[0].value) == found


TOLD = {"gradwire.compressors._adapted", "gradwire.modes"}
"""Modules that compare methods: the simple interface, and tensors of torch, which declare nothing."""


def test_only_the_simple_interface_is_told_by_what_it_overrides():
    found = {module for module in modules() for node in ast.walk(tree(module)) if overriding(node)}
    assert found <= TOLD, "declare a property in place of comparing methods"
