"""Cuts of keys: MXNet's table, and what holds for every cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import ConfigError
from gradwire.kvstore.protocol.keys import BIGARRAY_BOUND, place

MXNET = {
    (1_000_001, 2): [500016, 499985],
    (1_000_001, 3): [333344, 333328, 333329],
    (1_000_001, 4): [250000, 250016, 250000, 249985],
    (1_440_000, 2): [720000, 720000],
    (1_440_000, 3): [480000] * 3,
    (1_440_000, 4): [360000] * 4,
    (1_466_521, 2): [733264, 733257],
    (1_466_521, 3): [488848, 488832, 488841],
    (1_466_521, 4): [366640, 366624, 366640, 366617],
    (25_000_000, 2): [12500000] * 2,
    (25_000_000, 3): [8333328, 8333344, 8333328],
    (25_000_000, 4): [6250000] * 4,
}
"""Elements on each server with 2-bit codes, as seen on MXNet's wire."""


@pytest.mark.parametrize(("numel", "servers"), MXNET)
def test_two_bit_codes_are_cut_where_mxnet_cuts(numel, servers):
    assert [part.numel for part in place(3, numel, servers, alignment=16)] == MXNET[numel, servers]


@pytest.mark.parametrize(
    ("servers", "alignment", "sizes"), [(2, 16, [512, 488]), (3, 16, [336, 336, 328]), (2, 32, [512, 488])]
)
def test_a_bound_of_100(servers, alignment, sizes):
    assert [part.numel for part in place(3, 1000, servers, bound=100, alignment=alignment)] == sizes


@pytest.mark.parametrize(("numel", "sizes"), [(1_000_001, [500001, 500000]), (1_466_521, [733261, 733260])])
def test_uncompressed_keys_are_cut_by_elements(numel, sizes):
    assert [part.numel for part in place(3, numel, 2)] == sizes


@pytest.mark.parametrize("numel", [0, 1, BIGARRAY_BOUND - 1])
def test_a_small_key_is_whole(numel):
    (part,) = place("w", numel, 4)
    assert (part.start, part.stop) == (0, numel)


def test_what_cannot_be_cut_is_whole():
    (part,) = place("w", 2 * BIGARRAY_BOUND, 4, alignment=0)
    assert part.numel == 2 * BIGARRAY_BOUND


@pytest.mark.parametrize(
    "keys", [range(1000), range(0, 4000, 4), [f"layer{i}.weight" for i in range(1000)], [-1, 2**31, 300001]]
)
def test_small_keys_spread_over_the_servers(keys):
    count = [0] * 4
    for key in keys:
        (part,) = place(key, 10, 4)
        count[part.server] += 1
    assert sum(count) == len(keys)
    assert len(keys) < 1000 or min(count) > 200


keys = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20)


@given(keys, st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 2000), st.sampled_from([1, 8, 16, 32, 512]))
def test_parts_cover_a_key_once_and_start_where_codes_do(key, numel, servers, bound, alignment):
    parts = place(key, numel, servers, bound=bound, alignment=alignment)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == numel
    assert all(part.start % alignment == 0 and 0 <= part.server < servers for part in parts)
    assert len(parts) == 1 or all(part.numel > 0 for part in parts)
    assert len({part.server for part in parts}) == len(parts)


@pytest.mark.parametrize(("servers", "bound", "message"), [(0, 1, "servers"), (1, 0, "bound"), (1.5, 1, "servers")])
def test_numbers_outside_their_range_are_refused(servers, bound, message):
    with pytest.raises(ConfigError, match=message):
        place("w", 10, servers, bound=bound)
