"""``gradwire bench launches``: the launches of a step, counted where Triton is installed."""

import json
from importlib.util import find_spec

import pytest

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.mark.skipif(find_spec("triton") is not None, reason="triton is installed")
def test_without_triton_it_is_one_line(gradwire):
    done = gradwire("bench", "launches", "--method", "topk")
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: Triton is needed, and it is not installed here: pip install")


@needs_triton
def test_the_launches_of_a_method_are_counted(gradwire):
    done = gradwire("bench", "launches", "--method", "topk", "--method", "threshold", "--json", "-")
    assert done.exit_code == 0, done.stderr
    topk, threshold = json.loads(done.stdout)
    assert topk["launches"] == 12
    assert threshold["error"].startswith("WouldWaitError: ")


@needs_triton
def test_the_table_names_the_kernels_and_the_reasons(gradwire):
    done = gradwire("bench", "launches", "--method", "topk", "--method", "threshold", "--model", "3000,3000")
    assert done.exit_code == 0, done.stderr
    assert "4 _count_digits" in done.stdout
    assert "threshold: WouldWaitError: aten::nonzero reads a value back" in done.stdout
