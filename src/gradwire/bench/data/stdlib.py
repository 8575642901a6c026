"""The source text of Python's standard library: what there is to read wherever Python runs.

The text changes with the version of Python; its digest goes into the results, and perplexities are compared within one.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from pathlib import Path

from gradwire.bench.data.base import Text, numbers, vocabulary

__all__ = ["load_stdlib"]

_TOKEN = re.compile(r"[A-Za-z_]+|[0-9]+|\S")
_UNKNOWN, _NUMBER, _END = "<unk>", "N", "<eos>"
_PARTS = {8: "valid", 9: "test"}


def load_stdlib(words: int = 1000, train: int = 100_000, others: int = 10_000) -> Text:
    """The modules in the order of their names: of ten, eight to train with, one to validate and one to test with.

    Words, punctuation and ``N`` for every number are tokens; a line that has any ends with ``<eos>``.

    Args:
        words: of the vocabulary, the most frequent of the training text and ``<unk>``.
        train: tokens to train with.
        others: tokens of each of the other two parts.

    Example:
        >>> text = load_stdlib()
        >>> len(text.train), len(text.test), len(text.words)
        (100000, 10000, 1000)
    """
    wanted = {"train": train, "valid": others, "test": others}
    tokens: dict[str, list[str]] = {part: [] for part in wanted}
    sha = hashlib.sha256()
    for number, path in enumerate(sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))):
        part = _PARTS.get(number % 10, "train")
        if len(tokens[part]) < wanted[part]:
            text = path.read_text(encoding="utf-8")
            sha.update(text.encode())
            tokens[part] += _tokens(text)
        if all(len(tokens[each]) >= wanted[each] for each in wanted):
            break
    cut = {part: tokens[part][: wanted[part]] for part in wanted}
    known = vocabulary(cut["train"], words, [_UNKNOWN])
    first, second, third = (numbers(cut[part], known) for part in wanted)
    return Text("stdlib", first, second, third, known, sha.hexdigest())


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    for line in text.splitlines():
        tokens = [_NUMBER if token[0].isdigit() else token for token in _TOKEN.findall(line)]
        found += [*tokens, _END] if tokens else []
    return found
