"""``gradwire train``: one run, on workers of this machine or as the script of a job on many."""

from __future__ import annotations

import dataclasses
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import click
import torch
import torch.distributed as dist

from gradwire.cli.command_group import METHOD, METHOD_FORMS, Integer
from gradwire.cli.output import counted
from gradwire.errors import ConfigError, GroupError, require
from gradwire.registry import assignment, named_of
from gradwire_lab.commands._options import PATIENCE, appendable, chosen, pairs
from gradwire_lab.commands._signals import interrupt
from gradwire_lab.experiments.cluster import Place, placed
from gradwire_lab.experiments.job import (
    BACKENDS,
    MOST_SEED,
    Job,
    begun,
    device_of,
    failed,
    perform,
    settings_of,
    stopped,
)
from gradwire_lab.experiments.launch import begin, launch
from gradwire_lab.experiments.records import Record, append
from gradwire_lab.experiments.run_snapshots import newest
from gradwire_lab.experiments.tasks import find_task, task_names
from gradwire_lab.experiments.tasks.base import Task
from gradwire_lab.experiments.training_method import PARALLEL, Method
from gradwire_lab.netlab import Link, lab_for

__all__ = ["command"]

_LOCAL = 2


@click.command("train", context_settings={"ignore_unknown_options": True})
@click.argument("task", type=click.Choice(task_names()))
@click.option("--workers", type=Integer(1, 64), help="Processes on this machine. Default: 2, or as the job has.")
@click.option("--compressor", default="none", show_default=True, type=METHOD, help=f"{METHOD_FORMS}.")
@click.option("--param", "named", multiple=True, metavar="NAME=VALUE", help="Of the compressor; as --NAME VALUE.")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="Of compress_ddp, as strategy=two_phase."
)
@click.option(
    "--optimizer", metavar="NAME", help="Of gradwire.optim, NAME:PARAMETER=VALUE,...: it exchanges, as compressed_step."
)
@click.option(
    "--parallel",
    default=PARALLEL[0],
    show_default=True,
    type=click.Choice(PARALLEL),
    help="Whole models, or shards: then --option is of compress_fsdp.",
)
@click.option("--weights", type=METHOD, help="Under fsdp2 for the all-gather of the weights, as blockwise8.")
@click.option(
    "--recommended/--own-defaults", "recommend", default=True, help="Whether what suits method and task is chosen."
)
@click.option("--model", metavar="NAME", help="Of those that the task has. Default: its first.")
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="A folder of real data; the full-size model."
)
@click.option("--start", type=click.Path(path_type=Path), help="Begin with the parameters of this --checkpoint.")
@click.option("--epochs", type=Integer(1), help="Passes over the data. Default: as the recipe says.")
@click.option("--recipe", multiple=True, metavar="NAME=VALUE", help="Change the recipe, as lr=0.05; may be repeated.")
@click.option("--seed", default=0, show_default=True, type=Integer(0, MOST_SEED), help="Of the initial parameters.")
@click.option("--backend", default="gloo", show_default=True, type=click.Choice(list(BACKENDS)))
@click.option("--device", type=click.Choice(list(BACKENDS.values())), help="Default: the backend's.")
@click.option(
    "--link", default="none", show_default=True, metavar="RATE", help="Between workers, as 100mbit; needs root."
)
@click.option("--delay", default="0ms", show_default=True, metavar="TIME", help="Of the link.")
@click.option("--checkpoint", type=click.Path(path_type=Path, file_okay=False), help="Save the run in this folder.")
@click.option("--checkpoint-every", type=Integer(1), metavar="STEPS", help="Within an epoch, too.")
@click.option("--resume", is_flag=True, help="Go on from the folder of --checkpoint, if there is anything.")
@click.option(
    "--results", type=click.Path(path_type=Path, dir_okay=False), help="Append the run's record to this file."
)
@click.option(
    "--timeout",
    default=600.0,
    show_default=True,
    type=PATIENCE,
    metavar="SECONDS",
    help="That workers wait for each other, also while worker 0 measures the quality.",
)
@click.argument("rest", nargs=-1, type=click.UNPROCESSED, metavar="[--PARAMETER VALUE]...")
@click.pass_context
def command(
    ctx: click.Context,
    task: str,
    workers: int | None,
    compressor: str,
    named: tuple[str, ...],
    options: tuple[str, ...],
    optimizer: str | None,
    parallel: str,
    weights: str | None,
    recommend: bool,
    model: str | None,
    data: Path | None,
    start: Path | None,
    epochs: int | None,
    recipe: tuple[str, ...],
    seed: int,
    backend: str,
    device: str | None,
    link: str,
    delay: str,
    checkpoint: Path | None,
    checkpoint_every: int | None,
    resume: bool,
    results: Path | None,
    timeout: float,
    rest: tuple[str, ...],
) -> None:
    """Train TASK with compressed gradients, as `gradwire train classification --compressor topk --ratio 0.01`.

    Every parameter of the compressor is an option. Started by torchrun or srun, each process is one worker of that job.
    """
    place = placed_as(workers)
    made: Task = find_task(task)(model, data)
    method = with_options(chosen(compressor, (*pairs(rest), *map(assignment, named)), task, own=not recommend), options)
    method = distributed(exchanging(method, optimizer), parallel, weights)
    wanted = Link.parse(link, delay).in_lab()
    require(wanted == Link() or (place is None and backend == "gloo"), "link", "none with nccl or in a job", link)
    require(checkpoint is not None or not (resume or checkpoint_every), "checkpoint", "a folder to resume from", None)
    settings = settings_of(
        made,
        method,
        workers=place.world if place else workers or _LOCAL,
        epochs=epochs,
        seed=seed,
        link=str(wanted),
        recipe=dict(map(assignment, recipe)),
        start=begun(made, start),
        backend=backend,
        device=device_of(backend, device),
    )
    job = Job(settings, data, checkpoint, checkpoint_every, resume, start)
    if place is None or place.rank == 0:
        prepare(job, results)
    with tempfile.TemporaryDirectory() as folder:
        ended = Path(folder, "epochs")
        with interrupted(ctx, job, results, ended, place), noted(job, results, place):
            record = here(job, timeout, wanted, ended) if place is None else there(job, timeout, place, ended)
    if record is not None:
        try:
            if results is not None:
                append(results, record)
        finally:
            click.echo("\n".join(summary(record, made)))
    if record is not None and not record.identical:
        raise GroupError(record.error)


