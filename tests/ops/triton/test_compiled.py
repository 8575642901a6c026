"""The kernels as the compiler translates them: no interpreter shows it, and no GPU is needed for it."""

import re

import pytest
import torch

from gradwire_lab.bench.operation_examples import example, operations, variants
from tests.ops.triton import kernel_process
from tests.ops.triton.test_contract import KERNELS

OPS = operations()

# One rounding where the reference has two, flushed subnormals, divisions that are only nearly right; and atomic
# additions, which flush subnormals and have no order.
INEXACT = re.compile(r"\b(?:fma|mad)\.\w*\.?f(?:32|64)|\S+\.ftz\b|\S+\.approx\b|div\.full|(?:atom|red)\S*\.add\S*f32")

# What is compiled apart from the examples. Nothing runs, so sizes need not fit.
WIDE, LONG, WHOLE = {"bits": 8}, {"bits": 3, "block": 65536}, {"bits": 2, "block": 2**48}
VARIANTS = {
    "eden_add_decoded": [{"block": 1024}, {"bits": 3}, {"bits": 8, "group": 16}],
    "eden_encode": [{"block": 1024}, {"bits": 3}, {"bits": 8, "group": 16}],
    "eightbit_add_decoded": [{"block": 0}, {"block": 0, "kind": "e4m3", "fresh": True}],
    "eightbit_encode": [{"block": 0}, {"block": 0, "kind": "dynamic"}],
    "eightbit_encode_feedback": [{"block": 0}, {"block": 0, "kind": "dynamic"}, {"block": 0, "status": None}],
    "qsgd_add_decoded": [WIDE, LONG, WHOLE, WHOLE | {"grid": "powers"}],
    "qsgd_encode": [WIDE, LONG],
    "qsgd_encode_feedback": [WIDE, LONG],
    "scaled_sign_encode_feedback": [{"block": 2048}],
    "tile_topk": [{"x": torch.ones(8192), "size": 8192}],
    "two_means_encode_feedback": [{"block": 2048}],
}


# Made of another kernel, which has its own row.
COMPOSED = {"parts_add_decoded"}


def on_one(*names):
    """Run a test for each operation, compiled for one kind of GPU or the other in turns.

    How arithmetic is rounded is decided before the compiler asks what it compiles for.
    """
    cases = [pytest.param(name, (80, 90)[place % 2], id=name) for place, name in enumerate(sorted(names))]
    return pytest.mark.parametrize(("name", "capability"), cases)


def _compile(compiler, name, changes):
    calls = [example(OPS[name]) | change for change in changes]
    return compiler.submit(kernel_process.compile_only, OPS[name].triton, name, calls).result()


@on_one(*set(KERNELS) - COMPOSED)
def test_every_operation_is_rounded_as_written(compilers, name, capability):
    derived = list(variants(OPS[name]))
    changes = [{}, *VARIANTS.get(name, []), *derived]
    compiled = _compile(compilers(capability), name, changes)
    assert len(compiled) >= len(changes)
    for kernel in compiled:
        assert not kernel.fused
        assert INEXACT.findall(kernel.ptx) == []


@on_one("philox", "qsgd_encode", "qsgd_encode_feedback")
def test_another_step_compiles_nothing(compilers, name, capability):
    streams = ((0, 0), (2**40, 1), (-7, 16), (2**31, 2**62))
    _compile(compilers(capability), name, [{}])
    assert _compile(compilers(capability), name, [{"key": key, "step": step} for key, step in streams]) == []


@on_one("topk_encode", "topk_encode_feedback")
def test_the_program_that_ends_last_sees_what_the_others_wrote(compilers, name, capability):
    """All threads have written before one counts the program, and none reads what others wrote before it was counted.

    No interpreter shows it: there one program follows the other.
    """
    several = {"residual" if "feedback" in name else "x": torch.ones(5003)}
    counting = [k for k in _compile(compilers(capability), name, [several]) if ".acq_rel" in k.ptx]
    assert counting
    for kernel in counting:
        steps = re.findall(r"bar\.sync|\.acq_rel|atom\.global\S*relaxed|st\.global|ld\.global", kernel.ptx)
        (counted,) = (place for place, step in enumerate(steps) if step == ".acq_rel")
        before, after = steps[:counted], steps[counted + 1 :]
        assert before[-1] == after[0] == "bar.sync"
        assert any("relaxed" in step for step in before)
        assert not any("relaxed" in step for step in after)
        assert "ld.global" in after
