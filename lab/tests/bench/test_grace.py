"""GRACE's compressors beside ours, where there is a checkout of GRACE, and what needs none."""

from pathlib import Path

import pytest

from gradwire_lab.bench.peer_venv import PeerError
from gradwire_lab.bench.peers import grace as peer
from gradwire_lab.commands._lines import line

CHECKOUT = Path(__file__).parents[3] / ".peers" / "grace"


def test_a_folder_that_is_no_checkout_is_refused_with_the_way_to_one(tmp_path):
    with pytest.raises(
        PeerError, match=r"--peer-dir must be a checkout of GRACE, got .*: git clone https://github.com"
    ):
        next(peer.rows([], directory=tmp_path))


def test_a_checkout_that_cannot_be_imported_says_why(tmp_path):
    (tmp_path / "grace_dl" / "torch" / "compressor").mkdir(parents=True)
    with pytest.raises(PeerError, match=r"cannot be imported: No module named 'grace_dl"):
        next(peer.rows([], directory=tmp_path))


def test_every_method_of_the_comparison_is_one_of_ours():
    codes = [method.ours().name for method in peer._METHODS]
    assert codes == [method.file for method in peer._METHODS]
    assert {"fp16", "topk", "dgc", "signum", "qsgd", "terngrad"} <= set(codes)
    assert peer.row_count([1 << 12, 1 << 16]) == 4 * len(codes)


def test_the_row_of_a_peer_is_shown_with_its_speedup():
    row = {"method": "fp16", "params": {}, "size": 65536, "op": "encode+decode", "implementation": "grace"}
    figures = {"seconds": 2e-5, "bytes_moved": 524288, "triad_ratio": 0.5, "wire_bits_per_element": 16.0}
    shown = line({**row, **figures, "speedup": 1.5}, 24)
    assert shown.startswith("grace fp16 ")
    assert shown.endswith("   1.5x")


@pytest.mark.skipif(not CHECKOUT.is_dir(), reason="there is no checkout of GRACE in .peers/grace")
def test_both_decode_the_same_and_are_timed_in_turns():
    rows = list(peer.rows([], repeats=3))
    assert len(rows) == peer.row_count([])
    assert [row["implementation"] for row in rows[:2]] == ["grace", "gradwire"]
    ours, theirs = rows[1::2], rows[::2]
    for a, b in zip(ours, theirs, strict=True):
        # How many elements pass depends on what is drawn in GRACE's form of dgc.
        assert a["method"] == "dgc" or a["wire_bits_per_element"] <= 1.05 * b["wire_bits_per_element"]
