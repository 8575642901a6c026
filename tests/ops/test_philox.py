"""Counter-based random words: the published vectors, and every target against the reference."""

import pytest
import torch

from gradwire.kernels import philox
from tests.cases import together
from tests.ops.harness import TARGETS, Case, check_against_reference, dispatched, sweep

# The digits of pi, as Random123 has them in its kat_vectors; the counter's upper half is negative as an int64.
PI_COUNTER, PI_STEP, PI_KEY = 0x85A308D3243F6A88 - 2**64, 0x0370734413198A2E, 0x299F31D0A4093822

# The last one crosses the counter from which its upper half is not zero.
STREAMS = [(0, 0, 0), (-1, 2**62 + 5, 0), (0x123456789ABCDEF0, 7, 2**31 + 3), (3, 2**33 + 1, 2**32 - 9)]


@sweep
def test_words(n, threads, offset):
    for key, step, first in STREAMS:
        case = Case(philox, {}, {"out": ((n,), torch.int32)}, {"key": key, "step": step, "offset": first})
        check_against_reference(case, threads, offset)


@together
@pytest.mark.parametrize("target", [*TARGETS, None])
@pytest.mark.parametrize(
    ("key", "step", "first", "words"),
    [
        (0, 0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (-1, -1, -1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI_KEY, PI_STEP, PI_COUNTER, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_known_answers_of_random123(target, key, step, first, words):
    out = torch.zeros(4, dtype=torch.int32)
    if target is None:
        philox.reference(out, key, step, first)
    else:
        with dispatched(target):
            philox(out, key, step, first)
    assert tuple(word & 0xFFFFFFFF for word in out.tolist()) == words


def test_an_offset_continues_the_stream():
    whole, rest = torch.empty(40, dtype=torch.int32), torch.empty(20, dtype=torch.int32)
    philox(whole, 5, 6)
    philox(rest, 5, 6, 5)
    assert torch.equal(whole[20:], rest)
