"""Bit for bit with Apache MXNet 1.9.1 itself, where it can be installed."""

from pathlib import Path

import pytest
import torch

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire_lab.bench.peer_venv import PeerError, python_with
from gradwire_lab.bench.peers import mxnet as peer

# Its first run installs MXNet: tens of megabytes.
pytestmark = pytest.mark.timeout(600)

DIRECTORY = Path(__file__).parents[3] / ".peers" / "mxnet"
ZERO_PUSHES = 3
NAN, INF, TINY, HUGE = float("nan"), float("inf"), 1e-45, 3e38


@pytest.fixture(scope="module")
def mxnet():
    try:
        python_with(peer.REQUIREMENTS, DIRECTORY)
    except PeerError as error:
        pytest.skip(f"MXNet cannot be installed here: {error}")
    with peer.MXNet(DIRECTORY) as store:
        yield store


def drained(pushes):
    """The same pushes, then pushes of zeros: what still comes out of those is the residuals."""
    silence = [torch.zeros_like(gradient) for gradient in pushes[0]]
    return [*pushes, *[silence] * ZERO_PUSHES]


@pytest.mark.parametrize("size", [1, 17, 1000, 100_003])
@pytest.mark.parametrize("threshold", [0.5, 0.1, 1.7, 1e-3])
def test_five_random_pushes_and_the_residuals_they_leave(mxnet, size, threshold):
    generator = torch.Generator().manual_seed(size)
    pushes = [[torch.randn(size, generator=generator) * 2 * threshold for _ in range(2)] for _ in range(5)]
    peer.compare(mxnet, drained(pushes), threshold)


@pytest.mark.parametrize("threshold", [0.5, 0.1, 1.7, 1e-3])
def test_usual_thresholds_mean_the_same_float32_on_both_sides(mxnet, threshold):
    assert mxnet.open("probe", 1, threshold) == torch.tensor(threshold).item()


def test_the_peer_really_is_the_version_that_is_claimed(mxnet):
    assert mxnet.version == "1.9.1"


SPECIAL = torch.tensor(
    [NAN, INF, -INF, HUGE, -HUGE, TINY, -TINY, -0.0, 0.0, 0.5, -0.5, 0.49999997, 1e-38, -1e-38, 0.4, 0.1]
)


@pytest.mark.parametrize("shift", [0, 1, 5])
def test_special_values(mxnet, shift):
    pushes = [[SPECIAL.roll(i * shift), SPECIAL.roll(i * shift + 3)] for i in range(5)]
    peer.compare(mxnet, drained(pushes), 0.5)


@pytest.mark.parametrize("size", [33, 1000])
def test_subnormal_gradients_are_kept_until_they_reach_the_threshold(mxnet, size):
    threshold = 1.5e-38
    generator = torch.Generator().manual_seed(3)
    pushes = [[torch.randn(size, generator=generator) * 8e-39 for _ in range(2)] for _ in range(5)]
    assert 0 < float(pushes[0][0].abs().median()) < torch.finfo(torch.float32).tiny
    peer.compare(mxnet, pushes, threshold)
    assert mxnet.pull("compared").any()
    peer.compare(mxnet, drained(pushes), threshold)


def test_a_difference_in_one_bit_is_found_before_anything_is_timed(mxnet, monkeypatch):
    monkeypatch.setattr(peer, "TwoBit", lambda threshold: TwoBit(threshold * 2))
    with pytest.raises(PeerError, match=r"push 0 of 100 elements at threshold 0\.5 differs from MXNet at \d+ places"):
        peer.compare(mxnet, [[torch.full((100,), 0.7)] * 2], 0.5)


@pytest.mark.usefixtures("mxnet")
def test_rows_put_both_sides_beside_each_other():
    rows = list(peer.rows([1000, 20_000], repeats=3, directory=DIRECTORY))
    assert len(rows) == peer.row_count([1000, 20_000])
    kinds = [("mxnet 1.9.1", "twobit"), ("mxnet 1.9.1", "none"), ("gradwire", "twobit")]
    assert [(row["implementation"], row["method"]) for row in rows] == kinds * 2
    for first, row in zip([rows[0]] * 3 + [rows[3]] * 3, rows, strict=True):
        assert row["op"] == "push2"
        assert row["seconds"] > 0
        assert row["speedup"] == first["seconds"] / row["seconds"]
