"""Docstrings are clear to a reader who knows the field and not this code: they begin with a noun or a verb, their first
paragraph ends as a sentence does, and those of modules have short sentences and no words of our own. So do entries and
strings under constants, which a reader meets without the code beside them. Names are the field's own."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cases import together
from tests.house.source import ROOT, modules, tree

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

NO_BEGINNING = frozenset(
    [
        "and",
        "as",
        "because",
        "but",
        "for",
        "how",
        "if",
        "of",
        "or",
        "since",
        "so",
        "that",
        "what",
        "when",
        "where",
        "whether",
        "which",
        "who",
        "whose",
        "why",
        "with",
    ]
)
"""Words with which a fragment begins, that only a reader of the code beside it could complete."""

NO_ENTRY = NO_BEGINNING | {"at", "between", "by", "from", "has", "in", "into", "is", "it", "on", "over", "to", "whom"}
"""Words with which neither an entry of a section nor a string under a constant begins, either."""

SECTION = re.compile(r"(\w+):\n((?: +.*\n|\n)+)", re.MULTILINE)
"""A section of a docstring: its name, and its indented lines."""

NAMED = ("Args", "Attributes", "Raises")
"""Sections whose entries have a name before them."""


def fragments(module: ast.Module) -> Iterator[str]:
    """The first paragraphs that are none."""
    for text in docstrings(module):
        first = text.split("\n\n")[0]
        if beginning(first) in NO_BEGINNING or not first.endswith((".", ":", "?")):
            yield first


def entry_fragments(module: ast.Module) -> Iterator[str]:
    """The entries of sections that are none, and the strings under constants and attributes."""
    for text in docstrings(module):
        for section, lines in SECTION.findall(f"{text}\n"):
            for entry in entries(section, lines) if section in (*NAMED, "Returns", "Yields") else ():
                said = entry.partition(": ")[2] if section in NAMED else entry
                if beginning(said) in NO_ENTRY:
                    yield entry
    for text in strings(module):
        if beginning(text) in NO_ENTRY:
            yield text


def docstrings(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if text:
            yield text


def entries(section: str, lines: str) -> list[str]:
    """Join the lines of each entry; one that has a name goes on where it is indented, the others are one."""
    text = inspect.cleandoc(lines)
    return [" ".join(entry.split()) for entry in (re.split(r"\n(?! )", text) if section in NAMED else [text])]


def strings(module: ast.Module) -> Iterator[str]:
    """The strings that stand below an assignment."""
    for node in ast.walk(module):
        for assigned, below in pairwise(getattr(node, "body", []) if isinstance(node, DOCUMENTED) else []):
            match assigned, below:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text))):
                    yield inspect.cleandoc(text)


def beginning(text: str) -> str:
    words = text.split()
    return words[0].strip(",.:`").lower() if words else ""


HEADS = ("Invariants:", "Why:", "Failure modes:")
"""The heads under which a module's docstring says what always holds, the reasons, and how it fails: in this order."""

HEAD = re.compile(r"^(Laws?|Invariants?|Reasons?|Why|Failure modes?)\b.*$", re.MULTILINE)
"""A line that begins as a head does."""

DIALECT = ("law", "told", "heard of", "taken back", "what waits", "in silence")
"""Phrases that only a reader of the code could decode, and for which there are plain words: invariant, said or sent,
not silent, undone, residual, silently."""

MOST_WORDS = 45
"""Words of a sentence at most: a longer one has to be read twice."""


def obscure(module: ast.Module) -> Iterator[str]:
    """The parts of a module's docstring that are not clear: old heads, words of our own, and sentences too long."""
    text = ast.get_docstring(module) or ""
    heads = [found.group() for found in HEAD.finditer(text)]
    if heads != [head for head in HEADS if head in heads]:
        yield f"heads {heads}"
    words = " ".join(text.split()).lower()
    yield from (phrase for phrase in DIALECT if re.search(rf"\b{phrase}\b", words))
    yield from (sentence for sentence in sentences(text) if len(sentence.split()) > MOST_WORDS)


def sentences(text: str) -> Iterator[str]:
    """The sentences and clauses of a text, without its tables: lines in which several spaces separate columns."""
    for paragraph in re.split(r"\n\s*\n|\n(?= *\* )", text):
        if re.search(r"\S {2,}\S", paragraph) is None:
            yield from re.split(r"(?<=[.;:?])\s", " ".join(paragraph.split()))


FILES = [
    file.relative_to(ROOT)
    for folder in ("benchmarks", "examples", "tests", "lab/tests", "tools")
    for file in sorted((ROOT / folder).rglob("*.py"))
]
"""Programs and tests of the repository, which are no part of the package."""


WORDPLAY = frozenset(
    ["beside", "ending", "keeper", "leash", "onworker", "othertasks", "sidebyside", "told", "waits"],
)
"""Names that a reader would have to look up: a name says what it holds or does, in the words of the field."""


