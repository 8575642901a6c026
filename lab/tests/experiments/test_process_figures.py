"""The memory of a run is that of its own, whoever was before it in the same process."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from gradwire_lab.experiments import job
from gradwire_lab.experiments.job import Job, settings_of
from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.method_text import method_of
from gradwire_lab.experiments.process_figures import forget_peak, peak_bytes, resident_bytes
from gradwire_lab.experiments.records import Record
from gradwire_lab.experiments.tasks.classification import Classification
from gradwire_lab.experiments.train import train
from lab.tests.experiments.resume_jobs import memory_of_runs

MEBI = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell what is resident")


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def leave_a_mess(megabytes: int) -> torch.Tensor:
    """Fill the heap with small pieces in a cycle that nobody can reach; the last one keeps the heap from shrinking."""
    pieces: list[object] = [torch.ones(16 * 1024) for _ in range(16 * megabytes)]
    last = torch.ones(16 * 1024)
    pieces.append(pieces)
    return last


@linux
@pytest.mark.skipif(sys.platform == "linux" and not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_what_earlier_runs_have_left_is_given_back() -> None:
    gc.disable()
    try:
        last = leave_a_mess(200)
        before = resident_bytes()
        forget_peak()
        after = resident_bytes()
    finally:
        gc.enable()
    assert last.sum() == last.numel()
    assert before is not None
    assert after is not None
    assert before - after > 150 * MEBI
    assert peak_bytes() < before


@linux
def test_the_first_run_of_a_process_needs_no_more_than_the_next() -> None:
    """Half of torch is loaded by the first one, 150 MB and more."""
    ((first, second),) = launch(1, memory_of_runs, 2)
    assert first.digest == second.digest
    needed = [run.peak_rss_bytes - (run.start_rss_bytes or 0) for run in (first, second)]
    assert needed[1] > MEBI
    assert needed[0] - needed[1] < 50 * MEBI


@linux
def test_a_run_tells_what_was_resident_when_it_began(group: None) -> None:
    ballast, method = torch.ones(200 * MEBI // 4), method_of("none")
    heavy = train(Classification(), method, 1)
    assert heavy.start_rss_bytes is not None
    assert ballast.nbytes < heavy.start_rss_bytes <= heavy.peak_rss_bytes
    del ballast
    light = train(Classification(), method, 1)
    assert light.start_rss_bytes is not None
    assert heavy.start_rss_bytes - light.start_rss_bytes > 100 * MEBI
    assert light.start_rss_bytes <= light.peak_rss_bytes


@linux
def test_a_record_has_the_begin_of_the_worker_whose_peak_it_has(group: None) -> None:
    task, method = Classification(), method_of("none")
    made = settings_of(task, method, workers=1, epochs=1)
    found = job.perform(Job(made))
    assert found is not None
    assert 0 < (found.start_rss_bytes or 0) <= (found.peak_rss_bytes or 0)
    run = train(task, method, 1)
    figures = [(300, 200), (700, 100), (500, 400)]
    runs = [dataclasses.replace(run, peak_rss_bytes=peak, start_rss_bytes=start) for peak, start in figures]
    record = job._record(made, task, runs, "", 1.0)
    assert (record.peak_rss_bytes, record.start_rss_bytes) == (700, 100)


def test_a_line_of_before_there_was_a_begin_is_read() -> None:
    task = Classification()
    made = settings_of(task, method_of("none"), workers=2)
    line = json.loads(Record(made, task.measure, higher_is_better=True, peak_rss_bytes=700).to_json())
    assert line.pop("start_rss_bytes") is None
    old = Record.from_dict(line)
    assert (old.peak_rss_bytes, old.start_rss_bytes, old.settings.id) == (700, None, line["id"])
