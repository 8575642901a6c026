"""Processes that are killed, a cable that is cut: an error with a name, or the result of an undisturbed run."""

import time

import pytest
import torch

from tests.kvstore.group import result, run_workers, start_workers
from tests.kvstore.jobs import slow_steps, unequal_steps
from tests.kvstore.proxy import Cable

TWOBIT = {"type": "2bit", "threshold": 0.5}


def wait_for(folder, rank, step, seconds=60):
    """Until a worker has made so many steps."""
    deadline = time.monotonic() + seconds
    file = folder / f"step-{rank}"
    while not file.exists() or int(file.read_text() or 0) < step:
        assert time.monotonic() < deadline, f"worker {rank} did not come to step {step}"
        time.sleep(0.02)


def kill(process):
    process.kill()
    process.wait()


def undisturbed(folder, steps, compression):
    folder.mkdir()
    values = run_workers(slow_steps, 2, 1, steps, str(folder), compression, 0.0, folder=folder)
    assert torch.equal(*values)
    return values[0]


def running(folder, steps, compression, pause, *options):
    """Two workers that make slow steps, and their server."""
    arguments = (steps, str(folder), compression, pause)
    return start_workers(slow_steps, 2, 1, *arguments, folder=folder, options=options)


def finished(group, folder):
    for process in group.workers.values():
        assert process.wait(60) == 0
    return [result(folder, rank) for rank in group.workers]


def test_the_others_hear_of_a_killed_worker(tmp_path):
    with start_workers(
        slow_steps, 2, 1, 10**6, str(tmp_path), None, 0.01, folder=tmp_path, options=["--dead-after", "3"]
    ) as group:
        wait_for(tmp_path, 1, 2)
        kill(group.workers[1])
        assert group.workers[0].wait(60) == 0
    assert "worker 1 has not been heard of for 3 s" in result(tmp_path, 0)


def test_the_others_go_on_without_a_killed_worker_where_that_was_asked_for(tmp_path):
    with running(tmp_path, 60, None, 0.01, "--dead-after", "3", "--on-dead-worker", "continue") as group:
        wait_for(tmp_path, 1, 2)
        kill(group.workers[1])
        assert group.workers[0].wait(60) == 0
    assert torch.isfinite(result(tmp_path, 0)).all()


def test_a_killed_worker_comes_again_and_goes_on_to_the_same_result(tmp_path):
    want = undisturbed(tmp_path / "undisturbed", 12, None)
    with start_workers(
        slow_steps, 2, 1, 12, str(tmp_path), None, 0.1, folder=tmp_path, options=["--dead-after", "60"]
    ) as group:
        wait_for(tmp_path, 1, 4)
        kill(group.workers[1])
        group.start_worker(1)
        assert all(torch.equal(value, want) for value in finished(group, tmp_path))


@pytest.mark.parametrize("compression", [None, TWOBIT])
def test_a_killed_server_comes_again_from_its_snapshot_and_the_result_is_that_of_an_undisturbed_run(
    compression, tmp_path
):
    want = undisturbed(tmp_path / "undisturbed", 14, compression)
    options = ["--snapshot", str(tmp_path / "snapshot"), "--snapshot-every", "3"]
    with start_workers(
        slow_steps, 2, 1, 14, str(tmp_path), compression, 0.1, folder=tmp_path, options=options
    ) as group:
        wait_for(tmp_path, 0, 5)
        kill(group.servers[0])
        group.restart_server(0)
        assert all(torch.equal(value, want) for value in finished(group, tmp_path))


def test_a_server_without_a_snapshot_says_that_its_values_are_lost(tmp_path):
    with running(tmp_path, 10**6, None, 0.05) as group:
        wait_for(tmp_path, 0, 2)
        kill(group.servers[0])
        group.restart_server(0)
        values = finished(group, tmp_path)
    assert all("restarted without a snapshot" in value for value in values)


def test_a_cable_that_is_cut_and_mended_loses_nothing_and_repeats_nothing(tmp_path):
    want = undisturbed(tmp_path / "undisturbed", 14, TWOBIT)
    group = start_workers(
        slow_steps, 2, 1, 14, str(tmp_path), TWOBIT, 0.1, folder=tmp_path, options=["--dead-after", "60"]
    )
    group.close()
    group.restart_server(0)
    cable = Cable(group.endpoints[0])
    group.endpoints = [cable.endpoint]
    try:
        for rank in range(2):
            group.start_worker(rank)
        for step in (3, 6, 9):
            wait_for(tmp_path, 0, step)
            cable.cut()
            time.sleep(1.0)
            cable.mend()
        assert all(torch.equal(value, want) for value in finished(group, tmp_path))
    finally:
        group.close()
        cable.close()


def test_unequal_numbers_of_batches(tmp_path):
    values = run_workers(unequal_steps, 2, 1, 5, folder=tmp_path)
    assert values[0].tolist() == [2 + 2 + 1 + 1 + 1] * 4
