"""The states of ``auto``, what can happen in each, and what follows: all of it is in ``TABLE``.

    uncompressed    watching -> resting      nothing is to be gained: only some steps are timed
                    resting  -> woken        a look at them showed a change, which the next step judges
                    watching -> probing      something may be gained: one candidate is tried in each step
    with methods    holding                  candidates were chosen for some buckets; each window is compared with
                                             what uncompressed steps took
    repeated        replaying                the decisions of an earlier run are made in the same steps

Invariants:
    * All ranks are in the same state in the same step, because each event follows from numbers that are the same on all
      of them.
    * A state has a row for each event that can happen in it, and for no other: any other is a mistake in this package,
      and raises ``KeyError``.

An action is a method of ``AutoController``, with an underscore before its name, which gets what came with the event.
The last action of a row may return another event, which is looked up in the new state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType

__all__ = ["TABLE", "AutoState", "Event", "Row"]


class AutoState(Enum):
    """A state; its value is the phase that reports and metrics show."""

    WATCHING = "watching"
    RESTING = "resting"
    WOKEN = "woken"
    PROBING = "probing"
    HOLDING = "holding"
    REPLAYING = "replaying"

    @property
    def phase(self) -> str:
        """The phase for users, who need not tell apart how closely uncompressed steps are watched."""
        return AutoState.WATCHING.value if self in (AutoState.RESTING, AutoState.WOKEN) else str(self.value)


class Event(Enum):
    """Something that changes what is done, or that must be looked into."""

    STEP = auto()
    """The first bucket of a step comes."""
    WINDOW_FULL = auto()
    """The first bucket of a step comes, and there are as many steps as a window has."""
    GLANCE = auto()
    """The ranks may bring their times together beside a step that is left to DDP."""
    RESUMED = auto()
    """A state with methods was loaded."""

    MEASURED = auto()
    """A window has the same numbers on all ranks now."""
    UNMEASURED = auto()
    """Too few steps of a window can be compared."""
    CHANGED = auto()
    """Steps are not any more as they were when nothing was to be gained."""

    TOO_EARLY = auto()
    """Gradients have not settled, or steps are uncompressed by the policy in any case."""
    NO_GAIN = auto()
    """Nothing is to be gained by compressing."""
    NO_GAIN_YET = auto()
    """Nothing is to be gained, but the link or the noise is not known yet, so all steps are timed."""
    UNTRIED = auto()
    """Something may be gained, and not all candidates were tried on these buckets."""
    TRIED = auto()
    """Something may be gained, and all candidates were tried on these buckets."""
    ALL_TRIED = auto()
    """The last candidate was tried."""

    UNKNOWN = auto()
    """The uncompressed steps of these buckets are not known."""
    DOUBTED = auto()
    """Messages take another time than the model of the link says, or the link has changed."""
    NOT_BORNE = auto()
    """An optimizer has come that does not bear what a method keeps back."""
    SLOWER = auto()
    """Steps with methods take longer than uncompressed ones would."""
    PAYS = auto()
    """Steps with methods take no longer than uncompressed ones would."""

    NONE_LEFT = auto()
    """No bucket has a method any more, because what arrived of the last one was too wrong."""

    CHOSEN = auto()
    """Candidates for some buckets are better than what is in use by more than the margin."""
    NONE_CHOSEN = auto()
    """No compression is better than what is in use by more than the margin."""
    PROPOSED = auto()
    """A proposal was kept, because nothing is to be decided."""
    KEPT = auto()
    """Nothing is better than what is in use by more than the margin."""


Row = tuple[AutoState, tuple[str, ...]]
"""The next state, and the actions in their order."""

TABLE: Mapping[AutoState, Mapping[Event, Row]] = MappingProxyType(
    {
        AutoState.WATCHING: {
            Event.STEP: (AutoState.WATCHING, ()),
            Event.WINDOW_FULL: (AutoState.WATCHING, ("measure",)),
            Event.UNMEASURED: (AutoState.WATCHING, ()),
            Event.MEASURED: (AutoState.WATCHING, ("learn", "look_for_gain")),
            Event.TOO_EARLY: (AutoState.WATCHING, ()),
            Event.NO_GAIN_YET: (AutoState.WATCHING, ("lengthen_window",)),
            Event.NO_GAIN: (AutoState.RESTING, ("rest",)),
            Event.UNTRIED: (AutoState.PROBING, ("begin_trials", "try_next")),
            Event.TRIED: (AutoState.WATCHING, ("choose",)),
            Event.CHOSEN: (AutoState.HOLDING, ("switch",)),
            Event.PROPOSED: (AutoState.WATCHING, ("lengthen_window",)),
            Event.KEPT: (AutoState.WATCHING, ("find_no_gain",)),
            Event.RESUMED: (AutoState.HOLDING, ()),
        },
        AutoState.RESTING: {
            Event.STEP: (AutoState.RESTING, ()),
            Event.GLANCE: (AutoState.RESTING, ("glance",)),
            Event.CHANGED: (AutoState.WOKEN, ("wake",)),
        },
        AutoState.WOKEN: {
            Event.STEP: (AutoState.WATCHING, ("judge_change",)),
        },
        AutoState.PROBING: {
            Event.STEP: (AutoState.PROBING, ("try_next",)),
            Event.ALL_TRIED: (AutoState.PROBING, ("share_trials", "choose")),
            Event.CHOSEN: (AutoState.HOLDING, ("switch",)),
            Event.PROPOSED: (AutoState.WATCHING, ("lengthen_window",)),
            Event.KEPT: (AutoState.WATCHING, ()),
        },
        AutoState.HOLDING: {
            Event.STEP: (AutoState.HOLDING, ()),
            Event.WINDOW_FULL: (AutoState.HOLDING, ("measure",)),
            Event.UNMEASURED: (AutoState.HOLDING, ()),
            Event.MEASURED: (AutoState.HOLDING, ("learn", "look_for_loss")),
            Event.UNKNOWN: (AutoState.WATCHING, ("leave_methods",)),
            Event.DOUBTED: (AutoState.WATCHING, ("keep_rest", "leave_methods")),
            Event.NOT_BORNE: (AutoState.WATCHING, ("leave_methods",)),
            Event.SLOWER: (AutoState.WATCHING, ("note_setback", "keep_rest", "leave_methods")),
            Event.NONE_LEFT: (AutoState.WATCHING, ("leave_methods",)),
            Event.PAYS: (AutoState.HOLDING, ("choose",)),
            Event.CHOSEN: (AutoState.HOLDING, ("switch",)),
            Event.NONE_CHOSEN: (AutoState.WATCHING, ("switch",)),
            Event.KEPT: (AutoState.HOLDING, ("lengthen_window", "show_effect")),
        },
        AutoState.REPLAYING: {
            Event.STEP: (AutoState.REPLAYING, ("repeat_decision",)),
        },
    }
)
"""The events that can happen in each state, with the state that follows and the actions."""
