"""Whatever arrives, a server answers or is silent: it never raises, and nobody gets what was meant for another."""

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import WireError
from gradwire.kvstore.protocol.messages import REPLIES, REQUESTS, pack, unpack
from gradwire.kvstore.server.core import HANDLERS, ServerCore
from gradwire.kvstore.server.rules import Rules
from tests.kvstore.talk import hello, init, messages, pull, push, values

plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=20)
)
anything = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
pushed = [["w", 1, 16, -1], [[1], 1, 256, -1], ["w", 1, 24, 1], ["w", 1, 16, 0]]
units = [*([each] for each in pushed), pushed[:2], pushed[1:3], [["w", 0]], [[[1], 0], ["v", 0]], ["w", "v"]]
likely = st.sampled_from(["w", "v", 0, 1, 2, 3, 4, -1, "float32", [4], {}, True, False, b"x" * 16, "sgd", *units])


@st.composite
def headers(draw):
    """Headers that are nearly right: an op with its fields, each likely to be allowed."""
    op = draw(st.sampled_from([name for name in REQUESTS if name != "hello"]))
    return pack(op, **{name: draw(likely | anything) for name in REQUESTS[op]})


frames = st.lists(headers() | st.binary(max_size=60) | anything.map(msgpack.packb), max_size=3)


def served():
    """A server with two workers and a key of each."""
    core = ServerCore(Rules(workers=2, max_bytes=10**6))
    a, b = hello(core, 0), hello(core, 1)
    for peer in (a, b):
        init(core, peer, 1, "w", torch.full((4,), 3.0))
    return core, a, b


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([b"peer-0", b"stranger"]), frames), max_size=8))
def test_nothing_that_arrives_raises_or_reaches_another(conversation):
    core, _, b = served()
    for peer, parts in conversation:
        for to, op, fields, _ in messages(core.receive(peer, parts, 0.0)):
            assert to == peer or (to == b and op in ("done", "value", "error")), (to, op, fields)
    # Worker 1 is served as before.
    assert values(pull(core, b, 10**6, "w", 0))[b] == [3.0] * 4 or core.values.parts["w"].version > 0


@settings(max_examples=300, deadline=None)
@given(frames)
def test_a_stranger_changes_nothing(parts):
    core, a, b = served()
    told = messages(core.receive(b"stranger", parts, 0.0))
    assert all(to == b"stranger" and op == "error" for to, op, *_ in told)
    for peer in (a, b):
        push(core, peer, 2, "w", 1, torch.ones(4))
    assert values(pull(core, a, 3, "w", 1)) == {a: [2.0] * 4}


def test_every_request_has_its_function():
    assert HANDLERS.keys() == REQUESTS.keys()


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_a_wire_error(data):
    for table in (REQUESTS, REPLIES):
        try:
            op, fields, _ = unpack([data], table)
        except WireError:
            continue
        assert fields.keys() == table[op].keys()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_message_with_flipped_bytes_is_refused_or_is_another_message(data):
    core, a, _ = served()
    header = bytearray(pack("push", seq=2, chunk=0, chunks=1, items=[["w", 1, 16, -1]], config=0, optimizer=0))
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    core.receive(a, [bytes(header), bytes(16)], 0.0)


@pytest.mark.parametrize("depth", [10, 1000, 20000])
def test_a_deep_header_is_refused(depth):
    core, a, _ = served()
    (reply,) = messages(core.receive(a, [b"\x91" * depth + b"\xc0"], 0.0))
    assert reply[1] == "error"


def test_pieces_that_never_end_are_bounded():
    core, a, _ = served()
    big = {"key": "big", "shape": [250000], "dtype": "float32", "start": 0, "total": 250000, "sparse": False}
    for seq in range(2, 100):
        replies = core.receive(a, [pack("init", seq=seq, chunk=0, chunks=1, **big), bytes(2**20)], 0.0)
        assert messages(replies)[0][1] == "error"
        a = hello(core, 0)
