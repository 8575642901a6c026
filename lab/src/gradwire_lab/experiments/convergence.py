"""Check of convergence: each method, with its recommended settings, against the uncompressed run of the same seeds.

Invariants:
    * A row is one method on one number of workers. It reaches the goal if the mean accuracy over the seeds is at most
      ``TOLERANCE`` points below the uncompressed mean, and the workers end every run with the same bits.
    * A method that is known to miss the goal declares why, and is in the table all the same.
    * An error is a row, too, and the other methods go on. Without the uncompressed run there is nothing to compare
      with: the others are not trained, and their rows say so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire import registry
from gradwire.errors import GradwireError
from gradwire.memory.base import default_memory
from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.recommended import recommended, setup_of
from gradwire_lab.experiments.tasks.classification import Classification
from gradwire_lab.experiments.train import Run, train
from gradwire_lab.experiments.training_method import Method

__all__ = ["BASELINE", "TOLERANCE", "ConvergenceRow", "kept_in", "markdown", "rows"]

BASELINE = "none"
TOLERANCE = 2.0
"""Points, hundredths of the test set."""


@dataclass(frozen=True)
class ConvergenceRow:
    """The outcome of one method on one number of workers.

    Args:
        method: name of the method in the registry.
        settings: the compressor's configuration, and what else differs from the defaults, ready for JSON.
        workers: processes.
        epochs: passes over the data.
        accuracies: one for each seed.
        baseline: mean accuracy of the uncompressed runs; NaN: they failed.
        bytes_per_step: bytes that a worker hands to the collectives, mean over the seeds.
        ratio: the bytes of a dense exchange over these.
        state_bytes: bytes that a worker keeps from step to step: memories, and the method's own state.
        identical: all workers ended each run with the same bits.
        reason: reason for the settings.
        misses: reason why the method is known to miss the goal, else empty.
        error: error that ended the runs early, else empty.
    """

    method: str
    settings: dict[str, Any]
    workers: int
    epochs: int
    accuracies: tuple[float, ...]
    baseline: float
    bytes_per_step: float
    ratio: float
    state_bytes: int
    identical: bool
    reason: str
    misses: str
    error: str = ""

    @property
    def link(self) -> str:
        """The address of the method's section in the docs; a label may have parameters behind the name."""
        name = str(self.settings["compressor"]["name"]) if self.settings else self.method.partition(":")[0]
        return f"{registry.family('compressors', name)}.md#{name}"

    @property
    def accuracy(self) -> float:
        """The mean accuracy over the seeds; 0 if there was an error."""
        return sum(self.accuracies) / max(len(self.accuracies), 1)

    @property
    def points(self) -> float:
        """The difference from the uncompressed run, in hundredths of the test set."""
        return 100 * (self.accuracy - self.baseline)

    @property
    def comparable(self) -> bool:
        """Return whether there are uncompressed runs to compare with, or it is such a run itself."""
        return not math.isnan(self.baseline)

    @property
    def reached(self) -> bool:
        # The slack is far below one of 360 test images: it is for the rounding of the mean.
        return not self.trouble and self.points >= -TOLERANCE - 0.001

    @property
    def failed(self) -> bool:
        """Return whether a method missed the goal and is not known to miss it."""
        return bool(self.trouble) or not (self.reached or self.misses)

    @property
    def trouble(self) -> str:
        """The defect that makes a row fail whatever its accuracy; empty if there is none."""
        if self.error:
            return self.error
        if not self.identical:
            return "the workers' parameters differ"
        return "nothing was compressed" if self.ratio <= 1 and self.method != BASELINE else ""

    @property
    def verdict(self) -> str:
        """The verdict in one word, or the reason."""
        if self.reached:
            return "reached"
        if self.failed:
            return f"FAILED: {self.trouble}" if self.trouble else "FAILED"
        return f"known to miss: {self.misses}"

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        derived = {"accuracy": self.accuracy, "points": self.points, "reached": self.reached, "failed": self.failed}
        return dataclasses.asdict(self) | derived


def rows(methods: Sequence[Method], workers: Sequence[int], seeds: int, epochs: int) -> Iterator[ConvergenceRow]:
    """Train each method on each number of workers; the uncompressed run comes first, even if it was not asked for.

    Args:
        methods: methods with their settings.
        workers: processes on this machine, each number at least 1.
        seeds: runs of each method, from seed 0 on.
        epochs: number of epochs, >= 1.

    Raises:
        ConfigError: there is no data to train with.
    """
    # Before any worker starts, each of which would have to find that out.
    Classification()
    for world in workers:
        dense = _row(recommended(BASELINE), world, seeds, epochs, None)
        yield dense
        for method in methods:
            if method.label != BASELINE:
                yield _row(method, world, seeds, epochs, dense)


