"""Round trips, and everything that may happen to a frame on its way."""

import json
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.compressors.casts.none import Identity
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.errors import ConfigError, GradwireError, WireError
from gradwire.wire import MAX_DIMS, MAX_HEADER, frame, unframe
from tests.cases import together
from tests.wire.frames import every, forge, small, sparse

SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)
FRAMES = [small(), sparse()]


@together
@pytest.mark.parametrize("compressor", every(), ids=lambda c: c.name)
@given(shape=SHAPES, seed=st.integers(0, 2**32))
def test_round_trip(compressor, shape, seed):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    payload = compressor.compress(x)
    opened = unframe(frame(compressor, shape, payload))
    assert opened.compressor == compressor
    assert opened.shape == shape
    assert torch.equal(opened.payload, payload)
    assert torch.equal(opened.compressor.decompress(opened.payload, shape), compressor.decompress(payload, shape))


@given(
    st.builds(TwoBit, st.floats(2.0**-100, 2.0**100, width=32))
    | st.builds(QSGD, st.integers(2, 8), st.integers(1, 9).map(lambda n: 16 * n), st.sampled_from(["l2", "linf"]))
    | st.builds(TopK, st.floats(0.01, 1.0))
)
def test_configurations_travel_exactly(compressor):
    payload = compressor.compress(torch.ones(7))
    assert unframe(frame(compressor, (7,), payload)).compressor == compressor


def test_every_form_of_bytes_is_read():
    data = small()
    strided = memoryview(bytes(byte for byte in data for _ in range(2)))[::2]
    words = np.frombuffer(data, dtype=np.uint32)
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    views = [bytearray(data), memoryview(data), memoryview(words), strided, tensor, torch.stack([tensor] * 2, 1)[:, 1]]
    for given_as in views:
        assert torch.equal(unframe(given_as).payload, unframe(data).payload)


@together
@pytest.mark.parametrize("bad", ["text", [1, 2], None, torch.zeros(3), torch.zeros(2, 2, dtype=torch.uint8)])
def test_what_is_no_bytes_is_the_callers_fault(bad):
    with pytest.raises(ConfigError, match=r"unframe\.data must be"):
        unframe(bad)


def test_the_payload_is_a_copy():
    data = bytearray(small())
    payload = unframe(data).payload
    data[-4:] = b"\xff" * 4
    assert payload.tolist() == [0xE0, 0, 0, 0]
    payload.zero_()
    assert payload.data_ptr() % 8 == 0


@pytest.mark.parametrize("data", FRAMES, ids=["twobit", "topk"])
def test_truncation_at_every_byte(data):
    for length in range(len(data)):
        with pytest.raises(WireError, match="truncated"):
            unframe(data[:length])


@pytest.mark.parametrize("data", FRAMES, ids=["twobit", "topk"])
def test_every_flipped_bit(data):
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            unframe(broken)


@pytest.mark.parametrize("byte", range(4))
def test_every_byte_of_both_checksums_is_compared(byte):
    """Only one byte of a CRC-32 differs from what it should be."""
    head = bytearray(small())
    head[24 + byte] ^= 0xFF
    with pytest.raises(WireError, match="frame header is corrupted"):
        unframe(head)
    payload = bytearray(small())
    payload[20 + byte] ^= 0xFF
    length = struct.unpack_from("<I", payload, 16)[0]
    # The head covers the payload's checksum, and fits it again.
    struct.pack_into("<I", payload, 24, zlib.crc32(payload[28 : 28 + length], zlib.crc32(payload[:24])))
    with pytest.raises(WireError, match="frame payload is corrupted"):
        unframe(payload)


@pytest.mark.parametrize("more", [b"\0", b" ", small()])
def test_trailing_bytes(more):
    with pytest.raises(WireError, match=f"frame of 124 bytes is followed by {len(more)} others"):
        unframe(small() + more)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes(data):
    with pytest.raises(WireError):
        unframe(data)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
METHODS = st.sampled_from(["none", "twobit", "topk", "qsgd", "powersgd", "onebit"])
KEYS = st.sampled_from(["threshold", "ratio", "bits", "block", "norm", "rank"])
CONFIGS = st.builds(lambda name, params: {"name": name, **params}, METHODS, st.dictionaries(KEYS, ANYTHING, max_size=2))
SHAPES_READ = st.lists(st.integers(-1, 5), max_size=3)
HEADERS = ANYTHING | st.fixed_dictionaries({"compressor": CONFIGS | ANYTHING, "shape": SHAPES_READ | ANYTHING})


