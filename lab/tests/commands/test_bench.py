import base64
import gzip
import json
import re
import signal
import subprocess

import pytest

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.errors import ConfigError
from gradwire_lab.bench.steps import STEPS
from gradwire_lab.commands._options import parse_size
from gradwire_lab.experiments.method_text import parse_method
from tests.forked import Forked

COLUMNS = {
    "method",
    "size",
    "op",
    "seconds",
    "bytes_moved",
    "triad_seconds",
    "triad_ratio",
    "wire_bits_per_element",
    "params",
    "threads",
    "target",
    "repeats",
    "machine",
    "torch",
    "commit",
    "checked_size",
}
QUICK = ("bench", "codec", "--method", "twobit", "--repeats", "2")


def test_json_has_the_rows_and_nothing_else(gradwire):
    done = gradwire(*QUICK, "--method", "onebit", "--size", "2^12", "--size", "1000", "--threads", "1", "--json", "-")
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)
    pairs = [("twobit", 4096), ("twobit", 1000), ("onebit", 4096), ("onebit", 1000)]
    assert [(r["method"], r["size"], r["op"]) for r in rows] == [(*pair, step.name) for pair in pairs for step in STEPS]
    for row in rows:
        assert set(row) >= COLUMNS
        assert row["threads"] == 1
        assert row["repeats"] == 2


def test_the_table_has_every_row(gradwire):
    done = gradwire(*QUICK, "--method", "qsgd:bits=8,block=512", "--size", "4096")
    assert done.exit_code == 0, done.stderr
    for step in STEPS:
        assert f" {step.name} " in done.stdout
    lines = [line.split()[:2] for line in done.stdout.splitlines()]
    assert lines.count(["twobit", "4096"]) == lines.count(["qsgd:bits=8", "4096"]) == len(STEPS)


def test_the_table_says_how_much_slower_a_busy_neighbour_makes(gradwire):
    done = gradwire("bench", "codec", "--method", "twobit", "--repeats", "1", "--size", "1000", "--busy", "1")
    assert done.exit_code == 0, done.stderr
    head, _, *rows = done.stdout.splitlines()[1:]
    assert head.split()[-1] == "busy"
    assert all(float(row.split()[-1]) > 0 for row in rows)


def test_a_real_process():
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = Forked(["-m", "gradwire", *QUICK, "--size", "2^10", "--json", "-"], **pipes)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert len(json.loads(out)) == len(STEPS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "towbit"), "unknown compressor 'towbit': did you mean 'twobit'?"),
        (
            ("--method", "twobit:threshold=-1"),
            "TwoBit.threshold must be a finite number > 0 in float32, or 'auto', got -1",
        ),
        (("--method", "twobit:treshold=1"), "TwoBit has no parameter 'treshold': did you mean 'threshold'?"),
        (("--method", "twobit:0.5"), "a parameter is written NAME=VALUE, got '0.5'"),
        (("--size", "2^99"), "a size must be in [1, 2^31], as 16777216 or 2^24, got '2^99'"),
        (("--size", "0"), "a size must be in [1, 2^31]"),
        (("--peer", "mxnot"), "unknown peer 'mxnot': did you mean 'mxnet'?"),
        (("--peer", "mxnet", "--method", "twobit"), "--method, --all, --plot, --goals and --busy cannot"),
        (("--peer", "mxnet", "--goals"), "--goals and --busy cannot be used with --peer"),
        (("--peer", "mxnet", "--busy", "1"), "--goals and --busy cannot be used with --peer"),
        (("--busy", "0"), "--busy"),
        (("--json", "nowhere/rows.json"), "nowhere/rows.json cannot be written: No such file or directory"),
        (("--all", "--method", "twobit"), "--all means every method: leave --method out"),
        (("--plot", "nowhere/page.html"), "nowhere/page.html cannot be written: No such file or directory"),
        (("--budget", "0"), "0.0 is not in the range x>0"),
        (("--threads", "0"), "0 is not in the range x>=1"),
    ],
)
def test_bad_input_is_one_clear_line(gradwire, arguments, message):
    done = gradwire("bench", "codec", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("text", "size"), [("2^24", 2**24), ("2**12", 4096), ("16777216", 2**24), ("1_000", 1000)])
def test_sizes_are_written_as_one_likes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1e6", "2^", "^3", "4096 elements"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ConfigError, match="a size must be in"):
        parse_size(text)


def test_parameters_reach_the_method():
    assert parse_method("qsgd:bits=8,block=128,norm=l2") == QSGD(bits=8, block=128, norm="l2")
    assert parse_method("qsgd") == QSGD()


def test_samples_are_in_the_rows_only_when_asked_for(gradwire):
    plain, full = (gradwire(*QUICK, "--size", "4096", "--json", "-", *more) for more in ((), ("--samples",)))
    assert not any("samples" in row for row in json.loads(plain.stdout))
    assert all(len(row["samples"]) == 2 for row in json.loads(full.stdout))


