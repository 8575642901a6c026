"""Training of a GPT as is usual today, on characters: by default of the standard library's source text."""

from __future__ import annotations

from gradwire_lab.experiments.data.base import Text
from gradwire_lab.experiments.data.stdlib import load_stdlib_characters
from gradwire_lab.experiments.tasks._tokens import NextCharacter

__all__ = ["GPT"]


class GPT(NextCharacter):
    """A GPT that is tested on other modules than it is trained on. A folder may hold any text; the full size reads its
    bytes.

    Example:
        >>> task = GPT()
        >>> task.data.name, task.model_name, task.steps(epochs=20)
        ('stdlib characters', 'gpt_small', 2000)
    """

    name = "gpt"

    def embedded(self) -> Text:
        return load_stdlib_characters()
