"""Decisions that were made: kept for a checkpoint, refused if they cannot be carried, and made again in another run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gradwire.auto.choices import BUDGETS, from_config
from gradwire.compressors.base import Compressor
from gradwire.engine.plan import Named
from gradwire.errors import ConfigError, is_int, require

__all__ = ["Decisions"]

WEIGHTS = tuple({each.weights: None for each in BUDGETS.values() if each.weights is not None})
"""The methods that may be chosen for weights."""

Decision = dict[str, Any]
"""The number of a step, and the "choices" of that step: methods, each with a strategy and the names of parameters.
Where weights are gathered with a method that was chosen, also this, as "weights"."""


class Decisions:
    """The decisions of an exchange, in the form in which a checkpoint has them.

    Args:
        shapes: names and shapes of all parameters.
        given: ``report()`` of an earlier run, or the "decisions" in it, to be made again; None: new ones are made.

    Attributes:
        made: decisions of this run.
        repeated: decisions that are made again; None: new ones are made.

    Raises:
        ConfigError: decisions that are none, or for other parameters.
    """

    def __init__(self, shapes: Sequence[Named], given: object = None) -> None:
        self._names = {name for name, _ in shapes}
        self._check: Callable[[Compressor], None] | None = None
        self.repeated = None if given is None else _checked(given, self._names)
        self.made: list[Decision] = []

    def scatter(self, check: Callable[[Compressor], None]) -> None:
        """Refuse from now on what a reduce-scatter does not carry; ``check`` refuses a method.

        Raises:
            ConfigError: decisions that are to be made again have such a method.
        """
        self._check = check
        self._refuse(self.repeated or [])

    def add(self, step: int, choices: Sequence[Mapping[str, Any]], weights: str | None) -> None:
        """Note a decision."""
        gathered = {} if weights is None else {"weights": weights}
        self.made.append({"step": step, "choices": [dict(each) for each in choices], **gathered})

    def due(self, step: int) -> list[Decision]:
        """Return those that are to be made again in this step, and note that they were made."""
        due = [each for each in self.repeated or [] if each["step"] == step]
        self.made += [dict(each) for each in due]
        return due

    def check_state(self, state: Mapping[str, Any], frozen: Iterable[str]) -> None:
        """Refuse a state whose decisions cannot be gone on with here; see ``AutoController.check_state``."""
        self._refuse(_checked(state.get("decisions", []), {*self._names, *frozen}))

    def resume(self, state: Mapping[str, Any], step: int) -> Decision | None:
        """Take over the decisions of a state that was checked.

        Args:
            step: number of steps that were made.

        Returns:
            The decision with which it goes on, with those choices that are possible here; None: it goes on
            uncompressed.
        """
        self.made = [dict(each) for each in state.get("decisions", [])]
        known = self.made if self.repeated is None else self.repeated
        past = [each for each in known if each["step"] <= step]
        last: Decision = past[-1] if past else {"choices": []}
        if self.repeated is not None and past:
            return last
        if not last["choices"] and "weights" not in last:
            return None
        possible = {**last, "choices": self._still_possible(last["choices"])}
        if possible != last:
            # It is another decision than the saved one, and a run that repeats this one must make it, too.
            self.made.append({**possible, "step": step + 1})
        return possible

    def _still_possible(self, choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The choices of a saved decision that are possible here: of parameters that are still trained, and without
        those of hosts, which may be others now, and have different numbers of ranks.
        """
        found = list[dict[str, Any]]()
        for each in choices:
            trained = [name for name in each["params"] if name in self._names]
            if trained and not from_config(each).on_hosts:
                found.append({**each, "params": trained})
        return found

    def _refuse(self, decisions: Sequence[Mapping[str, Any]]) -> None:
        """Refuse decisions whose methods this exchange cannot carry."""
        if self._check is None:
            return
        for choice in (from_config(each) for decision in decisions for each in decision["choices"]):
            self._check(choice.compressor)
            lost = choice.on_hosts and choice.keeps
            words = (
                f"without methods over {choice.strategy.name!r} that keep values back, which a reduce-scatter does not "
                "carry"
            )
            require(not lost, "decisions", words, choice.label)


def _checked(decisions: object, names: set[str]) -> list[Decision]:
    """Return decisions in the form in which they are made; refuse what has another, or names other parameters."""
    form = "what decisions() of a state returned"
    if isinstance(decisions, Mapping):
        decisions = decisions.get("decisions", decisions)
    require(isinstance(decisions, Sequence) and not isinstance(decisions, str), "decisions", form, decisions)
    assert isinstance(decisions, Sequence)
    for each in decisions:
        right = isinstance(each, Mapping) and is_int(each.get("step"), 1) and isinstance(each.get("choices"), list)
        require(right, "decisions", form, each)
        require(each.get("weights") in (None, *WEIGHTS), "decisions", f"with weights in {WEIGHTS}", each)
        for choice in each["choices"]:
            made = from_config(choice)
            made.strategy.check(made.compressor)
            require(isinstance(choice.get("params"), list), "decisions", form, choice)
            unknown = [name for name in choice["params"] if name not in names]
            if unknown:
                raise ConfigError(f"decisions must be of this model's parameters, got {unknown[0]!r}")
    return [dict(each) for each in decisions]
