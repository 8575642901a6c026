"""Values that a memory stores and reads again: rounded once, and the same bytes if it is written again."""

from __future__ import annotations

import math

import pytest
import torch

from gradwire.kernels.stored import (
    LEAST,
    StoredForm,
    accumulate_into,
    add_to,
    copy_into,
    form_of,
    holds,
    keep_unless,
    mix_into,
    multiply,
    part_of,
    read,
    stored_like,
    swap_with,
    write,
)
from tests.cases import together

FORMS = [StoredForm(), StoredForm(torch.bfloat16), StoredForm(torch.uint8, 16), StoredForm(torch.uint8, 256)]
SIZES = [0, 1, 15, 16, 17, 256, 257, 1000, 2**16 + 1]


def values(n: int, seed: int = 0) -> torch.Tensor:
    """Magnitudes over twenty decades."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator) * 10 ** (4 * torch.randn(n, generator=generator))


def stored(form: StoredForm, x: torch.Tensor) -> torch.Tensor:
    tensor = form.zeros(x.numel())
    write(tensor, x)
    return tensor


@together
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("n", SIZES)
def test_what_was_read_and_is_written_has_the_bytes_it_had(form: StoredForm, n: int) -> None:
    for factor in (1.0, 0.5, 1 / 3, 3e7):
        tensor = stored(form, values(n))
        multiply(tensor, factor)
        again = stored(form, read(tensor, n))
        assert torch.equal(again, tensor)
        assert (form_of(tensor), tensor.nbytes) == (form, form.nbytes(n))
        assert holds(tensor, n)
        assert not holds(tensor, n + form.grain)
        assert holds(form.zeros(3 * 2 * form.grain), 3 * 2 * form.grain - 3, 3) == bool(form.block)


@together
@pytest.mark.parametrize("block", [16, 256])
@pytest.mark.parametrize("n", SIZES)
def test_codes_are_the_nearest_of_the_block(block: int, n: int) -> None:
    x = values(n)
    found = read(stored(StoredForm(torch.uint8, block), x), n)
    for mine, of in zip(torch.split(found, block), torch.split(x, block), strict=True):
        if n:
            assert float((mine - of).abs().max()) <= float(of.abs().max()) / 254 * (1 + 2**-15)
            assert float(mine.abs().max()) == pytest.approx(float(of.abs().max()), rel=2**-15)


def test_codes_by_hand() -> None:
    tensor = stored(StoredForm(torch.uint8, 4), torch.tensor([127.0, -3.5, 0.4, -127.0, 2.0]))
    assert tensor.view(torch.int8)[:, :4].tolist() == [[127, -4, 0, -127], [127, 0, 0, 0]]
    assert tensor[0, 4:].view(torch.float32).item() == 1.0
    assert read(tensor).tolist()[5:] == [0.0] * 3


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_a_block_with_what_is_not_finite_is_read_as_nan_and_no_other(bad: float) -> None:
    x = torch.full((48,), 127.0)
    x[20] = bad
    found = read(stored(StoredForm(torch.uint8, 16), x), 48)
    assert found[16:32].isnan().all()
    assert found[:16].eq(127).all()
    assert found[32:].eq(127).all()


@together
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_what_is_too_small_for_a_scale_is_zero_and_what_is_large_is_not_lost(dtype: torch.dtype) -> None:
    largest, form = torch.finfo(torch.float32).max, StoredForm(dtype, 16)
    x = torch.tensor([LEAST / 2, LEAST, largest, -largest]).repeat_interleave(16)
    tensor = stored(form, x)
    found = read(tensor, 64)
    assert found[:16].eq(0).all()
    assert float(found[16]) == pytest.approx(LEAST, rel=2**-15)
    # A scale that is rounded up would make its largest code infinite.
    assert found[32:].isfinite().all()
    assert found[32:].tolist() == pytest.approx(x[32:].tolist(), rel=2**-15)
    assert torch.equal(stored(form, found), tensor)


@together
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_parts_are_views_that_begin_at_whole_blocks(form: StoredForm) -> None:
    tensor, x = stored(form, values(1000)), values(1000, 1)
    for lo, hi in ((0, 256), (512, 1000), (256, 768)):
        write(part_of(tensor, lo, hi), x[lo:hi])
        assert torch.equal(read(tensor, 1000)[lo:hi], read(stored(form, x[lo:hi]), hi - lo))


@together
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("n", [5, 2**16 + 300])
def test_exchanging_mixing_and_adding(form: StoredForm, n: int) -> None:
    tensor, wide = stored(form, values(n)), values(n, 1)
    before, given = read(tensor, n).clone(), wide.clone()
    swap_with(wide, tensor)
    assert torch.equal(wide, before)
    assert torch.equal(tensor, stored(form, given))
    swap_with(wide, tensor)
    mix_into(tensor, 0.75, wide := given.clone())
    assert torch.equal(wide, before)
    assert torch.equal(tensor, stored(form, before * 0.75 + given))
    accumulate_into(wide, tensor, 0.25)
    assert torch.equal(wide, before + read(tensor, n) * 0.25)
    now = read(tensor, n).clone()
    add_to(tensor, 2, given[:3], 2.0)
    now[2:5] += 2 * given[:3]
    assert torch.equal(tensor, stored(form, now))
    keep_unless(torch.tensor(True), given, tensor)
    assert torch.equal(tensor, stored(form, now))
    keep_unless(torch.tensor(False), given, tensor)
    assert torch.equal(tensor, stored(form, given))


@together
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("to", FORMS, ids=str)
def test_another_form_is_reached_through_the_values(form: StoredForm, to: StoredForm) -> None:
    source, target = stored(form, values(300)), to.zeros(300)
    copy_into(target, source, 300)
    assert torch.equal(target, source if form == to else stored(to, read(source, 300)))
    assert torch.equal(stored_like(target, read(source, 300)), target)


def test_a_factor_changes_scales_alone() -> None:
    tensor = stored(StoredForm(torch.uint8, 16), values(100))
    codes = tensor[:, :16].clone()
    multiply(tensor, 0.3)
    assert torch.equal(tensor[:, :16], codes)
