"""Frames out of a stream: the same whichever way it was cut."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import WireError
from gradwire.wire import Reader, unframe
from tests.cases import together
from tests.wire.frames import forge, small, sparse

GOOD = [small(), sparse(), small()]
NONE = {"compressor": {"name": "none"}, "shape": [1]}
BROKEN = {
    "magic": b"GRXX",
    "version": forge(NONE, b"\0" * 4, version=3),
    "announced size": forge(NONE, nbytes=2**40),
    "header checksum": small().replace(b"0.5", b"0.4"),
    "unknown compressor": forge({"compressor": {"name": "nine"}, "shape": [1]}, b"\0" * 4),
    "payload length": forge({**NONE, "shape": [2]}, b"\0" * 4),
    "payload checksum": small()[:-1] + b"\1",
}


def read(chunks):
    """All frames of a stream, and the words of the error that ended it."""
    reader, frames = Reader(), []
    try:
        for chunk in chunks:
            frames += reader.feed(chunk)
        reader.close()
    except WireError as error:
        return frames, str(error)
    return frames, None


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def same(a, b):
    return (
        a[1] == b[1]
        and len(a[0]) == len(b[0])
        and all(
            x.compressor == y.compressor and x.shape == y.shape and torch.equal(x.payload, y.payload)
            for x, y in zip(a[0], b[0], strict=True)
        )
    )


@given(st.lists(st.integers(0, 10**6), max_size=12), st.sampled_from([None, *BROKEN]))
def test_cuts_do_not_matter(places, end):
    stream = b"".join(GOOD) + (BROKEN[end] if end else b"")
    assert same(read(cut(stream, places)), read([stream]))


@together
@pytest.mark.parametrize("end", BROKEN)
def test_whole_and_byte_by_byte(end):
    stream = b"".join(GOOD) + BROKEN[end]
    whole = read([stream])
    assert same(whole, ([unframe(data) for data in GOOD], whole[1]))
    assert whole[1] is not None
    assert same(read(bytes([byte]) for byte in stream), whole)


EARLY = {
    "magic": 4,
    "version": 28,
    "announced size": 28,
    "header checksum": 120,
    "payload checksum": 124,
    **{end: len(BROKEN[end]) - 4 for end in ("unknown compressor", "payload length")},
}


@together
@pytest.mark.parametrize("end", EARLY)
def test_a_fault_is_raised_by_the_byte_that_shows_it(end):
    reader = Reader()
    for byte in BROKEN[end][: EARLY[end] - 1]:
        assert reader.feed(bytes([byte])) == []
    with pytest.raises(WireError):
        reader.feed(BROKEN[end][EARLY[end] - 1 : EARLY[end]])


def test_a_broken_stream_stays_broken():
    reader = Reader()
    assert len(reader.feed(GOOD[0] + b"????" + GOOD[1])) == 1
    for call in (lambda: reader.feed(GOOD[0]), lambda: reader.feed(b""), reader.close):
        with pytest.raises(WireError, match=r"starts with b'\?\?\?\?'"):
            call()


@together
@pytest.mark.parametrize("length", range(1, 124))
def test_a_stream_that_ends_inside_a_frame(length):
    reader = Reader()
    reader.feed(small()[:length])
    with pytest.raises(WireError, match="stream ended inside a frame"):
        reader.close()


def test_limits_and_known_compressors_reach_the_parser():
    with pytest.raises(WireError, match="max_bytes=3"):
        Reader(max_bytes=3).feed(small())
    known = unframe(small()).compressor
    assert Reader(known=[known]).feed(small())[0].compressor is known
