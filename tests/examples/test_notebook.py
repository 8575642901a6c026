"""The notebook runs from top to bottom, and its slow link shows a gain."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT

NOTEBOOK = ROOT / "examples" / "slow_link.ipynb"
KEYS = {
    "code": {"cell_type", "execution_count", "id", "metadata", "outputs", "source"},
    "markdown": {"cell_type", "id", "metadata", "source"},
}


@pytest.fixture(scope="module")
def notebook():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def test_it_is_a_notebook_that_was_stored_without_results(notebook):
    assert notebook.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len({*ids}) == len(ids)
    for cell in notebook["cells"]:
        assert cell.keys() == KEYS[cell["cell_type"]]
        assert all(isinstance(line, str) and line.endswith("\n") for line in cell["source"][:-1])
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            compile("".join(cell["source"]), cell["id"], "exec")


@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="connections are limited by an option of Linux")
def test_its_cells_run_one_after_the_other_and_the_link_shows_a_gain(notebook, tmp_path):
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    script = Path(tmp_path, "cells.py")
    figures = "print(json.dumps([plain, compressed]))"
    script.write_text("\n\n".join([*cells, figures]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=800, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    *told, last = done.stdout.splitlines()
    assert [line.split(":")[0] for line in told] == ["uncompressed", "4 bits", "gain"]
    plain, compressed = json.loads(last)
    # 3.4 MB at 50 Mbit/s.
    assert plain["seconds"] > 0.9 * 8 * 4 * 861_450 / 50e6
    assert compressed["seconds"] < plain["seconds"]
    assert max(plain["loss"], compressed["loss"]) < 0.5  # from 2.3
