"""The report of a run: a paragraph on stderr, ``gradwire-report.json``, and a page with the same figures."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire._files import for_json, replace_text
from gradwire.run.page import bytes_text, page, percent_text, time_text, times_text
from gradwire.version import __version__

if TYPE_CHECKING:
    from gradwire.run.holds import Hold
    from gradwire.run.session import RunSession

__all__ = ["paragraph_of", "report_of", "write_report"]

LOSS = "loss within 0.5 % on the GPT on which that was measured (docs/auto.md)"

LITTLE = 0.03
"""The share of a step below which nothing is to be gained."""

VERSION = 1


def report_of(session: RunSession) -> dict[str, Any]:
    """Collect what is known, as plain numbers and words."""
    plain = session.plain
    return {
        "version": VERSION,
        "gradwire": __version__,
        "mode": session.mode,
        "seconds": time.time() - session.begun,
        "steps": session.steps,
        "models": [_model(each) for each in session.holds],
        "all_reduced": None
        if plain is None or session.holds or not plain.steps
        else {
            "step_seconds": _middle(plain.seconds.numbers()),
            "exposed_seconds": _middle(plain.exposed.numbers()) if plain.blocking else None,
            "step_bytes": plain.bytes_summed,
        },
        "loss": session.loss.numbers(),
        "notes": session.notes,
    }


def _model(held: Hold) -> dict[str, Any]:
    facts = held.facts()
    found: dict[str, Any] = {
        "kind": held.kind,
        "ranks": held.world,
        "elements": held.elements,
        "steps": held.steps,
        "left_alone": held.instead is not None,
        "before": held.before.as_dict(),
        "after": held.after.as_dict(),
        "gathered_share": held.gathered_share,
        **facts,
        "step_seconds": held.seconds.numbers(),
        "step_bytes_sent": held.bytes_sent.numbers(),
        "checks": held.checks,
    }
    return found


def paragraph_of(made: dict[str, Any]) -> str:
    """Say in a paragraph what a report has found, for its first model with the most elements."""
    models = [each for each in made["models"] if not each["left_alone"]]
    if not models:
        return _plain_paragraph(made)
    model = max(models, key=lambda each: each["elements"])
    if model["ranks"] == 1:
        return f"step {made['steps']}: the group has one rank, so nothing travels"
    step = (model.get("decisions") or {}).get("step")
    if step is None:
        return f"step {made['steps']}: its steps are too unlike each other to say anything; it goes on watching"
    return _watched(made, model, step) if made["mode"] == "watch" else _applied(made, model)


def _plain_paragraph(made: dict[str, Any]) -> str:
    found = made["all_reduced"]
    if found is None or not found["step_seconds"]:
        return f"step {made['steps']}: nothing was measured"
    if found["exposed_seconds"] is None:
        return (
            f"step {made['steps']}: a step of {time_text(found['step_seconds'])} has {bytes_text(found['step_bytes'])} "
            "in all_reduce, whose calls return before the sum is there, so it is not known how long that is waited for"
        )
    share = found["exposed_seconds"] / found["step_seconds"]
    return (
        f"step {made['steps']}: {percent_text(share)} of a step of {time_text(found['step_seconds'])} is spent in "
        f"all_reduce, of {bytes_text(found['step_bytes'])}"
    )


def _watched(made: dict[str, Any], model: dict[str, Any], step: dict[str, float]) -> str:
    share = min(1.0, step["exposed"] / max(step["seconds"], 1e-9))
    begin = (
        f"step {made['steps']}: {percent_text(share)} of a step of {time_text(step['seconds'])} waits for the network"
    )
    link = model["decisions"]["link"]
    if link is not None:
        begin += f" ({link['bits_per_second'] / 1e6:,.0f} Mbit/s)"
    if model["gathered_share"]:
        known = model["decisions"].get("weights") is not None
        begin += f", {percent_text(model['gathered_share'])} of the bytes are weights"
        begin += "" if known else ", which are not in that"
    proposal = model.get("proposal")
    if proposal is None:
        why = "too little to gain anything" if share < LITTLE else "what methods would gain is not known yet"
        return f"{begin}: {why}"
    plain = proposal["alone"]["dense"]
    simple = [f"`bf16` would make it {times_text(plain, seconds)}" for seconds in _bf16(proposal)]
    if proposal["seconds"] > (1 - LITTLE) * plain:
        return f"{begin}; nothing within the budget 'safe' would make it faster"
    gains = [*simple, f"auto {times_text(plain, proposal['seconds'])}"]
    return f"{begin}; {', '.join(gains)} (--apply); {LOSS}"


def _bf16(proposal: dict[str, Any]) -> list[float]:
    return [seconds for label, seconds in proposal["alone"].items() if label.startswith("bf16")][:1]


def _applied(made: dict[str, Any], model: dict[str, Any]) -> str:
    before, after, checks = model["before"], model["after"], model["checks"]
    if not after["steps"] or not before["steps"]:
        return f"step {made['steps']}: gradients travel uncompressed, because nothing was to be gained so far"
    told = (
        f"step {made['steps']}: a step took {time_text(before['step_seconds'])} before, and takes "
        f"{time_text(after['step_seconds'])} now, {times_text(before['step_seconds'], after['step_seconds'])}, with "
        f"{before['step_bytes_sent'] / max(after['step_bytes_sent'], 1):.3g} times fewer bytes"
    )
    if checks:
        wrong = sum(not each["kept"] for each in checks)
        told += f"; {len(checks)} means were also made exactly, {wrong or 'none'} of them was out of bounds"
    return told


def write_report(made: dict[str, Any], stem: Path) -> None:
    """Write a report beside its page, each at once or not at all.

    Args:
        made: result of ``report_of``.
        stem: path of both files, without their ends.

    Raises:
        OSError: they cannot be written.
    """
    plain = json.dumps(for_json(made), indent=1, allow_nan=False)
    for end, text in ((".json", plain), (".html", page(made, paragraph_of(made)))):
        replace_text(stem.with_name(f"{stem.name}{end}"), text)


def _middle(points: list[tuple[int, float]]) -> float | None:
    values = sorted(value for _, value in points)
    return values[len(values) // 2] if values else None
