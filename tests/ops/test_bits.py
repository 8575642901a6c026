"""Packing of integers exists once, and everything that packs gives the bytes of one number written bit by bit."""

import re

import pytest
import torch

from gradwire import helpers
from gradwire.kernels.bits import pack, pack_bits, unpack, unpack_bits
from gradwire.kernels.levels import pack_levels, unpack_levels
from tests.house.source import ROOT

WIDTHS = pytest.mark.parametrize("bits", range(1, 9))
COUNTS = pytest.mark.parametrize("n", range(34))
PACKERS = {"kernels/bits.py", "kernels/codes.py", "kernels/trits.py"}
"""The only files that join codes into bytes: from the lowest bit on, from the highest on, and in base 3."""
JOINING = re.compile(r"(?:<<|\bbitwise_left_shift)[^\n]*\)\.sum\((?:dim=)?1[^\n]*(?:uint8|keepdim)|0x0102040810204080")


def stream_of(values, bits):
    """The bytes of the values as one long number, the first value in its lowest bits."""
    number = sum((value % 2**bits) << i * bits for i, value in enumerate(values))
    return list(number.to_bytes(-(-len(values) * bits // 8), "little"))


def values_of(n, bits, signed):
    low = -(2 ** (bits - 1)) if signed else 0
    return torch.randint(low, low + 2**bits, (n,), generator=torch.Generator().manual_seed(n * 8 + bits))


@COUNTS
@WIDTHS
@pytest.mark.parametrize("signed", [False, True])
def test_the_bytes_are_those_of_one_number(n, bits, signed):
    values = values_of(n, bits, signed)
    expected = stream_of(values.tolist(), bits)
    codes = torch.empty(len(expected), dtype=torch.uint8)
    pack_levels(values.float(), bits, codes)
    assert pack(values, bits).tolist() == helpers.pack(values, bits).tolist() == codes.tolist() == expected
    assert unpack(codes, bits, n).tolist() == [value % 2**bits for value in values.tolist()]
    assert helpers.unpack(codes, bits, n, signed=signed).tolist() == values.tolist()
    if signed:
        assert unpack_levels(codes, bits, n).tolist() == values.tolist()


@COUNTS
def test_bools_are_bits_of_1_and_fill_up_with_0(n):
    bits = values_of(n, 1, signed=False).bool()
    out = torch.full((-(-n // 8) + 2,), 255, dtype=torch.uint8)
    pack_bits(bits, out)
    assert out.tolist() == [*stream_of(bits.tolist(), 1), 0, 0]
    assert pack(bits, 1).tolist() == stream_of(bits.tolist(), 1)
    assert torch.equal(unpack_bits(out, n), bits)


@WIDTHS
def test_what_lies_beyond_the_end_is_0(bits):
    short = torch.full((3,), 255, dtype=torch.uint8)
    held = 24 // bits
    part = (1 << 24 % bits) - 1
    assert unpack(short, bits, 40).tolist() == [2**bits - 1] * held + [part] + [0] * (39 - held)


def test_no_other_module_packs():
    package = ROOT / "src" / "gradwire"
    folders = "kernels", "compressors", "contrib"
    sources = [package / "helpers.py", *(file for name in folders for file in (package / name).rglob("*.py"))]
    found = {
        str(file.relative_to(package))
        for file in sources
        if file.name != "triton.py" and JOINING.search(file.read_text(encoding="utf-8"))
    }
    assert "kernels/bits.py" in found
    assert found <= PACKERS, "use gradwire.kernels.bits"
