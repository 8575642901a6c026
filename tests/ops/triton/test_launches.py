"""Launches of a step on a GPU, counted without one, do not become more."""

import pytest

from tests.ops.triton import kernel_process

MATRIX = [(4096, 4096)]
SEVERAL = [(64, 3, 7, 7), (64,), (300, 257), (1000, 65), (300, 257)]

MOST = {
    "none": 5,
    "bf16": 6,
    "fp16": 6,
    "twobit": 7,
    "onebit": 7,
    "efsignsgd": 7,
    "qsgd": 7,
    "signsgd": 8,
    "eden": 9,
    "topk": 12,
    "dgc": 18,
    "powersgd": 23,
}
"""Launches of a step of one matrix on one rank."""


def counted(interpreter, names, shapes):
    """The rows of these methods, none of which failed."""
    rows = interpreter.submit(kernel_process.launches_of, names, shapes).result()
    assert not [row for row in rows if "error" in row]
    return rows


def test_a_step_of_one_matrix_launches_no_more(interpreter):
    rows = counted(interpreter, list(MOST), MATRIX)
    assert {row["method"]: row["launches"] for row in rows} == MOST


def test_a_kernel_is_counted_by_its_name_for_one_piece_and_for_many(interpreter):
    for shapes in (MATRIX, SEVERAL):
        (row,) = counted(interpreter, ["topk"], shapes)
        wanted = {"_clear": 1, "_count_digits": 4, "_count_largest": 1, "_emit_largest": 1, "_begin_sum": 1}
        assert row["kernels"].items() >= {**wanted, "_add_entries": 1}.items()
        assert row["launches"] == sum(row["kernels"].values()) + sum(row["torch"].values())


@pytest.mark.parametrize("name", ["topk", "eden", "twobit", "qsgd"])
def test_more_tensors_of_a_bucket_launch_nothing_more(interpreter, name):
    few, many = (counted(interpreter, [name], count * [(300, 257)])[0]["launches"] for count in (2, 40))
    assert few == many


def test_a_method_that_reads_a_value_back_says_so(interpreter):
    (row,) = interpreter.submit(kernel_process.launches_of, ["threshold"], MATRIX).result()
    assert "launches" not in row
    assert row["error"].startswith("WouldWaitError: ")
