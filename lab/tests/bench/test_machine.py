import platform
import re
import time

import torch

from gradwire_lab.bench.machine import busy_seconds, commit, cores, crowded, environment, machine


def test_environment_says_where_a_figure_was_measured():
    columns = environment()
    assert columns["threads"] == torch.get_num_threads() == 1
    assert columns["torch"] == torch.__version__
    assert columns["python"] == platform.python_version()
    assert columns["machine"] == machine()
    assert re.search(r"\d+ cores", machine())
    assert columns["target"] in {"avx512", "avx2", "neon", "scalar", "reference"}


def test_commit_is_a_full_hash_or_nothing():
    assert commit() is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", commit())


def test_a_crowded_clock_counts_computing_times_the_threads_of_a_core():
    assert crowded(cores()) is time.perf_counter
    shared = crowded(3 * cores())
    first, begun = time.thread_time(), shared()
    sum(range(300_000))
    counted, last = shared() - begun, time.thread_time()
    assert 0 < counted <= 3 * (last - first)
    begun = shared()
    time.sleep(0.05)
    assert shared() - begun < 0.05


def test_the_machine_is_busy_while_it_computes():
    before, until = busy_seconds(), time.thread_time() + 0.1
    while time.thread_time() < until:
        sum(range(10_000))
    assert busy_seconds() >= before + 0.05
