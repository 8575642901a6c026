"""Reporting: the choices with the numbers behind them, and the lines that say what was decided and why.

Rank 0 alone shows lines. A line is shown if it differs from the last one, so that uncompressed steps that were made
only to measure their times give no line.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradwire.auto.choices import DENSE, MESSAGES, Choice, ErrorBudget, from_config
from gradwire.auto.decide import Stage, exposed
from gradwire.auto.exchanged_steps import EXPOSED_SHARE, advice
from gradwire.auto.host_links import HostWire
from gradwire.auto.probe import compressible
from gradwire.auto.search import Proposal
from gradwire.auto.step_model import StepModel
from gradwire.auto.step_record import StepWindow
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named
from gradwire.notices import log, tell

__all__ = ["Reporter", "time_text"]

FIGURES = ("seconds", "dense_seconds", "exposed", "dense_exposed", "error")
"""Predictions for a bucket, in the order of its row."""

GATHERED = ("seconds", "dense_seconds")
"""Predictions for all gathers of a step."""

MINOR = 0.1
"""The share of all elements below which what has another choice is not shown alone."""

SEEN_AFTER = 48
"""Steps after a decision from which on a line says what came of it."""

UNMEASURED_WINDOWS = 3
"""Windows in a row in which nothing could be measured, after which that is said."""


class Reporter:
    """The report of an exchange's choices.

    Args:
        exchange: exchange of which it tells.
        shapes: names and shapes of all parameters.
        budget: error that choices may add.
        model: model of its steps.

    Attributes:
        rows: the choice of each bucket and the numbers behind it; times in seconds.
        weights: the same for the weights of all modules; None: nobody watches how they are gathered.
    """

    def __init__(self, exchange: Exchange, shapes: Sequence[Named], budget: ErrorBudget, model: StepModel) -> None:
        # Weakly, because the exchange holds the controller, which holds this: a cycle would outlive the training.
        self._exchange: Exchange = weakref.proxy(exchange)
        self._shapes, self._budget, self._model = dict(shapes), budget, model
        self._advises = True
        """True until the exchange of the optimizer's steps was named, where it is possible."""
        self._unmeasured = 0
        self.restart()

    def restart(self) -> None:
        """Forget what was decided."""
        self.rows: list[dict[str, Any]] = []
        self.weights: dict[str, Any] | None = None
        self._shown: frozenset[str] | None = None
        self._effect: tuple[int, float] | None = None
        """The step of the last decision whose effect was not shown yet, and the seconds of a step before it."""

    # Rows of the report.

    def repeat(self, choices: Sequence[Mapping[str, Any]], weights: str | None = None) -> None:
        """Report what a repeated decision sends, as nothing is known of buckets; what is uncompressed is last."""
        shares = [(from_config(each), list(each["params"])) for each in choices]
        decided = {name for _, names in shares for name in names}
        shares.append((DENSE, [name for name in self._shapes if name not in decided]))
        self.rows = []
        self.weights = None if weights is None else {"choice": weights, **dict.fromkeys(GATHERED)}
        for choice, names in shares:
            params = [(name, self._shapes[name]) for name in names]
            if names:
                self.rows.append(self._row(params, choice, dict.fromkeys(FIGURES)))

    def explain(
        self,
        seen: StepWindow,
        chosen: Sequence[Choice],
        weights: str | None = None,
        stages: Sequence[Stage] | None = None,
    ) -> None:
        """Report the choice for each bucket of a window, and for weights, and the predictions that speak for it."""
        model = self._model
        self.rows = []
        if model.link.wire is None:
            return
        stages = stages or model.stages(seen, weights)
        if seen.gathers and model.ways_of_weights != [None]:
            gathers = sum(each.gathers for each in stages), sum(model.gathers(seen, None))
            self.weights = {"choice": weights or DENSE.label, **dict(zip(GATHERED, gathers, strict=True))}
        options = model.options(stages, chosen)
        coded = [
            model.seconds(params, choice) if option is None else option.seconds
            for params, choice, option in zip(seen.buckets, chosen, options, strict=True)
        ]
        plain = [model.seconds(params, DENSE) for params in seen.buckets]
        waits, plain_waits = exposed(stages, coded, seen.buffers), exposed(stages, plain, seen.buffers)
        noise = model.noise(seen)
        for number, (params, choice, option) in enumerate(zip(seen.buckets, chosen, options, strict=True)):
            error = option.error if option is not None and noise else None
            figures = coded[number], plain[number], waits[number], plain_waits[number], error
            self.rows.append(self._row(params, choice, dict(zip(FIGURES, figures, strict=True))))

    def explain_uncompressed(self, seen: StepWindow) -> None:
        """Report that all buckets of a window travel uncompressed."""
        self.explain(seen, [DENSE] * len(seen.buckets))

    def _row(self, params: Sequence[Named], choice: Choice, figures: Mapping[str, float | None]) -> dict[str, Any]:
        return {
            "bucket": len(self.rows),
            "elements": sum(math.prod(shape) for _, shape in params),
            "choice": self.label(choice),
            **figures,
            "budget": self._budget.variance,
            "compressed": 0 if choice.dense else len(compressible(params, self._exchange.methods.policy, choice)),
        }

    def proposal(self, found: Proposal) -> dict[str, Any]:
        """Report a decision that is not made, and the seconds of a step with it and with each method alone."""
        self.explain(found.seen, found.chosen, found.weights, found.stages)
        alone = self._model.alone(found.seen, self._model.stages(found.seen, None))
        return {
            "seconds": self._model.predicted(found.chosen, found.seen, found.stages, found.weights),
            "alone": {self.label(each): seconds for each, seconds in alone.items()},
            "buckets": [dict(each) for each in self.rows],
            **({} if found.weights is None else {"weights": found.weights}),
        }

    def report(self, seen: StepWindow | None) -> dict[str, Any]:
        """Return the choices, and the link and the last window from which they follow."""
        wire, row = self._model.link.wire, None
        if wire is not None:
            row = {"bits_per_second": 8 * wire.rate, "latency": wire.latency}
        if isinstance(wire, HostWire) and row is not None:
            row |= {"ranks_per_host": wire.size, "shared": wire.shared, "inside_bits_per_second": 8 * wire.inside}
        return {
            "buckets": [dict(each) for each in self.rows],
            **({} if self.weights is None else {"weights": dict(self.weights)}),
            "link": row,
            "step": None if seen is None else {"seconds": seen.period, "exposed": seen.exposed},
        }

    def figures(self, seen: StepWindow | None) -> dict[str, float | None]:
        """Return the figures of the link and of the last window."""
        wire = self._model.link.wire
        return {
            "link_bits_per_second": None if wire is None else 8 * wire.rate,
            "link_latency": None if wire is None else wire.latency,
            "step_seconds": None if seen is None else seen.period,
            "exposed_seconds": None if seen is None else seen.exposed,
        }

    def label(self, choice: Choice) -> str:
        """The name of a choice in reports."""
        return choice.label.replace(MESSAGES, "reduce_scatter") if self._model.scatters else choice.label

    # Lines for the user.

    def advise_nothing(self) -> None:
        """Never name the exchange of the optimizer's steps."""
        self._advises = False

    def status(self, doing: str, seen: StepWindow | None, since: int | None) -> list[tuple[str, str]]:
        """Describe what is chosen, why and what is waited for, as pairs of a subject and a sentence.

        Args:
            doing: present activity, in words.
            seen: the last window.
            since: step of the last decision.
        """
        lines = [("method", f"auto, budget {self._budget.name!r}: {doing}")]
        if self.rows:
            lines.append(("chosen", self._shares() + (f", since step {since}" if since is not None else "")))
        if seen is not None:
            first = self._model.dense
            before = f", {time_text(first.period)} uncompressed" if first is not None and first is not seen else ""
            waits = f"{time_text(seen.exposed)} of it wait for the exchange"
            lines.append(("step", f"{time_text(seen.period)} now{before}; {waits}"))
        wire = self._model.link.wire
        if wire is not None:
            lines.append(("link", f"{_rate(wire.rate)}, latency {time_text(wire.latency)}"))
        return lines

    def announcement(self, *, repeats: bool) -> str:
        """The line of the beginning."""
        watches = "gradients travel uncompressed while it watches the first steps, and then it chooses"
        told = "it repeats the decisions of an earlier run" if repeats else watches
        return f"auto, budget {self._budget.name!r}: {told} (docs/auto.md)"

    def decided(self, seen: StepWindow) -> None:
        """Show a line for a switch, and log one for each bucket."""
        if self._exchange.channel.rank != 0:
            return
        model = self._model
        expected = model.predicted([model.choice(params) for params in seen.buckets], seen, weights=model.weights)
        before = model.uncompressed(seen)
        if _elements(self.rows).keys() == {DENSE.label} and model.weights is None:
            self._show(_main(self.rows), seen, "gradients travel uncompressed again")
            return
        times = f"{time_text(before)} -> {time_text(expected)} a step expected"
        named = self._advice(sum(row["exposed"] for row in self.rows), expected, seen)
        chosen = _main(self.rows) | ({f"{model.weights} for weights"} if model.weights is not None else set())
        if self._show(chosen, seen, f"{self._shares()}; {times}{named}"):
            self._effect = self._exchange.step, before if model.dense is None else model.dense.period
        for row in self.rows:
            log.debug(
                "bucket %d, %d elements: %s: %s exposed instead of %s; error %.2g of %.2g",
                row["bucket"],
                row["elements"],
                row["choice"],
                time_text(row["exposed"]),
                time_text(row["dense_exposed"]),
                row["error"] or 0.0,
                row["budget"],
            )

    def stays_uncompressed(self, seen: StepWindow, why: str) -> None:
        """Show that nothing is to be gained; ``why`` begins with "because"."""
        self._show(frozenset({DENSE.label}), seen, f"gradients stay uncompressed, {why}")

    def _shares(self) -> str:
        """The methods of all buckets in words, and that of the weights where it is decided here."""
        shares = _shares(self.rows)
        if self.weights is None or self._model.ways_of_weights == [None]:
            return shares
        choice = self.weights["choice"]
        return f"{shares}, {'uncompressed' if choice == DENSE.label else f'{choice} for the'} weights"

    def left_methods(self, why: str) -> None:
        """Log that uncompressed steps are made to see how they do."""
        if self._exchange.channel.rank == 0:
            log.debug("step %d: uncompressed steps again, to see how they do: %s", self._exchange.step, why)

    def nothing_saves(self, seen: StepWindow, margin: float) -> str:
        """The reason for which methods that were tried are not used."""
        why = f"because nothing within budget {self._budget.name!r} saves {100 * margin:.0f} % of a step"
        return why + self._advice(seen.exposed, seen.period, seen)

    def count_window(self, *, measured: bool) -> None:
        """Warn when nothing could be measured in several windows in a row."""
        self._unmeasured = 0 if measured else self._unmeasured + 1
        if self._unmeasured == UNMEASURED_WINDOWS and self._exchange.channel.rank == 0:
            log.warning(
                "auto could measure nothing in %d windows of steps, because few steps in a row exchange the same "
                "buckets: the exchange stays as it is (docs/auto.md)",
                UNMEASURED_WINDOWS,
            )

    def show_effect(self, seen: StepWindow) -> None:
        """Show once after a decision what came of it, when it has lasted for ``SEEN_AFTER`` steps."""
        if self._effect is None or self._exchange.channel.rank != 0:
            return
        step, before = self._effect
        if self._exchange.step < step + SEEN_AFTER:
            return
        self._effect = None
        model = self._model
        sent = model.sent(seen.buckets, model.choice) + sum(each.sent for each in seen.gathers)
        plain = sum(model.sent_for_weights(each, None) for each in seen.gathers)
        dense = model.sent(seen.buckets, lambda _: DENSE) + plain
        tell(
            "step %d: %s a step measured, %s before: %.2g times as fast, with %.3g times fewer bytes",
            self._exchange.step,
            time_text(seen.period),
            time_text(before),
            before / max(seen.period, 1e-9),
            dense / max(sent, 1),
            quiet=self._exchange.quiet,
        )

    def _show(self, choices: frozenset[str], seen: StepWindow, text: str) -> bool:
        """Show a line where it says something else than the last one; return whether it was shown.

        Args:
            choices: labels of the choices of all but a minor part; they are the same again where uncompressed steps
                were only seen to know their times.
            text: the decision, in words.
        """
        if choices == self._shown or self._exchange.channel.rank != 0:
            return False
        self._shown = choices
        wire, waits = self._model.link.wire, self._model.dense or seen
        tell(
            "step %d: link %s, %.0f %% of a step waits for it: %s",
            self._exchange.step,
            _rate(wire.rate if wire else math.inf),
            100 * min(1.0, waits.exposed / max(waits.period, 1e-9)),
            text,
            quiet=self._exchange.quiet,
        )
        return True

    def _advice(self, waiting: float, step: float, seen: StepWindow) -> str:
        """Name once what takes fewer bytes than any method of gradients, where a step waits for most of its time."""
        if waiting <= EXPOSED_SHARE * step or seen.bears or not self._advises:
            return ""
        self._advises = False
        return f"; {advice(waiting / step)}"


