"""Penn Treebank as Mikolov prepared it: one sentence a line, 10,000 words."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gradwire_lab.experiments.data.base import Text, file_of, numbers, refuse, vocabulary

__all__ = ["holds", "load"]

LOOKS = "ptb.train.txt, ptb.valid.txt and ptb.test.txt"

_END = "<eos>"
_PARTS = ("train", "valid", "test")


def holds(folder: Path) -> bool:
    """Return whether one of the files exists, here or in the folders of their archive."""
    return any((_root(folder) / f"ptb.{part}.txt").exists() for part in _PARTS)


def load(folder: Path) -> Text:
    """Load the three texts, with ``<eos>`` for every line end.

    Raises:
        ConfigError: a file is missing, empty, not text, or has a word that the training text does not have.

    Source:
        M. Marcus, B. Santorini, M. Marcinkiewicz, "Building a Large Annotated Corpus of English: The Penn Treebank",
        Computational Linguistics 1993; T. Mikolov et al., "Recurrent Neural Network Based Language Model",
        INTERSPEECH 2010.
    """
    root = _root(folder)
    texts = {part: _read(root, part) for part in _PARTS}
    tokens = {part: text.replace("\n", f" {_END} ").split() for part, text in texts.items()}
    words = vocabulary(tokens["train"], len(tokens["train"]))
    known = set(words)
    for part in _PARTS[1:]:
        strange = next((token for token in tokens[part] if token not in known), None)
        if strange is not None:
            refuse(root / f"ptb.{part}.txt", repr(strange), "words of ptb.train.txt and <unk> for all others")
    digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()
    train, valid, test = (numbers(tokens[part], words) for part in _PARTS)
    return Text("ptb", train, valid, test, words, digest)


def _root(folder: Path) -> Path:
    found = [folder / "simple-examples" / "data", folder / "data"]
    return next((path for path in found if path.is_dir()), folder)


def _read(root: Path, part: str) -> str:
    expected = "sentences, one a line, in UTF-8"
    path = file_of(root, f"ptb.{part}.txt", expected)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        refuse(path, f"byte {error.object[error.start]:#04x} at {error.start}", expected)
    if not text.strip():
        refuse(path, "no word", expected)
    if not text.endswith("\n"):
        refuse(path, f"{text[-20:]!r} at its end", f"{expected}, the last line ended too")
    return text
