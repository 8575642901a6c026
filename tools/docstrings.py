"""Docstrings as the reference shows them; the source keeps the form that ``help()`` shows."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?:^>>> .*\n(?:^(?!\s*$).*(?:\n|\Z))*)+", re.MULTILINE)
SOURCE = re.compile(r"^Source:\n((?: {4}.*\n?)+)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites each docstring before its sections are told apart."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    """Griffe's names for sections, words for every exception, a fence around a doctest of no section."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    text = re.sub(r"^( +\w+Error)$", r"\1: see above.", text, flags=re.MULTILINE)
    text = re.sub(r"^( +\w+: )(?=>)", r"\1\\", text, flags=re.MULTILINE)  # ">= 1" is no quotation
    text = SOURCE.sub(lambda found: f"**Source:** {' '.join(found[1].split())}\n", f"{text}\n")
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
