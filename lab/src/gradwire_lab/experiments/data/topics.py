"""English prose that ships with Python: the topics of ``help()``, which are the language reference.

The text changes with the version of Python, as the standard library does; its digest goes into the results.
"""

from __future__ import annotations

import hashlib
from pydoc_data.topics import topics

from gradwire_lab.experiments.data.base import CHARACTERS, Text, numbers

__all__ = ["load_topics"]


def load_topics() -> Text:
    """Load the topics in the order of their names: of every five, four for training and one for testing; none for
    validation.

    Topics share paragraphs: each paragraph is there once, and in the test text if a topic of it has it. Every character
    is a token: those of ``CHARACTERS``, as in the standard library's source.

    Example:
        >>> text = load_topics()
        >>> len(text.words), len(text.train) > 3 * len(text.test)
        (97, True)
    """
    named = sorted(topics)
    tested = dict.fromkeys(_paragraphs(named[4::5]))
    trained = dict.fromkeys(each for each in _paragraphs(named) if each not in tested)
    train, test = "".join(trained), "".join(tested)
    digest = hashlib.sha256(f"{train}\0{test}".encode()).hexdigest()
    return Text(
        "python topics",
        numbers(train, CHARACTERS),
        numbers("", CHARACTERS),
        numbers(test, CHARACTERS),
        CHARACTERS,
        digest,
    )


def _paragraphs(names: list[str]) -> list[str]:
    """The paragraphs of these topics, with the empty line after each."""
    return [f"{text}\n\n" for name in names for text in topics[name].strip("\n").split("\n\n")]
