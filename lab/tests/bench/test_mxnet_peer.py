"""MXNet itself beside ours: the same gradients through both, and the same bits out of both.

MXNet 1.9.1 has the 2-bit code; the 1-bit code came with 2.0.0b1. Each is installed into an environment of its own;
where that cannot be done, its tests are skipped.
"""

import itertools
import json
import os
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from gradwire import kvstore
from gradwire_lab.bench.peer_venv import PeerError, python_with
from gradwire_lab.bench.peers import mxnet as peer
from tests.kvstore import mxnet_rounds
from tests.kvstore.group import run_workers
from tests.kvstore.jobs import mxnet_plan

# Its first run installs MXNet: tens of megabytes.
pytestmark = pytest.mark.timeout(600)

SCRIPT = Path(mxnet_rounds.__file__)
PEERS = Path(__file__).parents[3] / ".peers"
VERSIONS = {
    "2bit": (peer.REQUIREMENTS, PEERS / "mxnet"),
    "1bit": (("mxnet==2.0.0b1", "numpy==1.23.5"), PEERS / "mxnet-2"),
}
# MXNet tells its servers a threshold with six decimals: only with such ones do both sides mean the same.
THRESHOLDS = {"2bit": [0.5, 0.123, 1.7], "1bit": [-0.5, 0.0, 0.123]}
SIZES = [1, 16, 33, 100, 1001]
BOUND = 100


@pytest.fixture(scope="module", params=VERSIONS)
def mxnet(request):
    """The kind of code, and MXNet's interpreter."""
    try:
        return request.param, python_with(*VERSIONS[request.param])
    except PeerError as error:
        pytest.skip(f"MXNet cannot be installed here: {error}")


def plan_of(kind, store, rescale, senders, sizes=SIZES, steps=3):
    rounds = [
        {"compression": {"type": kind, "threshold": threshold}, "sizes": sizes, "senders": senders, "steps": steps}
        for threshold in THRESHOLDS[kind]
    ]
    return {"store": store, "rescale": rescale, "rounds": rounds}


def start(python, plans, folder, **environment):
    told = {"OMP_NUM_THREADS": "1", "MXNET_KVSTORE_BIGARRAY_BOUND": str(BOUND), **environment}
    command = [str(python), "-I", str(SCRIPT), json.dumps(plans), str(folder / "theirs")]
    return subprocess.Popen(command, env=os.environ | told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def ended(processes, seconds=120):
    """Until all have ended well; otherwise all are ended."""
    try:
        for process in processes:
            said, _ = process.communicate(timeout=seconds)
            assert process.returncode == 0, said.decode()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def same_bits(theirs, ours):
    assert theirs.keys() == ours.keys()
    for name in theirs:
        wrong = np.flatnonzero(theirs[name].view(np.int32) != ours[name].view(np.int32))
        assert not wrong.size, f"{name}: {len(wrong)} differ, first {ours[name][wrong[0]]} for {theirs[name][wrong[0]]}"


DEVICE = list(itertools.product([1, 3], [None, 2.0]))
"""The number of senders, and the factor of the server's optimizer."""


@pytest.fixture(scope="module")
def device(mxnet, tmp_path_factory):
    """The results of MXNet's device stores: all in one interpreter, which takes longer to start than they take."""
    kind, python = mxnet
    plans, folder = (
        [plan_of(kind, "device", rescale, senders) for senders, rescale in DEVICE],
        tmp_path_factory.mktemp(kind),
    )
    ended([start(python, plans, folder)])
    return {
        case: (plan, dict(np.load(folder / f"theirs-{number}-0.npz")))
        for number, (case, plan) in enumerate(zip(DEVICE, plans, strict=True))
    }


@pytest.mark.parametrize(("senders", "rescale"), DEVICE)
def test_the_device_store(device, senders, rescale):
    plan, theirs = device[senders, rescale]
    kv = kvstore.create("device")
    if rescale is not None:
        kv.set_optimizer("test", rescale_grad=rescale)
    ours = mxnet_rounds.run(kv, plan["rounds"], 0, torch.from_numpy, torch.Tensor.numpy)
    same_bits(theirs, ours)


def test_the_distributed_store(mxnet, tmp_path):
    kind, python = mxnet
    workers, servers = 2, 2
    plan = plan_of(kind, "dist_sync", None, 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    group = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_NODE_HOST": "127.0.0.1",
    }
    roles = ["scheduler", *["server"] * servers, *["worker"] * workers]
    theirs = [start(python, [plan], tmp_path, DMLC_ROLE=role, **group) for role in roles]
    try:
        ours = run_workers(mxnet_plan, workers, servers, plan["rounds"], BOUND, folder=tmp_path)
    finally:
        ended(theirs)
    for rank in range(workers):
        same_bits(dict(np.load(tmp_path / f"theirs-0-{rank}.npz")), {n: v.numpy() for n, v in ours[rank].items()})
