"""The table of states: its actions are there, and each of its rows can come about."""

from __future__ import annotations

import inspect
import re

import pytest

from gradwire.auto.controller import AutoController
from gradwire.auto.states import TABLE, AutoState, Event

FROM_OUTSIDE = {Event.STEP, Event.WINDOW_FULL, Event.GLANCE, Event.RESUMED, Event.NONE_LEFT}
"""Events that no action returns."""

ROWS = [(state, event, *row) for state, rows in TABLE.items() for event, row in rows.items()]


def events_of(action: str) -> set[Event]:
    """The events that are named in an action's code, or in that of a method that it ends with."""
    code = inspect.getsource(getattr(AutoController, f"_{action}"))
    if "return self._no_gain(" in code:
        code += inspect.getsource(AutoController._no_gain)
    return {Event[name] for name in re.findall(r"Event\.(\w+)", code)}


@pytest.mark.parametrize(("state", "event", "following", "actions"), ROWS)
def test_an_action_is_a_method_and_only_the_last_one_returns_an_event(
    state: AutoState, event: Event, following: AutoState, actions: tuple[str, ...]
) -> None:
    for action in actions:
        returns = inspect.signature(getattr(AutoController, f"_{action}")).return_annotation
        assert returns == "None" or action == actions[-1]


def test_each_event_that_has_a_row_is_returned_by_an_action_that_leads_to_its_state() -> None:
    returned = {(then, event) for *_, then, actions in ROWS if actions for event in events_of(actions[-1])}
    waiting = {(state, event) for state, event, *_ in ROWS if event not in FROM_OUTSIDE}
    assert waiting - returned == set()
    assert {event for _, event in waiting} | FROM_OUTSIDE == set(Event)


def test_each_state_can_be_reached_and_shows_a_phase_that_is_documented() -> None:
    reached = {AutoState.WATCHING}
    for _ in AutoState:
        reached |= {then for state, _, then, _ in ROWS if state in reached}
    assert reached | {AutoState.REPLAYING} == set(AutoState) == set(TABLE)
    assert {state.phase for state in AutoState} == {"watching", "probing", "holding", "replaying"}


def test_what_cannot_happen_in_a_state_is_refused() -> None:
    for state in AutoState:
        assert (Event.GLANCE in TABLE[state]) == (state is AutoState.RESTING)
        assert Event.STEP in TABLE[state]
