"""Nothing is decided by a name: classes declare what code chooses by, so that new classes can declare it, too."""

import ast

import pytest

from tests.house.source import modules, tree


def literal(node):
    """Return whether a node is a text, or texts between brackets or in the branches of a condition."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(literal(each) for each in node.elts)
    if isinstance(node, ast.IfExp):
        return literal(node.body) or literal(node.orelse)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


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
    return False


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
        "match code.name:\n    case 'none':\n        pass",
    ],
)
def test_a_decision_by_name_is_found(text):
    assert decisions(ast.parse(text)) == [1]


@pytest.mark.parametrize("text", ["code.name == other.name", "'/' in place.name", "name == 'none'", "code.kind == 'a'"])
def test_what_is_no_decision_by_name_is_left_alone(text):
    assert decisions(ast.parse(text)) == []


def test_no_class_is_told_by_its_name():
    found = [f"{module}:{line}" for module in modules() for line in decisions(tree(module))]
    assert not found, f"declare a property on the class in place of comparing its name: {', '.join(found)}"
