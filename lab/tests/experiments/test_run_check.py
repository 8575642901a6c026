"""Scripts that know nothing of gradwire: how their turns are judged, and that each of them trains."""

import json
import os
import subprocess
import sys

import pytest

from gradwire_lab.experiments.run_check import FOLDER, SCRIPTS, RunCell, in_words, needed, verdict_of
from tests.house.source import ROOT

ROW = {
    "kind": "run",
    "script": "ddp",
    "link": "1gbit",
    "steps": 90,
    "seconds": {"plain": [0.10, 0.11, 0.12], "watch": [0.10, 0.11, 0.12], "apply": [0.05, 0.055, 0.06]},
    "losses": {"plain": [1.0, 1.02, 1.01], "watch": [1.0, 1.02, 1.01], "apply": [1.01, 1.0, 1.02]},
    "proposed": [0.057, 0.054, 0.06],
    "switched": [15, 16, 15],
    "checks": 6,
    "wrong": 0,
}


def test_a_cell_that_reaches_every_goal():
    found = verdict_of(ROW)
    assert found.faster == pytest.approx((2.0, 2.0, 2.0))
    assert found.watched == pytest.approx((1.0, 1.0, 1.0))
    assert found.changed
    assert found.miss == pytest.approx(0.002 / 0.055)
    assert found.missed == []


def test_a_goal_is_missed_where_the_whole_interval_is_below_it():
    seconds = {"plain": [0.1, 0.1, 0.1], "watch": [0.102, 0.1021, 0.1019], "apply": [0.11, 0.1101, 0.1102]}
    found = verdict_of({**ROW, "seconds": seconds, "proposed": [0.11, 0.11, 0.11]})
    assert found.missed == ["slower than plain", "watching costs"]
    # The mean is as low, but a single round says nothing, and neither do rounds that contradict each other.
    wide = {**seconds, "watch": [0.1, 0.1, 0.1], "apply": [0.08, 0.1, 0.15]}
    assert verdict_of({**ROW, "seconds": wide, "proposed": []}).missed == []
    single = {mode: [values[0]] for mode, values in seconds.items()}
    alone = verdict_of({**ROW, "seconds": single, "proposed": [], "switched": [15]})
    assert (alone.faster[1:], alone.missed) == ((None, None), [])
    assert list(in_words([alone, found]))[:2] == [
        "not slower than plain by more than 2 %: 0 of 1, 1 not known",
        "watching not slower by more than 1 %: 0 of 1, 1 not known",
    ]


def test_predictions_losses_and_wrong_means_are_judged():
    far = verdict_of({**ROW, "proposed": [0.09, 0.09, 0.09]})
    assert far.missed == ["prediction"]
    assert verdict_of({**ROW, "proposed": [0.09], "switched": [15, 15]}).miss is None
    assert not verdict_of({**ROW, "switched": [15, 16, 70]}).changed
    assert not verdict_of({**ROW, "script": "no_sync", "switched": [15, 16, 30]}).changed
    worse = {**ROW["losses"], "apply": [1.04, 1.04, 1.04]}
    assert verdict_of({**ROW, "losses": worse, "wrong": 1}).missed == ["loss", "a mean out of bounds"]
    assert list(in_words([far, verdict_of(ROW)])) == [
        "not slower than plain by more than 2 %: 2 of 2",
        "watching not slower by more than 1 %: 2 of 2",
        "predicted within 10 %, of those that were changed: 1 of 2",
        "loss as without compression: 2 of 2",
    ]


def test_a_cell_is_named_by_what_is_measured():
    cells = {RunCell("ddp", "1gbit").id, RunCell("ddp", "none").id, RunCell("ddp", "1gbit", steps=90).id}
    assert len(cells) == 3
    assert RunCell("ddp", "1gbit").id == RunCell("ddp", "1gbit").id


def test_every_script_of_the_folder_is_in_the_table_and_knows_nothing_of_gradwire():
    files = {file.stem: file.read_text() for file in FOLDER.glob("[!_]*.py")}
    assert files.keys() == SCRIPTS.keys()
    assert not [name for name, text in files.items() if "gradwire" in text]


@pytest.mark.parametrize("script", [name for name in SCRIPTS if not needed(name)])
def test_a_script_is_watched_without_a_change_of_its_losses(script, tmp_path):
    losses = [_losses(script, mode, tmp_path) for mode in ("plain", "watch")]
    assert len(losses[0]) == 12
    assert None not in losses[0]
    assert losses[1] == losses[0]


def _losses(script, mode, folder):
    told = folder / f"{mode}.json"
    own = {"GRADWIRE_RUN": mode, "GRADWIRE_RUN_STOP": "12", "GRADWIRE_RUN_REPORT": str(told), "OMP_NUM_THREADS": "1"}
    workers = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*workers, str(FOLDER / f"{script}.py")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **own},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(told.read_text())["losses"]
