"""Settings of a server's optimizer by their numbers, and the optimizer's states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.optimizer_states import to_bytes
from gradwire.kvstore.protocol.updater import OptimizerConfig, Updater
from gradwire.kvstore.server.stored_part import AHEAD, StoredPart

__all__ = ["SETTINGS", "OptimizerSettings"]

SETTINGS = 2 * AHEAD
"""Settings of the optimizer that are kept: a learning rate may change in every step, and each worker names its own."""


class OptimizerSettings:
    """The settings, each with the states with which it continues.

    Args:
        part: finds a key alone, or refuses it.

    Attributes:
        updaters: settings by number, those that were named last at the end.
    """

    def __init__(self, part: Callable[[StoreKey], StoredPart]) -> None:
        self.updaters: dict[int, Updater] = {}
        self._newest = 0
        self._part = part

    def check(self, number: int) -> None:
        """Refuse a push that names an unknown setting.

        Raises:
            WireError: the setting is unknown.
        """
        if number and number not in self.updaters:
            raise WireError(f"a push names optimizer setting {number}, which was never sent")
        self._name(number)

    def check_value(self, part: StoredPart, number: int, *, alone: bool) -> None:
        """Refuse a push that the setting with which it will be applied cannot apply.

        Args:
            number: number that the push names; 0: none.
            alone: true: pushes count one by one, those without a number by the newest setting.

        Raises:
            ConfigError: an optimizer for a value of integers.
        """
        setting = self.updaters.get(number or (max(self.updaters, default=0) if alone else 0))
        if setting is not None:
            setting.config.check_value(part.keys[0], part.value.dtype)

    def declare(self, number: int, config: OptimizerConfig, *, joined: bool) -> tuple[int, bool]:
        """Register a setting under a number, and forget the one that was not named for the longest of too many.

        Args:
            joined: true: the worker came later, and counts its settings from 1.

        Returns:
            The number by which pushes name it, and whether it is a new one.

        Raises:
            ConfigError: another worker gave this number to another setting.
            WireError: numbers were left out.
        """
        if self._newest and joined:
            number = self._joined_number(config)
        elif number > self._newest + 1:
            # Those of all others would be forgotten at once.
            lost = (
                "where the server was restarted without a snapshot, or with an older copy of it, the ones before are "
                "lost with its values"
            )
            raise WireError(f"optimizer setting {number} is not the next one, {self._newest + 1}: {lost}")
        known = self.updaters.get(number)
        if known is not None and known.config != config:
            raise ConfigError(
                f"set_optimizer must get the same values from all workers: another worker's call {number} gave "
                f"{known.config}, this one's {config}"
            )
        if known is None:
            self.add(number, config)
        self._name(number)
        return number, known is None

    def add(self, number: int, config: OptimizerConfig) -> None:
        """Add a setting, which shares the states of the newest if both are of one optimizer."""
        newest = self.updaters.get(self._newest)
        same = newest is not None and newest.config.name == config.name
        # The states go on: a new learning rate must not forget the moments.
        self.updaters[number] = newest.with_config(config) if same and newest is not None else Updater(config)
        self._newest = max(self._newest, number)
        if len(self.updaters) > SETTINGS:
            # Never the newest: the next setting continues from its states.
            del self.updaters[next(each for each in self.updaters if each != self._newest)]

    def states(self) -> dict[StoreKey, dict[str, Any]]:
        """Return the states of the optimizer, by key."""
        return self.updaters[self._newest].state_dict() if self.updaters else {}

    def to_bytes(self) -> bytes:
        """Encode the states for a message.

        Raises:
            ConfigError: there is no optimizer.
        """
        if not self.updaters:
            raise ConfigError("a store has optimizer states after set_optimizer, and not before")
        newest = self.updaters[self._newest]
        return to_bytes(newest.state_dict(), newest.config)

    def require_any(self) -> None:
        """Refuse states if there is no optimizer.

        Raises:
            ConfigError: there is no optimizer.
        """
        if not self.updaters:
            raise ConfigError("optimizer states are loaded after set_optimizer, and not before")

    def load(self, states: Mapping[StoreKey, Mapping[str, Any]]) -> None:
        """Restore the states, by key.

        Raises:
            ConfigError: they are not those of this optimizer.
        """
        newest = self.updaters[self._newest]
        # All are checked before one is loaded, so that a refusal changes nothing.
        for key, state in states.items():
            newest.config.check_state(key, state, self._part(key).value)
        newest.load_state_dict(states)

    def _name(self, number: int) -> None:
        """Note that a setting was named."""
        if number in self.updaters and next(reversed(self.updaters)) != number:
            self.updaters[number] = self.updaters.pop(number)

    def _joined_number(self, config: OptimizerConfig) -> int:
        """Translate the number of a setting from a process that came later, which counts from 1, to the server's own
        count.
        """
        same = [number for number, each in self.updaters.items() if each.config == config]
        return max(same, default=self._newest + 1)
