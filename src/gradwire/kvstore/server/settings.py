"""Settings of a server's optimizer by their numbers, and the optimizer's states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.optimizer_states import from_bytes, to_bytes
from gradwire.kvstore.protocol.updater import OptimizerConfig, Updater
from gradwire.kvstore.server.stored_part import AHEAD, StoredPart

__all__ = ["SETTINGS", "OptimizerSettings"]

SETTINGS = 2 * AHEAD
"""Settings of the optimizer that pushes may name: a learning rate may change in every step."""


class OptimizerSettings:
    """The settings, each with the states with which it continues.

    Args:
        part: finds a key alone, or refuses it.
    """

    def __init__(self, part: Callable[[StoreKey], StoredPart]) -> None:
        self.updaters: dict[int, Updater] = {}
        self.saved: dict[StoreKey, dict[str, Any]] = {}
        """States of a snapshot, for the first setting."""
        self.first: int | None = 1
        """The largest number that the first setting may have; None: a snapshot of an earlier version does not say."""
        self._part = part

    def check(self, number: int) -> None:
        """Refuse a push that names an unknown setting.

        Raises:
            WireError: the setting is unknown.
        """
        if number and number not in self.updaters:
            raise WireError(f"a push names optimizer setting {number}, which was never sent")

    def declare(self, number: int, config: OptimizerConfig, *, joined: bool) -> int:
        """Register a setting under a number, and forget the oldest of too many.

        Args:
            number: the worker's.
            config: name and numbers of the optimizer.
            joined: true: the worker came later, and counts its settings from 1.

        Returns:
            The number by which pushes name it.

        Raises:
            ConfigError: another worker gave this number to another setting.
            WireError: numbers were left out.
        """
        newest = self._newest()
        if newest is not None and joined:
            number = self._joined_number(config)
        elif newest is None and self.first is not None and number > self.first:
            # Those of all others would be forgotten at once.
            raise WireError(f"the first optimizer setting must have a number <= {self.first}, got {number}")
        elif newest is not None and number > max(self.updaters) + 1:
            raise WireError(f"optimizer setting {number} is not the next one, {max(self.updaters) + 1}")
        known = self.updaters.get(number)
        if known is not None and known.config != config:
            raise ConfigError(
                f"set_optimizer must get the same values from all workers: another worker's call {number} gave "
                f"{known.config}, this one's {config}"
            )
        if known is None:
            same = newest is not None and newest.config.name == config.name
            self.updaters[number] = newest.with_config(config) if same and newest is not None else Updater(config)
            oldest = max(self.updaters) - SETTINGS
            self.updaters = {n: each for n, each in self.updaters.items() if n > oldest}
            if self.saved:
                self._load(self.updaters[number], self.saved)
                self.saved = {}
        return number

    @property
    def first_after_restart(self) -> int | None:
        """The largest number that the first setting may have on a server that continues from here."""
        if self.updaters:
            return max(self.updaters) + SETTINGS
        return None if self.first is None else max(self.first, SETTINGS)

    def states(self) -> dict[StoreKey, dict[str, Any]]:
        """Return the states of the optimizer, by key."""
        newest = self._newest()
        return self.saved if newest is None else newest.state_dict()

    def to_bytes(self) -> bytes:
        """Encode the states for a message.

        Raises:
            ConfigError: there is no optimizer.
        """
        newest = self._newest()
        if newest is None:
            raise ConfigError("a store has optimizer states after set_optimizer, and not before")
        return to_bytes(newest.state_dict(), newest.config)

    def require_any(self) -> None:
        """Refuse states if there is no optimizer.

        Raises:
            ConfigError: there is no optimizer.
        """
        if not self.updaters:
            raise ConfigError("optimizer states are loaded after set_optimizer, and not before")

    def restore(self, data: bytes) -> None:
        """Restore the states from the bytes of ``to_bytes``."""
        self._load(self.updaters[max(self.updaters)], from_bytes(data)[0])

    def _load(self, updater: Updater, states: Mapping[StoreKey, Mapping[str, Any]]) -> None:
        for key, state in states.items():
            updater.config.check_state(key, state, self._part(key).value)
        updater.load_state_dict(states)

    def _joined_number(self, config: OptimizerConfig) -> int:
        """Translate the number of a setting from a process that came later, which counts from 1, to the server's own
        count.
        """
        same = [number for number, each in self.updaters.items() if each.config == config]
        return max(same, default=max(self.updaters) + 1)

    def _newest(self) -> Updater | None:
        return self.updaters[max(self.updaters)] if self.updaters else None
