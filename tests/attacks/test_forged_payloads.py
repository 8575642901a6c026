"""Payloads that somebody made on purpose: of the right length, and what they say is a lie.

A store's server gets payloads from outside. Each of these must be refused before anything is decoded. That random bytes
are refused or decoded is in every method's contract.
"""

import struct

import pytest
import torch

from gradwire.compressors.sparse.topk import TopK
from gradwire.errors import WireError
from gradwire.kvstore.protocol.payloads import received


def topk(values, counts, indices, n, ratio=0.5):
    """A top-k payload, field by field."""
    data = struct.pack(f"<{len(values)}f{len(counts)}i{len(indices)}H", *values, *counts, *indices)
    return TopK(ratio=ratio), n, data


ATTACKS = {
    "index at n": (topk([1.0], [1], [2], 2), "indices must increase and stay below 2"),
    "index far out": (topk([1.0], [1], [65535], 2), "stay below 2"),
    "index twice": (topk([1.0, 2.0], [2], [1, 1], 4), "must increase"),
    "indices backwards": (topk([1.0, 2.0], [2], [3, 0], 4), "must increase"),
    "count too high": (topk([1.0, 2.0], [3], [0, 1], 4), "counts must be >= 0 and sum to 2"),
    "count too low": (topk([1.0, 2.0], [1], [0, 1], 4), "counts must be >= 0 and sum to 2"),
    "count negative": (topk([1.0], [2, -1], [0], 65537, ratio=1e-6), "counts must be >= 0"),
    "counts that wrap": (topk([1.0], [2**31 - 1, 2**31 - 1, 3], [0], 131073, ratio=1e-6), "counts must be >= 0"),
    "segment past the end": (topk([1.0], [0, 1], [1], 65537, ratio=1e-6), "stay below 65537"),
}


def tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_forged_payload_is_refused(attack):
    (code, n, data), message = ATTACKS[attack]
    with pytest.raises(WireError, match=message):
        received(code, (n,), tensor(data))


def test_the_forger_can_also_tell_the_truth():
    code, n, data = topk([1.5, -2.0], [2], [0, 3], 4)
    assert code.decompress(received(code, (n,), tensor(data)), (n,)).tolist() == [1.5, 0.0, 0.0, -2.0]