def wordplay(module: ast.Module) -> Iterator[str]:
    """The names from ``WORDPLAY`` of functions, classes, parameters, attributes and of what a module or class binds;
    other variables of a function are left out."""
    for node in ast.walk(module):
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        if isinstance(node, ast.arg):
            names.append(node.arg)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append(node.attr)
        if isinstance(node, ast.Module | ast.ClassDef):
            names += (name for statement in node.body for name in targets(statement))
        yield from (name for name in names if name.strip("_").lower() in WORDPLAY)


def targets(statement: ast.stmt) -> Iterator[str]:
    """The variables that an assignment binds."""
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


@together
@pytest.mark.parametrize("module", modules())
def test_names_are_the_terms_of_the_field(module: str) -> None:
    assert module.rpartition(".")[2].strip("_") not in WORDPLAY
    assert list(wordplay(tree(module))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def _told(): pass", ["_told"]),
        ("class Keeper: pass", ["Keeper"]),
        ("def call(self, *, waits=True): pass", ["waits"]),
        ("class Row:\n    beside: int = 0", ["beside"]),
        ("class Row:\n    def call(self):\n        self._waits = 0", ["_waits"]),
        ("FIRST, TOLD = 1, 2", ["TOLD"]),
        ("def call():\n    told = 1\n    return told", []),
        ("def retold(): pass", []),
    ],
)
def test_wordplay_is_found(text: str, found: list[str]) -> None:
    assert list(wordplay(ast.parse(text))) == found


@together
@pytest.mark.parametrize("module", modules())
def test_modules_are_clear(module: str) -> None:
    assert list(obscure(tree(module))) == []
    assert "Law:" not in modules()[module].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A queue.\n\nInvariants:\n    It is short.\n\nFailure modes:\n    It is full.", []),
        ("A queue.\n\nLaw: it is short.", ["heads ['Law: it is short.']", "law"]),
        ("A queue.\n\nFailure modes:\n    None.\n\nWhy:\n    It.", ["heads ['Failure modes:', 'Why:']"]),
        ("A queue.\n\nInvariants\n    It is short.", ["heads ['Invariants']"]),
        ("A queue of what\nwaits.", ["what waits"]),
        ("A queue that lawyers foretold.", []),
        (f"A queue{' of queues' * 21}.", []),
        (f"A queue{' of queues' * 22}.", [f"A queue{' of queues' * 22}."]),
        ("A queue:\n\n    " + "first   last\n    " * 50, []),
    ],
)
def test_an_obscure_module_is_found(text: str, found: list[str]) -> None:
    assert list(obscure(ast.parse(f'"""{text}"""'))) == found


@together
@pytest.mark.parametrize("module", modules())
def test_docstrings_are_no_fragments(module: str) -> None:
    assert list(fragments(tree(module))) == []


@together
@pytest.mark.parametrize("module", modules())
def test_entries_and_strings_are_no_fragments(module: str) -> None:
    assert list(entry_fragments(tree(module))) == []


@together
@pytest.mark.parametrize("file", FILES, ids=str)
def test_programs_and_tests_are_written_as_the_package_is(file: Path) -> None:
    parsed = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert [*fragments(parsed), *entry_fragments(parsed)] == []
    # Tests may call what their ranks report what they like.
    assert file.parts[0] in ("tests", "lab") or list(wordplay(parsed)) == []


def test_files_of_every_folder_are_read() -> None:
    assert {file.parts[0] for file in FILES} == {"benchmarks", "examples", "lab", "tests", "tools"}


@pytest.mark.parametrize("text", ["Of who did not say it.", "Whether it is there.", "Return the sum"])
def test_a_fragment_is_found(text: str) -> None:
    assert list(fragments(ast.parse(f'def function():\n    """{text}"""'))) == [text]
    assert list(fragments(ast.parse('def function():\n    """Return the sum.\n\n    Of all."""'))) == []


FUNCTION = '''
class Counter:
    """A counter.

    Args:
        unit: unit of the counts, whose name is shown
            by each line.
        {entry}

    Raises:
        ConfigError: the unit is not known.

    It counts.
    """

    kinds = ("all", "some")
    """{below}"""

    def __init__(self) -> None:
        self.count = 0
        """{attribute}"""
'''


@pytest.mark.parametrize(
    ("entry", "below", "attribute", "found"),
    [
        ("count: number of calls.", "Kinds of counts.", "The number of calls.", []),
        ("count: of the calls.", "Kinds of counts.", "The number of calls.", ["count: of the calls."]),
        ("by: by which it is\n            known.", "Kinds.", "Calls.", ["by: by which it is known."]),
        ("count: calls.", "What it counts.", "Whether it counts.", ["What it counts.", "Whether it counts."]),
    ],
)
def test_a_fragment_in_an_entry_or_below_a_name_is_found(
    entry: str, below: str, attribute: str, found: list[str]
) -> None:
    made = ast.parse(FUNCTION.format(entry=entry, below=below, attribute=attribute))
    assert list(entry_fragments(made)) == found