@given(HEADERS, st.binary(max_size=40))
@settings(max_examples=300, deadline=None)
def test_random_headers_and_payloads(header, payload):
    """Behind checksums that match, anything may stand; it is read or refused, and never anything else."""
    try:
        opened = unframe(forge(header, payload), max_bytes=4096)
    except WireError:
        return
    assert opened.payload.numel() == opened.compressor.layout(opened.shape).nbytes
    assert opened.compressor.decompress(opened.payload, opened.shape).shape == opened.shape


NONE = {"compressor": {"name": "none"}, "shape": [1]}


def with_(**changes):
    return forge({**NONE, **changes}, b"\0" * 4)


REFUSED = {
    "wrong magic": (forge(NONE, b"\0" * 4, magic=b"GRDX"), "not a gradwire frame: it starts with b'GRDX'"),
    "version 0": (forge(NONE, b"\0" * 4, version=0), "version 0; this gradwire reads version 1"),
    "version 2": (forge(NONE, b"\0" * 4, version=2), "version 2"),
    "header too long": (forge(b" " * (MAX_HEADER + 1)), "header must be at most 65536 bytes, got 65537"),
    "empty header": (forge(b""), "not strict JSON"),
    "not JSON": (forge(b"{'compressor'}"), "not strict JSON"),
    "not UTF-8": (forge(b'{"compressor":"\xff"}'), "not strict JSON"),
    "UTF-16": (forge(json.dumps(NONE).encode("utf-16"), b"\0" * 4), "not strict JSON"),
    "byte order mark": (forge(b"\xef\xbb\xbf" + json.dumps(NONE).encode(), b"\0" * 4), "not strict JSON"),
    "text after the object": (forge(json.dumps(NONE).encode() + b"x", b"\0" * 4), "not strict JSON"),
    "NaN": (forge(b'{"compressor":{"name":"twobit","threshold":NaN},"shape":[]}'), "'NaN' is not a finite number"),
    "infinity": (forge(b'{"compressor":{"name":"twobit","threshold":-Infinity},"shape":[]}'), "not a finite number"),
    "beyond float": (forge(b'{"compressor":{"name":"twobit","threshold":1e999},"shape":[]}'), "not a finite number"),
    "key twice": (forge(b'{"shape":[1],"compressor":{"name":"none"},"shape":[2]}', b"\0" * 4), "a key appears twice"),
    "inner key twice": (forge(b'{"shape":[1],"compressor":{"name":"none","name":"fp16"}}'), "a key appears twice"),
    "a list": (forge([NONE]), "must be an object with 'compressor' and 'shape' alone"),
    "a member missing": (forge({"shape": [1]}), "must be an object with 'compressor' and 'shape' alone"),
    "another member": (with_(extra=1), "must be an object with 'compressor' and 'shape' alone"),
    "shape a number": (with_(shape=1), "shape must be a list of integers >= 0, got 1"),
    "shape of floats": (with_(shape=[1.0]), "shape must be a list of integers"),
    "shape of flags": (with_(shape=[True]), "shape must be a list of integers"),
    "shape of text": (with_(shape=["1"]), "shape must be a list of integers"),
    "shape negative": (with_(shape=[-1, -1]), r"shape must be a list of integers >= 0, got \[-1, -1\]"),
    "17 dimensions": (with_(shape=[1] * (MAX_DIMS + 1)), "at most 16 dimensions, got 17"),
    "compressor a name": (with_(compressor="none"), "compressor must be an object, got 'none'"),
    "no name": (with_(compressor={}), "a compressor configuration needs a 'name'"),
    "name no text": (with_(compressor={"name": ["none"]}), "a compressor configuration needs a 'name'"),
    "unknown name": (with_(compressor={"name": "twobits"}), "unknown compressor 'twobits': did you mean 'twobit'?"),
    "machinery": (with_(compressor={"name": "base"}), "unknown compressor 'base'"),
    "private module": (with_(compressor={"name": "_float_cast"}), "unknown compressor '_float_cast'"),
    "a path": (with_(compressor={"name": "../../os"}), "unknown compressor"),
    "unknown parameter": (with_(compressor={"name": "twobit", "treshold": 1}), "did you mean 'threshold'?"),
    "parameter out of range": (with_(compressor={"name": "twobit", "threshold": 0}), "TwoBit.threshold must be"),
    "parameter of another type": (with_(compressor={"name": "qsgd", "bits": [4]}), "QSGD.bits must be"),
    "unhashable parameter": (with_(compressor={"name": "qsgd", "norm": {}}), "compressor .* is refused"),
    "payload too short": (with_(shape=[2]), r"4 bytes of payload, but 'none' of shape \(2,\) has 8"),
    "payload too long": (with_(shape=[0]), r"4 bytes of payload, but 'none' of shape \(0,\) has 0"),
    "truncated prefix": (small()[:27], "truncated: its prefix needs 24 bytes, 23 are left"),
    "truncated header": (small()[:103], "truncated: its header needs 92 bytes, 75 are left"),
    "truncated payload": (small()[:-1], "truncated: its payload needs 4 bytes, 3 are left"),
    "header changed": (small().replace(b"0.5", b"0.4"), "header is corrupted"),
    "payload changed": (small()[:-1] + b"\1", "payload is corrupted"),
}


