"""Layouts, and the names of random streams."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.vocabulary import ALIGNMENT, Field, Key, Layout, align, tensor_id

DTYPES = st.sampled_from([torch.uint8, torch.int16, torch.float16, torch.int32, torch.float32, torch.int64])
FIELDS = st.lists(st.builds(Field, st.just("f"), DTYPES, st.integers(0, 20)), max_size=6)


@given(FIELDS)
def test_fields_are_aligned_disjoint_and_end_at_nbytes(fields: list[Field]) -> None:
    layout, end = Layout(tuple(fields)), 0
    for field, offset in zip(layout.fields, layout.offsets, strict=True):
        assert offset % field.dtype.itemsize == 0
        assert end <= offset < end + field.dtype.itemsize
        end = offset + field.nbytes
    assert layout.nbytes == end


@given(FIELDS, st.integers(1, 3))
def test_views_of_a_row_are_rows_of_the_views(fields: list[Field], ranks: int) -> None:
    layout = Layout(tuple(fields))
    rows = torch.randint(0, 256, (ranks, align(layout.nbytes) + ALIGNMENT), dtype=torch.uint8)
    stacked = layout.views(rows)
    for rank in range(ranks):
        for one, many in zip(layout.views(rows[rank]), stacked, strict=True):
            assert one.data_ptr() == many[rank].data_ptr() or one.numel() == 0
            assert torch.equal(one.view(torch.uint8), many[rank].view(torch.uint8))


def test_a_view_writes_into_the_buffer() -> None:
    buffer = torch.zeros(ALIGNMENT, dtype=torch.uint8)
    Layout((Field("x", torch.float32, 1),)).views(buffer)[0].fill_(1.0)
    assert buffer.tolist()[:4] == [0, 0, 128, 63]


def test_streams_differ_by_everything_but_the_step() -> None:
    base = Key(seed=1, tensor=2, phase=0, rank=3)
    others = [Key(2, 0, 2, 0, 3), Key(1, 0, 3, 0, 3), Key(1, 0, 2, 1, 3), Key(1, 0, 2, 0, 4)]
    assert len({key.stream() for key in [base, *others]}) == 5
    assert base.stream() == Key(seed=1, step=9, tensor=2, rank=3).stream()


def test_a_common_stream_is_the_same_on_all_ranks_and_no_ranks_own() -> None:
    keys = [Key(seed=1, tensor=2, rank=rank) for rank in range(4)]
    assert len({key.stream(common=True) for key in keys}) == 1
    assert keys[0].stream(common=True) not in {key.stream() for key in keys}


def test_a_tensor_id_depends_on_the_name_only_and_fits_int64() -> None:
    assert tensor_id("layer.weight") == tensor_id("layer.weight") != tensor_id("layer.bias")
    assert 0 <= tensor_id("layer.weight") < 2**63
