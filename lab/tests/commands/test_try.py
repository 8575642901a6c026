import json
import sys

import pytest

from lab.tests.netlab.conftest import here
from tests.house.source import ROOT

SCRIPT = str(ROOT / "tests" / "run" / "scripts" / "ddp.py")


@pytest.fixture(scope="module", autouse=True)
def _possible():
    reason = here()
    if reason:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _importable(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)


def test_a_script_is_tried_plain_and_compressed_in_turns(gradwire, tmp_path):
    done = gradwire(
        *("try", "--link", "20mbit", "--steps", "40", "--turns", "1", "--json", "found.json"),
        *("--", sys.executable, SCRIPT, "1000"),
    )
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    plain, applied = found["turns"]
    assert [plain["mode"], applied["mode"]] == ["plain", "apply"]
    assert len(plain["times"]) == len(applied["times"]) == 39
    assert plain["switched"] is None
    # Both began alike: the first steps are uncompressed, and their losses the same.
    assert plain["losses"][:4] == applied["losses"][:4]
    assert found["ratios"] == [plain["seconds"] / applied["seconds"]]
    page = (tmp_path / "gradwire-try.html").read_text()
    assert page.count("<svg") == 4
    assert "times as fast" in done.stdout


def test_a_script_that_ends_too_early_or_fails_is_one_line(gradwire, tmp_path):
    early = gradwire("try", "--link", "none", "--steps", "30", "--turns", "1", "--", sys.executable, SCRIPT, "5")
    assert early.exit_code == 2
    assert "must make 30 backward passes" in early.stderr
    failed = gradwire("try", "--link", "none", "--turns", "1", "--", sys.executable, "-c", "raise SystemExit(3)")
    assert failed.exit_code == 2
    assert "exit status 3 in a plain turn" in failed.stderr
    assert not (tmp_path / "gradwire-try.html").exists()


def test_a_step_of_several_passes_is_timed_whole(gradwire, tmp_path):
    script = tmp_path / "parts.py"
    script.write_text(PARTS)
    done = gradwire(
        *("try", "--link", "20mbit", "--steps", "14", "--passes", "4", "--turns", "1", "--json", "found.json"),
        *("--", sys.executable, str(script)),
    )
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    for turn in found["turns"]:
        assert len(turn["times"]) == 4 * 14 - 1
        # Three of four passes send nothing.
        assert turn["seconds"] > 2 * sorted(turn["times"])[len(turn["times"]) // 2]
    assert found["link"] == "20mbit"
    assert "not all steps that count were compressed: what is gained may show with more --steps" in done.stdout


PARTS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    with model.no_sync():
        for _ in range(3):
            model(torch.randn(8, 256)).square().mean().backward()
    model(torch.randn(8, 256)).square().mean().backward()
    optimizer.step()
"""


def test_a_page_that_cannot_be_written_is_said_first(gradwire):
    done = gradwire("try", "-o", "missing/page.html", "--", sys.executable, SCRIPT)
    assert done.exit_code == 2
    assert "missing/page.html cannot be written" in done.stderr