def kept_in(method: Method, dtypes: Sequence[str]) -> list[Method]:
    """Copies of the method with its residual in each of these widths; only the method itself if it keeps no residual.

    >>> [each.label for each in kept_in(recommended("topk"), ["float32", "bfloat16"])]
    ['topk', 'topk bfloat16']
    """
    if default_memory(method.compressor) != "residual":
        return [method]
    return [method if dtype == "float32" else _rounded(method, dtype) for dtype in dtypes]


def _rounded(method: Method, dtype: str) -> Method:
    options = {**method.options, "residual_dtype": dtype}
    return dataclasses.replace(method, label=f"{method.label} {dtype}", options=options)


def run_seeds(method: Method, seeds: int, epochs: int) -> list[Run]:
    """Make one run for each seed, on each worker."""
    return [train(Classification().adjusted(method.recipe), method, epochs, seed=seed) for seed in range(seeds)]


def _row(method: Method, world: int, seeds: int, epochs: int, dense: ConvergenceRow | None) -> ConvergenceRow:
    results, error = _trained(method, world, seeds, epochs, dense)
    runs: list[Run] = results[0]
    setup, count = setup_of(method.label), max(len(runs), 1)
    accuracies = tuple(run.quality for run in runs)
    mean = math.nan if error else sum(accuracies) / count
    return ConvergenceRow(
        method.label,
        _settings(method),
        world,
        epochs,
        accuracies,
        baseline=mean if dense is None else dense.baseline,
        bytes_per_step=sum(run.bytes_per_step for run in runs) / count,
        ratio=sum(run.ratio for run in runs) / count,
        state_bytes=max((run.state_bytes for ranks in results for run in ranks), default=0),
        identical=all(len({run.digest for run in ranks}) == 1 for ranks in zip(*results, strict=True)),
        reason=setup.reason,
        misses=setup.misses,
        error=error,
    )


def _trained(
    method: Method, world: int, seeds: int, epochs: int, dense: ConvergenceRow | None
) -> tuple[list[list[Run]], str]:
    """Train on each worker; the runs of none, and the reason, where that fails or there is nothing to compare with."""
    if dense is not None and dense.error:
        return [[]], f"there is no uncompressed run to compare with: {dense.error}"
    try:
        return launch(world, run_seeds, method, seeds, epochs), ""
    except GradwireError as failure:
        return [[]], " ".join(str(failure).split())


def _settings(method: Method) -> dict[str, Any]:
    settings: dict[str, Any] = {"compressor": method.compressor.to_config(), "options": _plain(method.options)}
    if method.loss_scale != 1.0:
        settings["loss_scale"] = method.loss_scale
    if method.recipe:
        settings["recipe"] = dict(method.recipe)
    return settings


def _plain(value: Any) -> Any:
    """Convert a value to its form in JSON: a memory to its configuration, a schedule to its name."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if hasattr(value, "to_config"):
        return value.to_config()
    return {key: _plain(each) for key, each in value.items()} if hasattr(value, "items") else repr(value)


def markdown(found: Sequence[ConvergenceRow]) -> str:
    """The table of the docs: the settings, one line for each method, two columns for each number of workers."""
    seeds = max(len(row.accuracies) for row in found)
    ran = f"{found[0].epochs} epochs, {seeds} {'seed' if seeds == 1 else 'seeds'}:"
    worlds = list(dict.fromkeys(row.workers for row in found))
    cells = {(row.method, row.workers): row for row in found}
    heads = "".join(f" {world} workers | bytes a step |" for world in worlds)
    lines = [ran, "", f"| method |{heads} verdict | settings |", f"|---|{'---|---|' * len(worlds)}---|---|"]
    for method in dict.fromkeys(row.method for row in found):
        mine = [cells[method, world] for world in worlds if (method, world) in cells]
        figures = "".join(f" {_figures(row)} |" for row in mine)
        verdict = "; ".join(dict.fromkeys(row.verdict for row in mine))
        settings = mine[0].reason or "defaults"
        lines.append(f"| [`{method}`]({mine[0].link}) |{figures} {verdict} | {settings} |")
    return "\n".join(lines) + "\n"


def _figures(row: ConvergenceRow) -> str:
    shown = f"{row.accuracy:.1%}" if row.method == BASELINE else f"{row.accuracy:.1%} ({row.points:+.1f})"
    return f"{shown} | {row.bytes_per_step:,.0f}"
