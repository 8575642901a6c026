"""Output of commands: no number is cut, whatever the width, and a full disk is reported in one line."""

import errno
import json
import os
import resource
import signal
import subprocess

import pytest
from rich.console import Console
from rich.table import Table

from gradwire._files import replace_text
from gradwire.cli import output
from gradwire.cli.output import emit, show
from gradwire_lab.commands import demo
from tests.forked import Forked

# Processes that import torch: a busy machine takes minutes for each.
pytestmark = pytest.mark.timeout(400)

NUMBERS = ("168,123,456.75", "-0.000123", "98.61%", "1,234.5x", "12 ms")


def table():
    made = Table("method", title="a title of some words")
    for head in ("first", "second", "third", "fourth", "fifth"):
        made.add_column(head, justify="right")
    made.add_row("twobit:threshold=auto", *NUMBERS)
    return made


@pytest.mark.parametrize("columns", [20, 40, 80])
@pytest.mark.parametrize("terminal", [True, False])
def test_no_number_is_cut_or_broken(monkeypatch, capsys, columns, terminal):
    def console(**options):
        return Console(**{"width": columns, **options}, force_terminal=terminal, color_system=None)

    monkeypatch.setattr(output, "Console", console)
    show(table(), "A text of several words that goes on behind the fortieth column.")
    shown = capsys.readouterr().out
    assert all(number in shown for number in NUMBERS)
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    if not terminal:
        assert "twobit:threshold=auto" in shown
        assert "A text of several words that goes on behind the fortieth column.\n" in shown


def test_a_long_name_goes_on_in_the_next_line_of_its_cell(monkeypatch, capsys):
    monkeypatch.setattr(output, "Console", lambda **options: Console(**{"width": 24, **options}, force_terminal=True))
    made = Table("method", "step")
    made.add_row("powersgd:rank=4,min_compression_rate=2", "1,234.5")
    show(made)
    shown = capsys.readouterr().out
    assert "1,234.5" in shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_the_result_is_shown_before_it_is_written(tmp_path, capsys):
    target = tmp_path / "nowhere" / "result.json"
    with pytest.raises(FileNotFoundError) as caught:
        emit({"a": 1}, str(target), lambda: ["the result"])
    assert caught.value.filename == str(target)
    assert capsys.readouterr().out == "the result\n"


@pytest.fixture
def script(tmp_path_factory):
    """A process of its own that runs lines of Python: its exit code, and what it wrote to stdout and stderr."""

    def run(*lines):
        file = tmp_path_factory.mktemp("script") / "script.py"
        file.write_text("\n".join(["import os, resource, sys", "from gradwire.cli.main import main", *lines]))
        process = Forked([str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=380)
        return process.returncode, out, err

    return run


@pytest.fixture
def limited(script):
    """A command whose files may have so many bytes: a disk that is full, as far as it can see."""

    def run(arguments, limit):
        limits = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
        return script(limits, f"sys.argv = ['gradwire', *{arguments!r}]", "main()")

    return run


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limit for the size of a file here")
def test_a_full_disk_is_one_line_after_the_result_and_leaves_the_file_as_it_was(limited, tmp_path):
    target = tmp_path / "methods.json"
    target.write_text("[]")
    code, out, err = limited(["methods", "--json", str(target)], 1000)
    assert code == 1
    assert "twobit" in out
    assert err == f"Error: {target} cannot be written: File too large\n"
    assert target.read_text() == "[]"
    assert [each.name for each in tmp_path.iterdir()] == ["methods.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_device_that_is_full_is_one_line(script):
    code, out, err = script("sys.argv = ['gradwire', 'models', '--json', '/dev/full']", "main()")
    assert code == 1
    assert "resnet50" in out
    assert err == "Error: /dev/full cannot be written: No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_an_output_that_is_full_is_one_line(script):
    """The line is the same for the output of a command and for that of options before one."""
    code, _, err = script(
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
        "for words in (['models'], ['--help'], ['--version'], ['bench', '--help']):",
        " child = os.fork()",
        " if not child: sys.argv = ['gradwire', *words]; main()",
        " os.waitpid(child, 0)",
    )
    line = "Error: the output cannot be written: No space left on device\n"
    assert (code, err) == (0, 4 * line)


def test_the_demonstration_is_shown_although_its_file_cannot_be_written(gradwire, monkeypatch, tmp_path):
    phases = dict.fromkeys(("step", "compute", "compress", "communicate", "decompress"), 0.001)
    row = {
        "method": "none",
        "shown": "97.2 %",
        "bytes_per_step": 76104.0,
        "ratio": 1.0,
        "seconds": phases,
        "parameters_identical": True,
    }
    report = demo.DemoReport("digits", "top-1", 2, 1, 45, [row])
    monkeypatch.setattr(demo, "compare", lambda *_, **__: report)

    def full(path, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(output, "replace_text", full)
    done = gradwire("demo", "--json", str(tmp_path / "demo.json"))
    assert done.exit_code == 1
    assert "digits: 2 workers, 1 epoch, 45 steps" in done.stdout
    assert "76,104" in done.stdout
    assert done.stderr == f"Error: {tmp_path / 'demo.json'} cannot be written: No space left on device\n"


def test_a_file_is_replaced_whole_with_the_rights_that_it_had(tmp_path):
    path, link = tmp_path / "a.json", tmp_path / "link.json"
    path.write_text("older")
    path.chmod(0o640)
    link.symlink_to(path)
    replace_text(link, "newer")
    assert link.is_symlink()
    assert path.read_text() == "newer"
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.json", "link.json"]


def test_rows_before_a_full_disk_are_there_and_complete(limited, tmp_path):
    target = tmp_path / "rows.json"
    arguments = ["bench", "codec", "--method", "none", "--size", "64", "--repeats", "1", "--json", str(target)]
    code, out, err = limited(arguments, 1500)
    assert code == 1
    assert err == "Error: the output cannot be written: File too large\n"
    rows = json.loads(target.read_text())
    assert rows
    assert rows[0]["op"] in out


def test_a_file_size_signal_is_ignored():
    """Python ignores it, so that a write fails with an error; the tests above rest on that."""
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN


def test_numbers_that_json_has_not_are_null(capsys):
    emit({"loss": [1.5, float("nan")], "ratio": float("inf")}, "-", list)
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"loss": [1.5, None], "ratio": None}
