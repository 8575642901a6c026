"""Several payloads in one message."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.vocabulary import ALIGNMENT, Field, Layout
from gradwire.wire import Packing

DTYPES = [torch.uint8, torch.int16, torch.float16, torch.float32, torch.int64]
layouts = st.lists(
    st.lists(st.builds(Field, st.just("f"), st.sampled_from(DTYPES), st.integers(0, 9)), max_size=3).map(
        lambda fields: Layout(tuple(fields))
    ),
    max_size=4,
).map(tuple)


@given(layouts)
def test_every_payload_has_its_own_aligned_bytes(layouts):
    packing = Packing(layouts)
    assert packing.nbytes % ALIGNMENT == 0
    owner = torch.zeros(packing.nbytes, dtype=torch.int64)
    owner[:4] += 1
    for offset, layout in zip(packing.offsets, layouts, strict=True):
        assert offset % ALIGNMENT == 0
        owner[offset : offset + layout.nbytes] += 1
    assert bool((owner <= 1).all())
    assert packing.nbytes == 8 + sum(-(-layout.nbytes // 8) * 8 for layout in layouts)


@given(layouts, st.integers(1, 3))
def test_views_of_rows_are_views_of_the_buffer(layouts, ranks):
    packing = Packing(layouts)
    rows = torch.zeros(ranks, packing.nbytes, dtype=torch.uint8)
    packing.status(rows)[:, 0] = torch.arange(ranks, dtype=torch.int32) + 1
    for i in range(len(layouts)):
        for field in packing.payload(rows, i):
            field.view(torch.uint8).fill_(i + 1)
    for rank in range(ranks):
        assert packing.status(rows[rank]).tolist() == [rank + 1]
        for i, layout in enumerate(layouts):
            views = packing.payload(rows[rank], i)
            assert [(view.dtype, view.numel()) for view in views] == [(f.dtype, f.count) for f in layout.fields]
            assert all(bool((view.view(torch.uint8) == i + 1).all()) for view in views)


def test_the_documented_example():
    packing = Packing((Layout((Field("codes", torch.uint8, 5),)), Layout((Field("values", torch.float32, 2),))))
    buffer = torch.zeros(packing.nbytes, dtype=torch.uint8)
    packing.status(buffer)[0] = -2
    packing.payload(buffer, 0)[0].fill_(7)
    packing.payload(buffer, 1)[0].fill_(1.0)
    assert bytes(buffer.tolist()).hex(" ", 8) == "feffffff00000000 0707070707000000 0000803f0000803f"
    assert packing == Packing(packing.layouts)