@together
@pytest.mark.parametrize("case", REFUSED)
def test_each_fault_has_its_own_words(case):
    data, message = REFUSED[case]
    with pytest.raises(WireError, match=message):
        unframe(data)


def test_integers_beyond_64_bits():
    for text in ("9223372036854775808", "-9223372036854775809", "9" * 5000):
        header = b'{"compressor":{"name":"none"},"shape":[%s]}' % text.encode()
        with pytest.raises(WireError, match="does not fit into 64 bits"):
            unframe(forge(header))


def test_max_bytes_limits_payload_and_tensor():
    code = Identity()
    data = frame(code, (4,), code.compress(torch.ones(4)))
    assert unframe(data, max_bytes=16).shape == (4,)
    with pytest.raises(WireError, match="payload must be at most max_bytes=15 bytes, got 16"):
        unframe(data, max_bytes=15)
    code = TwoBit()
    data = frame(code, (16,), code.compress(torch.ones(16)))
    assert unframe(data, max_bytes=64).shape == (16,)
    with pytest.raises(WireError, match=r"at most 15 elements \(max_bytes=63\)"):
        unframe(data, max_bytes=63)


def test_frame_refuses_what_could_not_be_read():
    code = Identity()
    for payload in (torch.zeros(3, dtype=torch.uint8), torch.zeros(1), torch.zeros(1, 4, dtype=torch.uint8)):
        with pytest.raises(ConfigError, match=r"frame\.payload must be uint8 of shape \(4,\)"):
            frame(code, (1,), payload)
    with pytest.raises(ConfigError, match=r"frame\.shape must be of at most 16 dimensions"):
        frame(code, (1,) * 17, torch.zeros(4, dtype=torch.uint8))


class Odd(Identity):
    """A configuration that is no JSON, or too long for a header."""

    value = None

    def to_config(self):
        return {"name": "odd", "value": self.value}


@pytest.mark.parametrize(
    ("value", "message"), [({1, 2}, "not JSON"), (float("nan"), "not JSON"), ("x" * MAX_HEADER, "at most 65536 bytes")]
)
def test_frame_refuses_configurations_that_cannot_travel(value, message):
    code = Odd()
    object.__setattr__(code, "value", value)
    with pytest.raises(ConfigError, match=message):
        frame(code, (1,), torch.zeros(4, dtype=torch.uint8))


def test_the_payload_is_aligned_in_the_frame():
    for n in range(9):
        data = frame(Identity(), (n,), Identity().compress(torch.ones(n)))
        assert (28 + struct.unpack_from("<I", data, 16)[0]) % 8 == 0


def test_errors_are_short_whatever_was_sent():
    texts = [
        with_(compressor={"name": "x" * 60000}),
        with_(compressor={"name": "none", "y" * 60000: 1}),
        with_(shape=["z" * 60000]),
        forge(b'{"%s":1,"%s":1}' % (b"k" * 20000, b"k" * 20000)),
    ]
    for data in texts:
        with pytest.raises(GradwireError) as caught:
            unframe(data)
        assert len(str(caught.value)) < 700
