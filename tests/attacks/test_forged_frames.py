"""Frames that somebody made on purpose: every checksum matches, and what they say is a lie.

Each must be refused, and refused cheaply: before memory of the size that it announces is taken.
"""

import json
import struct
import tracemalloc

import pytest
import torch

from gradwire.compressors.sparse.topk import TopK
from gradwire.errors import WireError
from gradwire.wire import Reader, unframe
from tests.wire.frames import forge, small


def header(shape, name="none", **params):
    return {"compressor": {"name": name, **params}, "shape": shape}


def topk(values, counts, indices, shape, ratio=0.5):
    """A top-k payload, field by field."""
    payload = struct.pack(f"<{len(values)}f{len(counts)}i{len(indices)}H", *values, *counts, *indices)
    return forge(header(shape, "topk", ratio=ratio), payload)


BIG = 2**62
ATTACKS = {
    # A few bytes that stand for a huge tensor.
    "a huge tensor in no bytes": (forge(header([2**31])), "at most 1073741824 elements"),
    "a huge tensor in few bytes": (topk([1.0], [1], [0], [2**40], ratio=1e-12), "at most 1073741824 elements"),
    "a product beyond 64 bits": (forge(header([2**33] * 16)), "at most 1073741824 elements"),
    "a product that wraps to 0": (forge(header([2**32, 2**32])), "at most 1073741824 elements"),
    "a huge size hidden by a 0": (forge(header([BIG, 0])), "at most 1073741824 elements"),
    "a huge rank": (forge(header([4, 4], "powersgd", rank=BIG)), "bytes of payload, but 'powersgd'"),
    # Lengths that do not fit together.
    "payload length beyond 63 bits": (forge(header([1]), nbytes=2**64 - 1), "payload must be at most"),
    "payload announced, not sent": (forge(header([2**29]), nbytes=2**31), "truncated: its payload needs 2147483648"),
    "header over the payload": (forge(header([1]), b"\0" * 4, header_nbytes=60), "truncated: its header"),
    "header length 2^32 - 1": (forge(header([1]), b"\0" * 4, header_nbytes=2**32 - 1), "at most 65536 bytes"),
    "header cut short": (forge(header([1]), b"\0" * 4, header_nbytes=20), "header is corrupted"),
    "payload over the next frame": (forge(header([9]), b"\0" * 4) + small(), "but 'none' of shape"),
    # JSON against the parser.
    "nested lists": (forge(b"[" * 60000 + b"]" * 5000), "not strict JSON"),
    "nested objects": (forge(b'{"a":' * 12000 + b"1" + b"}" * 5000), "not strict JSON"),
    "digits": (forge(b'{"compressor":{"name":"none"},"shape":[%s]}' % (b"9" * 60000)), "does not fit into 64 bits"),
    "a float of many digits": (
        forge(b'{"compressor":{"name":"twobit","threshold":0.%s1},"shape":[]}' % (b"0" * 60000)),
        "TwoBit.threshold",
    ),
    "many keys": (forge({str(i): i for i in range(4000)}), "must be an object with"),
    "lone surrogates": (forge(b'{"compressor":{"name":"\\ud800"},"shape":[]}'), "unknown compressor"),
    "a null byte": (forge(b'{"compressor":{"name":"none\\u0000"},"shape":[]}'), "unknown compressor"),
    # Names that must not be imported or called.
    "a module": (forge(header([1], "os")), "unknown compressor 'os'"),
    "a dotted path": (forge(header([1], "..errors")), "unknown compressor"),
    "a class by path": (forge(header([1], "subprocess:Popen", args="true")), "unknown compressor"),
    "a private attribute": (forge(header([1], "none", __class__="x")), "has no parameter '__class__'"),
    "self": (forge(header([1], "twobit", self=1)), "has no parameter 'self'"),
    # Payloads that would write where they must not.
    "topk index at n": (topk([1.0], [1], [2], [2]), "indices must increase and stay below 2"),
    "topk index far out": (topk([1.0], [1], [65535], [2]), "stay below 2"),
    "topk index twice": (topk([1.0, 2.0], [2], [1, 1], [4]), "must increase"),
    "topk indices backwards": (topk([1.0, 2.0], [2], [3, 0], [4]), "must increase"),
    "topk count too high": (topk([1.0, 2.0], [3], [0, 1], [4]), "counts must be >= 0 and sum to 2"),
    "topk count too low": (topk([1.0, 2.0], [1], [0, 1], [4]), "counts must be >= 0 and sum to 2"),
    "topk count negative": (topk([1.0], [2, -1], [0], [65537], ratio=1e-6), "counts must be >= 0"),
    "topk counts that wrap": (topk([1.0], [2**31 - 1, 2**31 - 1, 3], [0], [131073], ratio=1e-6), "counts must be >= 0"),
    "topk segment past the end": (topk([1.0], [0, 1], [1], [65537], ratio=1e-6), "stay below 65537"),
}


def read_all(data):
    reader = Reader()
    reader.feed(data)
    reader.close()


@pytest.mark.parametrize("attack", ATTACKS)
def test_refused_without_taking_memory(attack):
    data, message = ATTACKS[attack]
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=message):
            unframe(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(data) + 2**20


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_stream_refuses_it_too(attack):
    data, _ = ATTACKS[attack]
    with pytest.raises(WireError):
        read_all(data)


def test_the_forger_can_also_tell_the_truth():
    opened = unframe(topk([1.5, -2.0], [2], [0, 3], [4]))
    assert opened.compressor == TopK(ratio=0.5)
    assert opened.compressor.decompress(opened.payload, opened.shape).tolist() == [1.5, 0.0, 0.0, -2.0]
    padded = forge(json.dumps(header([1])).encode() + b" \n\t ", struct.pack("<f", 2.5))
    assert unframe(padded).payload.view(torch.float32).tolist() == [2.5]