def time_text(seconds: float) -> str:
    """A time in words.

    >>> time_text(2.694), time_text(0.0152), time_text(2.5e-5)
    ('2.69 s', '15.2 ms', '0.025 ms')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{round(1e3 * seconds, 4):.3g} ms"


def _rate(rate: float) -> str:
    """A rate of bytes a second in words.

    >>> _rate(2e7), _rate(1.2345e9)
    ('160 Mbit/s', '9.876 Gbit/s')
    """
    return f"{8e-9 * rate:.4g} Gbit/s" if rate >= 1.25e8 else f"{8e-6 * rate:.4g} Mbit/s"


def _shares(rows: Sequence[Mapping[str, Any]]) -> str:
    """The methods of all buckets in words, with the share of the elements that each of them has.

    >>> _shares([{"choice": "eden over two_phase", "elements": 94}, {"choice": "dense", "elements": 6}])
    'eden for 94 % of the gradients'
    >>> _shares([{"choice": "dense", "elements": 6}])
    'uncompressed gradients'
    """
    total = max(1, sum(row["elements"] for row in rows))
    share = _elements({**row, "choice": row["choice"].partition(" over ")[0]} for row in rows)
    share.pop(DENSE.label, None)
    named = [f"{method} for {100 * part / total:.0f} %" for method, part in sorted(share.items(), key=lambda x: -x[1])]
    return f"{', '.join(named)} of the gradients" if named else "uncompressed gradients"


def _elements(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The elements that each choice has in all buckets together."""
    found: dict[str, int] = {}
    for row in rows:
        found[row["choice"]] = found.get(row["choice"], 0) + row["elements"]
    return found


def _main(rows: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The choices of all buckets but for those that have only a minor part of the elements, however many buckets.

    >>> rows = [{"choice": "eden", "elements": 5}] * 40 + [{"choice": "bf16", "elements": 9}]
    >>> sorted(_main(rows)), sorted(_main([{**rows[0], "choice": "qsgd"}] * 40))
    (['eden'], ['qsgd'])
    """
    found = _elements(rows)
    return frozenset(choice for choice, part in found.items() if part >= MINOR * sum(found.values()))
