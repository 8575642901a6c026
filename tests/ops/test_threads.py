"""Threads share work by chunks that any of them takes: the same bits for any number of them, none is waited for."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch

from gradwire import registry
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.sparse.ops import topk_encode
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.ops import twobit_encode
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.sparse.ops import threshold_encode
from gradwire.contrib.compressors.sparse.threshold import Threshold
from gradwire.contrib.compressors.ternary.strom import Strom
from gradwire.kernels.native import kernels
from gradwire_lab.bench.steps import STEPS
from tests.ops.harness import torch_threads

pytestmark = [
    pytest.mark.skipif(kernels is None, reason="the C++ extension is not built"),
    pytest.mark.skipif(kernels is not None and not kernels.openmp, reason="the C++ extension has no threads"),
]

ODD = 4 * 65536 + 12_345
"""Elements: no multiple of any chunk or vector, and five segments of marks."""

SMALL = (150 * 1001, {"atomo", "demo", "gradiveq", "sketched_sgd"})
"""The size for methods whose operations take long, and these methods."""

FOREIGN = {"atomo", "demo"}
"""Methods that encode with torch's matrix products, whose bits depend on the threads of its BLAS."""

METHODS = [name for name in registry.names("compressors") if name != Identity.name]


@contextmanager
def held(number):
    """Let the thread of this number come to every region too late to take a chunk."""
    kernels.hold_thread(number)
    try:
        yield
    finally:
        kernels.hold_thread(-1)


def bits(step, compressor, n, threads):
    """Everything that an operation reads or writes, after two calls."""
    with torch_threads(threads):
        work = step.workload(compressor, n, own=True)
        for _ in range(2):
            step.run(work)
    tensors = [work.grad, work.residual, work.out, work.rows, work.status, *work.kept.values()]
    return [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]


@pytest.mark.parametrize("method", METHODS)
def test_any_number_of_threads_gives_the_same_bits(method):
    compressor = registry.build("compressors", method)
    n = SMALL[0] if method in SMALL[1] else ODD
    for step in STEPS:
        if step.refusal(compressor) is not None or (method in FOREIGN and not step.decodes):
            continue
        expected = bits(step, compressor, n, 1)
        for threads in (2, 3, 5, 8):
            found = bits(step, compressor, n, threads)
            same = [torch.equal(a, b) for a, b in zip(expected, found, strict=True)]
            assert all(same), f"{step.name}, {threads} threads: {same}"


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("code", [TwoBit(), TopK(), TopK(ratio=0.3), Threshold(1.0), Strom(threshold=1.0)])
def test_a_thread_that_does_not_come_is_not_waited_for(code, number):
    step = STEPS[0]
    expected = bits(step, code, ODD, 1)
    begin = time.monotonic()
    with held(number):
        found = bits(step, code, ODD, 3)
        taken = kernels.chunks_taken()
    # A thread that is held gives up after 20 seconds, which would be for each region.
    assert time.monotonic() - begin < 15
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert len(taken) == 3
    assert taken[number] == 0
    assert sum(taken) >= 5


LATE = """
import torch
from gradwire.compressors.ternary.ops import twobit_encode
from gradwire.kernels.native import kernels

torch.set_num_threads(3)
kernels.set_retreat(False)
kernels.hold_thread(1)
x, codes = torch.randn(1 << 17), torch.empty(1 << 15, dtype=torch.uint8)
for _ in range(50):
    twobit_encode(x, codes, 0.5)
print(kernels.region_count())
"""


def test_a_thread_that_comes_while_a_region_ends_does_not_wait_for_another_pass():
    # A thread that sleeps for ever hears no signal, so it is another process that is given up.
    found = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) == 50


@pytest.mark.parametrize("code", ["take_drawn", "entropy"])
def test_a_part_of_unknown_place_does_not_wait_for_a_thread_that_has_none(code):
    method = {"take_drawn": "adaptive_sparse", "entropy": "entropy"}[code]
    compressor, begin = registry.build("compressors", method), time.monotonic()
    with held(1):
        found = bits(STEPS[0], compressor, ODD, 2)
    assert time.monotonic() - begin < 15
    expected = bits(STEPS[0], compressor, ODD, 1)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def regions(run):
    """The number of parallel regions that a call opens."""
    with torch_threads(2):
        before = kernels.region_count()
        run()
        return kernels.region_count() - before


def test_an_operation_of_several_passes_opens_one_region():
    x, n = torch.randn(ODD), ODD
    segments = -(-n // 65536)
    for k in (1, n // 1000, n // 100, n // 3, n):
        out = torch.empty(k), torch.empty(k, dtype=torch.int16), torch.empty(segments, dtype=torch.int32)
        assert regions(lambda out=out: topk_encode(x, *out)) == 1
    used, stream = torch.empty(1, dtype=torch.int32), torch.empty(8 + 4 * n, dtype=torch.uint8)
    for threshold in (0.1, 1.0, 3.0):
        assert regions(lambda threshold=threshold: threshold_encode(x, used, stream, threshold)) == 1


@pytest.mark.parametrize("shape", ["equal", "zeros", "clustered", "descending", "nan"])
@pytest.mark.parametrize("ratio", [1e-5, 0.01, 0.03125, 0.1, 0.9])
def test_the_largest_of_tensors_that_mislead_a_sample(shape, ratio):
    x = {
        "equal": torch.ones(ODD),
        "zeros": torch.where(torch.arange(ODD) % 5000 == 0, 1.0, 0.0),
        "clustered": torch.cat([torch.randn(ODD - 9000), 1e6 * torch.randn(9000)]),
        "descending": torch.linspace(1e3, -1e-3, ODD),
        "nan": torch.where(torch.arange(ODD) % 7 == 0, torch.nan, torch.randn(ODD)),
    }[shape]
    k, segments = max(1, int(ratio * ODD)), -(-ODD // 65536)

    def encoded(op, threads):
        out = torch.empty(k), torch.empty(k, dtype=torch.int16), torch.empty(segments, dtype=torch.int32)
        with torch_threads(threads):
            op(x, *out)
        return out[0].view(torch.int32), *out[1:]

    expected = encoded(topk_encode.reference, 1)
    for threads in (1, 2, 3):
        assert all(torch.equal(a, b) for a, b in zip(encoded(topk_encode, threads), expected, strict=True))


def test_who_lost_in_regions_works_alone_for_a_while():
    x, codes = torch.randn(1 << 18), torch.empty(1 << 16, dtype=torch.uint8)
    calls, before = 400, torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for retreat in (False, True):
            kernels.set_retreat(retreat)
            # A held thread looks for the end every millisecond, of work that takes a hundredth of that.
            with held(1):
                opened = kernels.region_count()
                for _ in range(calls):
                    twobit_encode(x, codes, 0.5)
                opened = kernels.region_count() - opened
            assert (opened < calls // 2) if retreat else opened == calls
    finally:
        torch.set_num_threads(before)
        kernels.set_retreat(True)


def test_a_forked_child_works_alone():
    x, k = torch.randn(ODD), ODD // 100
    out = torch.empty(k), torch.empty(k, dtype=torch.int16), torch.empty(-(-ODD // 65536), dtype=torch.int32)
    with torch_threads(2):
        topk_encode(x, *out)
        expected = out[0].clone()
        opened = kernels.region_count()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            out[0].zero_()
            topk_encode(x, *out)
            os._exit(not torch.equal(out[0], expected) or kernels.region_count() != opened)
        assert os.waitpid(child, 0)[1] == 0
