import json
import os
import re
import subprocess
import sys
import time

import pytest

from gradwire_lab.netlab import _watchdog
from gradwire_lab.netlab.check import LinkRow
from gradwire_lab.netlab.status import labs
from lab.tests.netlab.conftest import here, namespaces


@pytest.fixture(scope="module", autouse=True)
def _possible():
    reason = here()
    if reason:
        pytest.skip(reason)


def test_a_lab_stays_until_it_is_taken_away(gradwire):
    up = gradwire("netlab", "up", "--workers", "2", "--rate", "200mbit", "--json", "-")
    assert up.exit_code == 0, up.output
    lab = json.loads(up.stdout)
    assert (lab["workers"], lab["link"], lab["owner"]) == (2, "200mbit", None)
    assert set(lab["namespaces"]) <= namespaces()
    shown = gradwire("netlab", "status").stdout
    assert lab["id"] in shown
    assert "200mbit" in shown
    (row,) = [row for row in json.loads(gradwire("netlab", "status", "--json", "-").stdout) if row["id"] == lab["id"]]
    assert not row["dead"]
    down = gradwire("netlab", "down", lab["id"])
    assert down.stdout == f"removed {lab['id']}\n"
    assert not set(lab["namespaces"]) & namespaces()
    assert lab["id"] not in _watchdog.records()


def test_mistakes_are_told(gradwire, monkeypatch):
    assert "rate must be written as" in gradwire("netlab", "up", "--rate", "1gbps").stderr
    assert gradwire("netlab", "down", "nosuchlab").exit_code == 2
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refused = gradwire("netlab", "up")
    assert refused.exit_code == 2
    assert "netlab must be run as root" in refused.stderr


def test_check_measures_every_pattern(gradwire):
    """Every row is there and is judged; the measurements are the business of the command."""
    done = gradwire("netlab", "check", "--workers", "2", "--rate", "50mbit", "--seconds", "0.2", "--json", "-")
    rows = json.loads(done.stdout)
    assert [row["pattern"] for row in rows] == ["one way", "both ways", "ring", "all to one"]
    assert all(0 < row["least"] <= row["most"] for row in rows)
    assert done.exit_code == any(row["verdict"] == "missed" for row in rows)


def row(**figures):
    return LinkRow(
        **{
            "link": "1gbit",
            "workers": 2,
            "pattern": "ring",
            "best": 956e6,
            "unshaped": 4e9,
            "least": 930e6,
            "most": 940e6,
            "counted": 1.02,
            **figures,
        }
    )


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ({}, "kept"),
        ({"least": 850e6}, "missed"),
        ({"least": 850e6, "unshaped": 900e6}, "beyond this machine"),
        ({"most": 1001e6}, "missed"),
        ({"counted": 0.99}, "missed"),
        ({"counted": 1.2}, "missed"),
    ],
)
def test_a_link_keeps_its_rate_within_ten_per_cent(figures, verdict):
    assert row(**figures).verdict == verdict


SENT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.full((2,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
told = f"rank {dist.get_rank()} of {dist.get_world_size()} sum {tensor.tolist()} {sys.argv[1:]}"
os.write(1, f"{told}{os.linesep}".encode())  # At once, because the other rank writes, too.
if dist.get_rank() == 1 and "fail" in sys.argv:
    os._exit(7)  # An orderly end with a group that is open can abort in torch's threads, which is no exit code of ours.
if "fail" in sys.argv:
    import time
    print("waits", flush=True)
    time.sleep(600)
dist.destroy_process_group()
"""


def run_command(tmp_path, *arguments, options=()):
    script = tmp_path / "train.py"
    script.write_text(SENT)
    command = [sys.executable, "-m", "gradwire", "netlab", "run", "--link", "100mbit", "--workers", "2", *options]
    command += ["--", sys.executable, str(script), *arguments]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = started.communicate(timeout=120)
    # Other tests may have labs at the same time.
    assert not [row for row in labs() if row["owner"] == started.pid]
    return subprocess.CompletedProcess(command, started.returncode, out, err)


def test_a_script_of_ones_own_runs_on_links(tmp_path):
    done = run_command(tmp_path, "--steps", "3")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"rank {rank} of 2 sum [3.0, 3.0] ['--steps', '3']" in done.stdout
    assert "gradwire netlab: 2 workers, each with a link of 100mbit, until they have ended" in done.stderr


def test_a_timeline_says_when_workers_computed_and_waited(tmp_path):
    page = tmp_path / "page.html"
    done = run_command(tmp_path, options=["--timeline", str(page)])
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert re.search(rf"netlab: worker {rank} computed \d+ % and waited \d+ % of [\d.]+ s", done.stderr)
    assert "gradwire netlab run --link 100mbit --delay 0ms" in page.read_text()


def test_a_worker_that_fails_ends_the_others_with_its_exit_code(tmp_path):
    started = time.monotonic()
    done = run_command(tmp_path, "fail")
    assert done.returncode == 7
    assert time.monotonic() - started < 100


def test_what_netlab_runs_is_one_worker(gradwire):
    refused = gradwire("netlab", "run", "--", "torchrun", "train.py")
    assert "COMMAND must start one worker, such as `python train.py`" in refused.stderr
    assert "COMMAND must be a program that can be started" in gradwire("netlab", "run", "--", "nosuchprogram").stderr