def placed_as(workers: int | None) -> Place | None:
    """Return this process's place in a job; None if it has to start the workers itself."""
    place = placed(os.environ)
    if place is not None:
        require(workers in (None, place.world), "workers", f"{place.world}, as the job has", workers)
    return place


def with_options(method: Method, written: Sequence[str]) -> Method:
    """Add options for ``compress_ddp`` to those of the method."""
    return dataclasses.replace(method, options={**method.options, **dict(map(assignment, written))})


def exchanging(method: Method, optimizer: str | None) -> Method:
    """The method with an optimizer that exchanges, which its label says, and without a loss scale.

    >>> made = exchanging(chosen("onebit", [], "classification", own=False), "compressed_step:every=4")
    >>> made.label, made.loss_scale
    ('onebit, compressed_step:every=4', 1.0)
    """
    if optimizer is None:
        return method
    label = f"{method.label}, {optimizer}"
    return dataclasses.replace(method, label=label, optimizer=named_of(optimizer), loss_scale=1.0)


def distributed(method: Method, parallel: str, weights: str | None) -> Method:
    """The method with a model that is distributed otherwise, which its label says.

    >>> from gradwire_lab.experiments.method_text import method_of
    >>> distributed(method_of("bf16"), "fsdp2", "blockwise8").label
    'bf16, fsdp2, weights blockwise8'
    """
    label = method.label if parallel == PARALLEL[0] else f"{method.label}, {parallel}"
    label = label if weights is None else f"{label}, weights {weights}"
    return dataclasses.replace(method, label=label, parallel=parallel, weights=weights)


