"""A docstring begins with a noun or a verb and ends its first paragraph as a sentence does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.source import modules, tree

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

NO_BEGINNING = frozenset(
    [
        "And",
        "As",
        "Because",
        "But",
        "For",
        "How",
        "If",
        "Of",
        "Or",
        "Since",
        "So",
        "That",
        "What",
        "When",
        "Where",
        "Whether",
        "Which",
        "Who",
        "Whose",
        "Why",
        "With",
    ]
)
"""Words with which a fragment begins, that only a reader of the code beside it could complete."""


def fragments(module: ast.Module) -> Iterator[str]:
    """The first paragraphs that are none."""
    for node in ast.walk(module):
        text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if not text:
            continue
        first = text.split("\n\n")[0]
        if first.split()[0].strip(",.:`") in NO_BEGINNING or not first.endswith((".", ":", "?")):
            yield first


@pytest.mark.parametrize("module", modules())
def test_docstrings_are_no_fragments(module: str) -> None:
    assert list(fragments(tree(module))) == []


@pytest.mark.parametrize("text", ["Of who did not say it.", "Whether it is there.", "Return the sum"])
def test_a_fragment_is_found(text: str) -> None:
    assert list(fragments(ast.parse(f'def function():\n    """{text}"""'))) == [text]
    assert list(fragments(ast.parse('def function():\n    """Return the sum.\n\n    Of all."""'))) == []
