"""``gradwire check cluster`` on two ranks of torchrun."""

import json
import os
import subprocess
import sys

import pytest

from gradwire.errors import ConfigError
from gradwire_lab.experiments import cluster_check
from gradwire_lab.experiments.cluster_check import METHODS, ClusterPlan


def run(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "gradwire"]
    return subprocess.run(
        [*command, "check", "cluster", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_links_and_exchanges_are_measured_and_shown_once(tmp_path):
    file = tmp_path / "cluster.json"
    done = run("--model", "3000000", "--compute", "0.001", "--json", str(file))
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert [each["torch"] for each in report["ranks"]] == [report["ranks"][0]["torch"]] * 2
    assert tuple(report["exchanges"]) == tuple(report["steps"]) == METHODS
    assert all(seconds > 0 for seconds in report["exchanges"].values())
    for name, seconds in report["exchanges"].items():
        assert report["steps"][name] == pytest.approx(0.001 + max(0.0, seconds - 0.002 / 3))
    assert report["bits_per_second"] > 1e6
    assert 0 < report["latency"] < 0.1
    assert done.stdout.count("3,000,000 parameters") == 1
    assert "ranks 0, 1" in done.stdout


def test_a_process_that_torchrun_has_not_started_is_told_how(gradwire, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    refused = gradwire("check", "cluster")
    assert refused.exit_code == 2
    assert "torchrun --nnodes 2 --nproc-per-node 1" in refused.stderr
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert "got one process alone" in gradwire("check", "cluster").stderr
    with pytest.raises(ConfigError, match=r"ClusterPlan.compute must be seconds > 0, or None, got 0"):
        ClusterPlan(5, compute=0.0)


def test_a_rank_that_srun_started_tells_in_words_that_another_one_is_gone(gradwire, monkeypatch):
    began = []

    def gone(_plan):
        raise RuntimeError("Connection closed by peer")

    task = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "gpu[03-04]"}
    monkeypatch.setattr(os, "environ", task)
    monkeypatch.setattr(cluster_check.dist, "init_process_group", lambda *_, **__: began.append(dict(os.environ)))
    monkeypatch.setattr(cluster_check.dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(cluster_check, "_measured", gone)
    done = gradwire("check", "cluster", "--model", "1000")
    assert done.exit_code != 0
    assert "another rank ended early, or cannot be reached any more: Connection closed by peer" in " ".join(
        done.stderr.split()
    )
    (environment,) = began
    assert [environment[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")] == ["1", "2", "gpu03"]