def here(job: Job, timeout: float, link: Link, epochs: Path) -> Record | None:
    """Start the workers on this machine, and return the record of worker 0."""
    with lab_for(job.settings.workers, link) as lab:
        backend, workers = job.settings.backend, job.settings.workers
        told = job, True, epochs
        found: list[Record | None] = launch(workers, perform, *told, timeout=timeout, lab=lab, backend=backend)
    return found[0]


def there(job: Job, timeout: float, place: Place, epochs: Path) -> Record | None:
    """Run as one worker of a job; return the record on worker 0, else None."""
    place.tell()
    torch.set_num_threads(1)
    begin(timedelta(seconds=timeout), job.settings.backend)
    dist.barrier()
    record = perform(job, shown=True, epochs=epochs)
    dist.destroy_process_group()
    return record


def prepare(job: Job, results: Path | None) -> None:
    """Check the folder of checkpoints and the file of results before anything starts."""
    if results is not None:
        appendable(results)
    snapshots = job.snapshots()
    if snapshots is not None:
        snapshots.prepare()


@contextmanager
def interrupted(
    ctx: click.Context, job: Job, results: Path | None, epochs: Path, place: Place | None
) -> Iterator[None]:
    """End with exit code 130 when a request to end arrives: record the epochs that have ended, and say how to go on."""
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        record = stopped(job, epochs)
        kept = results is not None and record.history and (place is None or place.rank == 0)
        if results is not None and kept:
            append(results, record)
        where = f": {results} has them" if kept else ""
        last = None if job.checkpoint is None else newest(job.checkpoint)
        if last is not None:
            ahead = f"the last checkpoint is {last}: go on with the same command and --resume"
        elif job.checkpoint is not None:
            ahead = "there is no checkpoint yet: begin with the same command"
        else:
            ahead = "it cannot go on, because no checkpoint was asked for: begin again, with --checkpoint FOLDER"
        click.echo(f"{record.error}{where}; {ahead}", err=True)
        ctx.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def noted(job: Job, results: Path | None, place: Place | None) -> Iterator[None]:
    """Record the run even if it fails; nothing is recorded if it could not begin on this machine."""
    try:
        yield
    except Exception as error:
        mistake = place is None and isinstance(error, ConfigError)
        if not mistake and results is not None and (place is None or place.rank == 0):
            append(results, failed(job, error))
        raise


def summary(record: Record, task: Task) -> Iterator[str]:
    """Summarise a run for the terminal."""
    settings, history = record.settings, record.history
    assert record.quality is not None
    workers, epochs = counted(settings.workers, "worker"), counted(len(history), "epoch")
    yield f"{settings.task}, {settings.model} on {settings.data}: {settings.method}, {workers}"
    yield f"{record.measure} {task.shown(record.quality)} after {epochs}, {counted(record.steps, 'step')}"
    sent, dense = record.bytes_per_step or 0.0, record.dense_bytes_per_step or 0.0
    yield f"{sent:,.0f} bytes a step from a worker" + (f", {dense / sent:.1f} times fewer than dense" if sent else "")
    if record.interface_bytes_per_step is not None:
        yield f"{record.interface_bytes_per_step:,.0f} bytes a step by the interface's own count"
    phases = ", ".join(f"{name} {1e3 * seconds:.2f}" for name, seconds in record.seconds.items())
    yield f"milliseconds of a step: {phases}; {record.examples_per_second or 0.0:,.0f} examples/s"
    same = "bit-identical" if record.identical else "DIFFERENT"
    yield f"the parameters of all workers are {same}: {record.digest[:16]}"