def test_all_methods_at_a_size_and_a_page_of_violins(gradwire, tmp_path):
    page = tmp_path / "latency.html"
    done = gradwire("bench", "codec", "--all", "--size", "300", "--repeats", "1", "--json", "-", "--plot", str(page))
    assert done.exit_code == 0, done.stderr
    names = registry.names("compressors")
    assert list(dict.fromkeys(row["method"] for row in json.loads(done.stdout))) == list(names)
    stored = re.findall(r'<script type="application/gzip">(.*?)</script>', page.read_text(encoding="utf-8"))
    text = "".join(gzip.decompress(base64.b64decode(each)).decode() for each in stored)
    assert all(f'"name":"{name}"' in text for name in names)


def test_the_table_has_nanoseconds_and_is_as_wide_in_a_pipe(gradwire):
    table = gradwire(*QUICK, "--size", "1000").stdout.splitlines()
    assert table[1].split() == ["method", "size", "op", "time", "ns", "GB/s", "triad", "bits", "state"]
    assert {len(text) for text in table[1:]} == {len(table[1])}
    columns = [text.split() for text in table[3:]]
    for shown in columns:
        amount, unit, each = float(shown[3]), shown[4], float(shown[5])
        assert each == pytest.approx(amount * {"us": 1e3, "ms": 1e6}[unit] / 1000, rel=0.02)
    assert len(columns) == len(STEPS)


def test_goals_are_told_and_change_nothing(gradwire, tmp_path):
    figures = tmp_path / "rows.json"
    done = gradwire(*QUICK, "--size", "64", "--size", "1000", "--goals", "--json", str(figures))
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = [row for row in json.loads(figures.read_text()) if row["size"] == 1000]
    # How fast so small a tensor is depends on the machine; what is said of it must not.
    far = [row for row in rows if row["triad_ratio"] < 0.6]
    slow = [row for row in rows if row["seconds"] / row["size"] > 1e-8 * (8 if row["op"] == "decode8" else 1)]
    missed = [text for text in lines if text.startswith("missed: twobit ") and "1000 elements: " in text]
    assert [text.split()[2] for text in missed] == [f"{row['op']}," for row in rows if row in far or row in slow]
    assert sum(" of the triad, goal 0.60" in text for text in missed) == len(far)
    assert sum(" ns an element, goal 10" in text for text in missed) == len(slow)
    assert len(missed) == sum(text.startswith("missed: ") for text in lines)
    assert lines[-1] == f"goals: {len(rows) - len(missed)} of {len(STEPS)} operations reach them"


def _started(*more):
    """A run of many rows, and its standard output, of which a few rows were read."""
    command = ["-m", "gradwire", "bench", "codec", "--all", "--size", "64", "--repeats", "1", *more]
    process = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return process, [process.stdout.readline().decode() for _ in range(3 + 4)]


@pytest.mark.timeout(200)
def test_ctrl_c_ends_the_run_with_what_there_is(tmp_path):
    figures = tmp_path / "rows.json"
    process, lines = _started("--json", str(figures), "--goals")
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    table = [text for text in [*lines[3:], *rest.splitlines()] if not text.startswith(("goals", "missed", "skipped"))]
    rows = json.loads(figures.read_text())
    # A row is stored before it is shown.
    assert 4 <= len(table) <= len(rows) <= len(table) + 1 < len(STEPS) * len(registry.names("compressors"))
    assert "goals: " in rest.splitlines()[-1]


@pytest.mark.timeout(200)
def test_a_run_that_is_killed_leaves_its_rows(tmp_path):
    figures = tmp_path / "rows.json"
    process, lines = _started("--json", str(figures))
    process.kill()
    process.communicate(timeout=100)
    rows = json.loads(figures.read_text())
    assert len(rows) >= 4
    assert [(row["method"], row["op"]) for row in rows[:4]] == [
        (text.split()[0], text.split()[2]) for text in lines[3:]
    ]


def test_an_interrupted_run_writes_json_to_standard_output_all_the_same(gradwire, monkeypatch):
    def interrupted(*arguments):
        params = capabilities.properties(TwoBit())["params"]
        yield {"method": "twobit", "params": params, "size": 8, "op": "encode", "skipped": "?"}
        raise KeyboardInterrupt

    monkeypatch.setattr("gradwire_lab.bench.codec.rows", interrupted)
    done = gradwire("bench", "codec", "--all", "--json", "-")
    assert done.exit_code == 130
    assert [row["op"] for row in json.loads(done.stdout)] == ["encode"]


def test_a_skipped_size_is_said_below_the_table(gradwire):
    done = gradwire(*QUICK, "--size", "1000", "--size", "2^22", "--budget", "1e-6")
    assert done.exit_code == 0, done.stderr
    assert "skipped: twobit, 4194304 elements: encode would take about" in " ".join(done.stdout.split())
