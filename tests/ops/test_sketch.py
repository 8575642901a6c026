"""A count sketch: against the reference, its linearity, and how well it estimates."""

import pytest
import torch

from gradwire.contrib.compressors.sketches.ops import places, sketch_add, sketch_estimate
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from tests.cases import together
from tests.ops.harness import Case, check_against_reference, gradient, sweep

ROWS = (1, 3, 5, 7)


@sweep
def test_adding_against_the_reference(n, threads, offset):
    rows = ROWS[n % 4]
    table = gradient(rows * 16 * (1 + n % 5), 2)
    arguments = {"rows": rows, "key": 0x1234567890 + n, "step": n}
    check_against_reference(Case(sketch_add, {"x": gradient(n, 1)}, {"table": table}, arguments), threads, offset)


@sweep
def test_estimating_against_the_reference(n, threads, offset):
    rows = ROWS[n % 4]
    table = gradient(rows * 16 * (1 + n % 5), 2, finite=False)
    arguments = {"rows": rows, "key": -5 - n, "step": n}
    case = Case(sketch_estimate, {"table": table}, {"out": ((n,), torch.float32)}, arguments)
    check_against_reference(case, threads, offset)


def test_sketches_add_up():
    x, y = (gaussian(1000, seed).mul(8).round() for seed in (1, 2))
    tables = [torch.zeros(5 * 64) for _ in range(3)]
    for table, values in zip(tables, (x, y, x + y), strict=True):
        sketch_add(values, table, 5, 3, 4)
    assert torch.equal(tables[0] + tables[1], tables[2])


def test_elements_of_a_block_never_meet_and_others_as_often_as_chance_has_it():
    column, sign = places(16 * 500, 160, 5, 1, 2, torch.device("cpu"))
    for row in column.view(5, 500, 16).flatten(0, 1):
        assert row.unique().numel() == 16
    met = (column[0].unsqueeze(0) == column[0, ::16].unsqueeze(1)).double().mean()
    assert float(met) == pytest.approx(1 / 160, rel=0.2)
    assert abs(float(sign.mean())) < 4 / 200
    assert torch.bincount(column.flatten(), minlength=160).min() > 150


def test_the_estimate_is_right_on_average_and_off_by_the_norm_over_the_square_root_of_the_columns():
    x, columns = gaussian(2000), 320
    errors = []
    for step in range(60):
        table, out = torch.zeros(columns), torch.empty_like(x)
        sketch_add(x, table, 1, 9, step)
        sketch_estimate(table, out, 1, 9, step)
        errors.append(out - x)
    spread = torch.stack(errors)
    expected = float(x.norm()) / columns**0.5
    assert float(spread.square().mean().sqrt()) == pytest.approx(expected, rel=0.1)
    assert float(spread.mean(0).square().mean().sqrt()) < 2 * expected / 60**0.5


@together
@pytest.mark.parametrize(
    ("rows", "size", "text"),
    [
        (2, 64, "rows must be 1, 3, 5 or 7, got 2"),
        (3, 64, "must be a multiple of rows"),
        (1, 0, "must be a multiple of"),
    ],
)
def test_bad_tables(rows, size, text):
    with pytest.raises(ConfigError, match=text):
        sketch_add(torch.ones(4), torch.zeros(size), rows, 0, 0)
