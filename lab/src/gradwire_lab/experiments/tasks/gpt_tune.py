"""Fine-tuning of the GPT of ``gpt`` on other text: by default on English, the prose of Python's language reference.

A run begins with the parameters of an earlier one, ``gradwire train gpt_tune --start FOLDER``; without any it is
training from the beginning, to compare with.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gradwire_lab.experiments.data.base import Text
from gradwire_lab.experiments.data.topics import load_topics
from gradwire_lab.experiments.recipe import Recipe
from gradwire_lab.experiments.tasks._tokens import NextCharacter

__all__ = ["GPTTuning"]


class GPTTuning(NextCharacter):
    """Fine-tuning that is tested on topics not trained on. The peak learning rate is a third of the model's own.

    Example:
        >>> task = GPTTuning()
        >>> task.data.name, task.model_name, task.steps(epochs=2), task.recipe.lr
        ('python topics', 'gpt_small', 200, 0.0003)
    """

    name = "gpt_tune"

    def __init__(self, model: str | None = None, folder: Path | None = None, recipe: Recipe | None = None) -> None:
        super().__init__(model, folder, recipe)
        if recipe is None:
            self.recipe = replace(self.recipe, lr=0.3 * self.recipe.lr, epochs=2)

    def embedded(self) -> Text:
        return load_topics()
