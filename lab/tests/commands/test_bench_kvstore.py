"""gradwire bench kvstore: in one process, over servers, beside MXNet, and over real links."""

import json
import os
import shutil
from pathlib import Path

import pytest

from gradwire.errors import ConfigError
from gradwire_lab.bench.bandwidth import device_bandwidth
from gradwire_lab.bench.mxnet_environment import REQUIREMENTS
from gradwire_lab.bench.peer_venv import PeerError, python_with
from gradwire_lab.bench.store_over_link import pushed_bytes
from gradwire_lab.experiments.shapes import network_shapes
from gradwire_lab.netlab import NetlabError

PEER = Path(__file__).parents[3] / ".peers" / "mxnet"


def rows(gradwire, *arguments):
    done = gradwire("bench", "kvstore", "--json", "-", *arguments)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_a_device_store_has_a_row_for_each_batch(gradwire):
    told = rows(gradwire, "--network", "3x1000,7", "--devices", "4", "--num-batches", "2")
    assert [row["batch"] for row in told] == [1, 2]
    for row in told:
        assert (row["keys"], row["bytes"], row["devices"]) == (4, 4 * 3007, 4)
        assert row["bandwidth"] == pytest.approx(2 * row["bytes"] * 3 / 4 / row["seconds"])
        assert row["error"] < 1e-6


def test_error_feedback_brings_the_error_of_the_mean_down(gradwire):
    told = rows(gradwire, "--network", "2000", "--gc-type", "2bit", "--gc-threshold", "1.5", "--num-batches", "30")
    assert all(row["error"] > 0.1 for row in told)
    assert told[-1]["mean_error"] < 0.5 * told[0]["mean_error"]
    assert told[0]["compression"] == {"type": "2bit", "threshold": 1.5}


def test_a_dist_store_gets_its_servers_and_workers(gradwire):
    told = rows(
        gradwire,
        "--kv-store",
        "dist_sync",
        "--workers",
        "2",
        "--servers",
        "2",
        "--network",
        "20x100,60000",
        "--num-batches",
        "2",
        "--gc-type",
        "topk",
    )
    assert [(row["workers"], row["servers"], row["devices"]) for row in told] == [(2, 2, 2)] * 2
    assert all(0 < row["error"] < 1.5 for row in told)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--workers", "2"), "--workers must be 1, got 2"),
        (("--network", "resnet1"), "did you mean 'resnet"),
        (("--network", "0x10"), "network must be a known one"),
        (("--gc-type", "3bit"), "unknown type '3bit'"),
        (("--peer", "mxnet", "--workers", "3"), "leave --workers out"),
        (("--peer", "mxnet", "--link", "1gbit"), "leave --link out"),
        (("--link", "1gbit", "--devices", "3"), "leave --devices out"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(gradwire, arguments, text):
    done = gradwire("bench", "kvstore", *arguments)
    assert done.exit_code == 2
    assert text in " ".join(done.stderr.split())


def test_parameters_of_networks_are_those_of_the_papers():
    counts = {"resnet18": 11_689_512, "resnet50": 25_557_032, "resnet152": 60_192_808, "alexnet": 61_100_840}
    for name, count in {**counts, "vgg16": 138_357_544}.items():
        shapes = network_shapes(name)
        total = 0
        for shape in shapes:
            size = 1
            for length in shape:
                size *= length
            total += size
        assert total == count
    with pytest.raises(ConfigError, match="network must be"):
        network_shapes("100x")


def test_the_formula_is_that_of_measure_py():
    assert device_bandwidth(1e9, 4, 1.0) == 1.5e9
    assert device_bandwidth(1e9, 1, 1.0) == 0


@pytest.mark.timeout(600)
def test_both_leave_the_same_bits_before_they_are_timed(gradwire):
    try:
        python_with(REQUIREMENTS, PEER)
    except PeerError as error:
        pytest.skip(f"MXNet cannot be installed here: {error}")
    sizes = ("--network", "1x20000,5x333", "--repeats", "1")
    told = rows(gradwire, "--peer", "mxnet", *sizes, "--gc-type", "2bit", "--peer-dir", str(PEER))
    assert [(row["keys"], row["size"], row["op"]) for row in told] == [
        (1, 20000, "push"),
        (1, 20000, "push+pull"),
        (5, 333, "push"),
        (5, 333, "push+pull"),
    ]
    assert all(row["speedup"] == row["mxnet_seconds"] / row["seconds"] for row in told)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and iproute2")
def test_a_step_over_a_link_takes_as_long_as_its_bytes(gradwire):
    try:
        (row,) = rows(gradwire, "--link", "20mbit", "--network", "100000", "--num-batches", "2", "--gc-type", "none")
    except NetlabError as error:
        pytest.skip(f"no network namespaces here: {error}")
    # Both workers' pushes came in, and their values went out: with headers a little more than the payload.
    assert 800_000 < row["received"] < 900_000
    assert 800_000 < row["sent"] < 900_000
    assert row["least_seconds"] == 8 * 1_600_000 / 20e6
    assert row["seconds"] > 0.95 * row["least_seconds"]


def test_bytes_that_a_worker_pushes():
    assert pushed_bytes([(17,), (1000,)], None) == 4 * 1017
    assert pushed_bytes([(17,), (1000,)], {"type": "2bit"}) == 8 + 252
