"""Source text of Python's standard library, which is present wherever Python runs.

The text changes with the version of Python; its digest goes into the results, and perplexities are compared within one.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gradwire_lab.experiments.data.base import CHARACTERS, Text, numbers, vocabulary

__all__ = ["load_stdlib", "load_stdlib_characters"]

_TOKEN = re.compile(r"[A-Za-z_]+|[0-9]+|\S")
_UNKNOWN, _NUMBER, _END = "<unk>", "N", "<eos>"
_PARTS = {8: "valid", 9: "test"}


def load_stdlib(words: int = 1000, train: int = 100_000, others: int = 10_000) -> Text:
    """Load the modules in the order of their names: of every ten, eight for training, one for validation and one for
    testing.

    Words, punctuation and ``N`` for every number are tokens; a line that has any ends with ``<eos>``.

    Args:
        words: size of the vocabulary: the most frequent words of the training text and ``<unk>``.
        train: tokens to train with.
        others: tokens of each of the other two parts.

    Example:
        >>> text = load_stdlib()
        >>> len(text.train), len(text.test), len(text.words)
        (100000, 10000, 1000)
    """
    cut, digest = _read({"train": train, "valid": others, "test": others}, _tokens)
    known = vocabulary(cut["train"], words, [_UNKNOWN])
    first, second, third = (numbers(part, known) for part in cut.values())
    return Text("stdlib", first, second, third, known, digest)


def load_stdlib_characters(train: int = 2_000_000, others: int = 100_000) -> Text:
    """Load the same modules in the same parts as characters; the vocabulary is ``CHARACTERS``.

    Args:
        train: characters to train with.
        others: characters of each of the other two parts.

    Example:
        >>> text = load_stdlib_characters(train=50_000, others=1000)
        >>> len(text.train), len(text.test), len(text.words)
        (50000, 1000, 97)
    """
    cut, digest = _read({"train": train, "valid": others, "test": others}, list)
    first, second, third = (numbers(part, CHARACTERS) for part in cut.values())
    return Text("stdlib characters", first, second, third, CHARACTERS, digest)


def _read(wanted: Mapping[str, int], split: Callable[[str], Iterable[str]]) -> tuple[dict[str, list[str]], str]:
    """Read that many tokens of each part, and return them with the SHA-256 of the modules that were read."""
    tokens: dict[str, list[str]] = {part: [] for part in wanted}
    sha = hashlib.sha256()
    for number, path in enumerate(sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))):
        part = _PARTS.get(number % 10, "train")
        if len(tokens[part]) < wanted[part]:
            text = path.read_text(encoding="utf-8")
            sha.update(text.encode())
            tokens[part] += split(text)
        if all(len(tokens[each]) >= wanted[each] for each in wanted):
            break
    return {part: tokens[part][: wanted[part]] for part in wanted}, sha.hexdigest()


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    for line in text.splitlines():
        tokens = [_NUMBER if token[0].isdigit() else token for token in _TOKEN.findall(line)]
        found += [*tokens, _END] if tokens else []
    return found
