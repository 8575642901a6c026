"""Scripts that know nothing of gradwire, started as users start them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.house.source import ROOT

SCRIPTS = Path(__file__).with_name("scripts")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
RUN = [sys.executable, "-m", "gradwire", "run"]


def started(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with this repository's tests at hand."""
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder, env=own)


STARTS = """
import os, sys
os.environ["RANK"] = os.environ["LOCAL_RANK"] = sys.argv[1]
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""A launcher of a single rank, whose number is its argument."""


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of ``gradwire run`` on stderr."""
    return [line for line in done.stderr.splitlines() if line.startswith("gradwire run: ")]


@pytest.mark.parametrize("script", ["ddp.py", "fsdp.py"])
def test_watching_changes_no_bit(script: str, tmp_path: Path) -> None:
    plain = started([*TORCHRUN, str(SCRIPTS / script), "60"], tmp_path)
    assert plain.returncode == 0, plain.stderr
    watched = started([*RUN, "--", *TORCHRUN, str(SCRIPTS / script), "60"], tmp_path)
    assert watched.returncode == 0, watched.stderr
    assert len(plain.stdout) == 65
    assert watched.stdout == plain.stdout
    first, last = lines(watched)
    assert "step 50: " in first
    assert "of a step of" in first
    assert "60 steps" in last
    report = json.loads((tmp_path / "gradwire-report.json").read_text())
    (model,) = report["models"]
    assert report["steps"] == model["steps"] == 60
    assert model["after"]["steps"] == 0
    assert model["decisions"]["decisions"] == []
    losses = [value for _, value in report["loss"]]
    assert len(losses) == 60
    assert losses[-1] < losses[0]
    page = (tmp_path / "gradwire-report.html").read_text()
    assert "<svg" in page
    assert "http" not in page


def test_a_worker_of_torchrun_runs_the_script(tmp_path: Path) -> None:
    done = started([*TORCHRUN, "-m", "gradwire.run", "--apply", str(SCRIPTS / "ddp.py"), "12"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == 65
    assert any("the script ended after 12 steps" in line for line in lines(done))
    assert "auto, budget 'safe'" in done.stderr


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_hook_of_the_script_is_left_alone(when: str, tmp_path: Path) -> None:
    plain = started([*TORCHRUN, str(SCRIPTS / "ddp.py"), "10", "early"], tmp_path)
    done = started([*RUN, "--apply", "--", *TORCHRUN, str(SCRIPTS / "ddp.py"), "10", when], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    (line,) = lines(done)
    assert "fp16_compress_hook" in line
    assert "left alone" in line


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("unfreeze", "left alone: parameters must be those that were trainable when DDP was made"),
        ("builtin", "a hook of its own, FP16_COMPRESS"),
        ("join", "left alone: its join() has divide_by_initial_world_size=False"),
        ("alone", "the script ended after 12 steps"),
    ],
)
def test_what_runs_without_gradwire_runs_with_it_bit_for_bit(what: str, said: str, tmp_path: Path) -> None:
    plain = started([*TORCHRUN, str(SCRIPTS / "ddp.py"), "12", what], tmp_path)
    assert plain.returncode == 0, plain.stderr
    done = started([*RUN, "--", *TORCHRUN, str(SCRIPTS / "ddp.py"), "12", what], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert any(said in line for line in lines(done)), done.stderr


def test_models_one_after_the_other_are_counted_together(tmp_path: Path) -> None:
    done = started([*RUN, "--", *TORCHRUN, str(SCRIPTS / "ddp.py"), "30", "again"], tmp_path)
    assert done.returncode == 0, done.stderr
    first, last = lines(done)
    assert "of a step of" in first
    assert "60 steps" in last
    report = json.loads((tmp_path / "gradwire-report.json").read_text())
    assert (report["steps"], [each["steps"] for each in report["models"]]) == (60, [30, 30])
    assert [step for step, _ in report["loss"]] == [*range(1, 61)]


def test_the_first_rank_of_a_model_reports_where_rank_0_has_no_part_in_it(tmp_path: Path) -> None:
    done = started([*RUN, "--", *TORCHRUN, str(SCRIPTS / "ddp.py"), "60", "second rank"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the group has one rank, so nothing travels" in lines(done)[0]
    assert json.loads((tmp_path / "gradwire-report-rank1.json").read_text())["steps"] == 60


def test_a_loss_that_is_no_number_is_null_in_the_report(tmp_path: Path) -> None:
    done = started([*RUN, "--", *TORCHRUN, str(SCRIPTS / "ddp.py"), "60", "nan"], tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "gradwire-report.json").read_text()
    assert "NaN" not in text
    assert None in [value for _, value in json.loads(text)["loss"]]


def test_a_script_is_run_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "script.py").write_text(
        "import inspect, sys\n"
        "def f(x: int): pass\n"
        "print(__file__, sys.argv, sys.path[0], f.__annotations__, f.__code__.co_filename)\n"
    )
    command = ["folder/script.py", "--flag"]
    plain = started([sys.executable, *command], tmp_path)
    done = started([sys.executable, "-m", "gradwire.run", *command], tmp_path)
    assert plain.returncode == 0
    assert done.stdout == plain.stdout
    safe = [
        started([sys.executable, *form, *command], tmp_path, PYTHONSAFEPATH="1")
        for form in ([], ["-m", "gradwire.run"])
    ]
    assert safe[0].stdout == safe[1].stdout


def test_gradients_that_are_all_reduced_are_watched(tmp_path: Path) -> None:
    done = started([*RUN, "--apply", "--", *TORCHRUN, str(SCRIPTS / "plain.py")], tmp_path)
    assert done.returncode == 0, done.stderr
    advice, paragraph, _ = lines(done)
    assert "gradwire.compress_optimizer(optimizer, model)" in advice
    assert "is spent in all_reduce" in paragraph
    assert json.loads((tmp_path / "gradwire-report.json").read_text())["all_reduced"]["step_bytes"] == 4 * 72


def test_sums_that_nobody_waits_for_at_once_say_nothing_of_the_network(tmp_path: Path) -> None:
    done = started([*RUN, "--", *TORCHRUN, str(SCRIPTS / "plain.py"), "later"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "it is not known how long that is waited for" in lines(done)[1]


def test_the_exit_status_is_that_of_the_script(tmp_path: Path) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    script = [sys.executable, str(SCRIPTS / "ddp.py"), "3", "fails"]
    done = started([*RUN, "--", *script], tmp_path, **alone)
    assert done.returncode == 7
    (line,) = lines(done)
    assert "exit status 7" in line
    assert "after 3 steps" in line


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import sys; print('done'); sys.exit(3)", "exit status 3; the script never formed a process group"),
        ("print('done')", "the script never formed a process group"),
        ("import os; print('done', flush=True); os.fork() or os._exit(0); os.wait()", "never formed a process group"),
    ],
)
def test_a_script_without_a_group_is_one_line(script: str, said: str, tmp_path: Path) -> None:
    done = started([*RUN, "--", sys.executable, "-c", script], tmp_path)
    assert done.returncode == (3 if "exit(3)" in script else 0)
    assert done.stdout == "done\n"
    (line,) = lines(done)
    assert said in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [[*RUN, "--", "nosuchprogram"], [sys.executable, "-m", "gradwire.run", "no.py"]])
def test_what_cannot_be_started_is_one_line(command: list[str], tmp_path: Path) -> None:
    done = started(command, tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert command[-1] in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_script(number: signal.Signals, tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "def stop(number, _):\n    print('heard', number, flush=True); sys.exit(5)\n"
        "for each in (signal.SIGTERM, signal.SIGINT): signal.signal(each, stop)\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    command = [*RUN, "--", sys.executable, "-c", script]
    # A session of its own has no terminal, which would send the signal to both.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == f"heard {number}\n"
    assert process.wait(60) == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_script_that_a_signal_ends_ends_the_command_alike(number: signal.Signals, tmp_path: Path) -> None:
    done = started([*RUN, "--", sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})"], tmp_path)
    assert done.returncode == -number
    (line,) = done.stderr.splitlines()
    assert number.name in line


def test_a_wrong_mode_is_one_line_and_the_script_runs(tmp_path: Path) -> None:
    done = started([sys.executable, "-c", "print('done')"], tmp_path, GRADWIRE_RUN="wacth")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert lines(done) == ["gradwire run: GRADWIRE_RUN must be 'watch' or 'apply', got 'wacth': nothing is watched"]


def test_without_the_variable_nothing_is_imported_and_nothing_is_lost(tmp_path: Path) -> None:
    """The line of the wheel's ``.pth``, as ``site`` executes it: gradwire is not imported, and a call takes no time."""
    (line,) = (ROOT / "src" / "gradwire_run.pth").read_text().splitlines()
    code = compile(line, "gradwire_run.pth", "exec")
    environment = os.environ.pop("GRADWIRE_RUN", None)
    try:
        begun = time.perf_counter()
        for _ in range(100):
            exec(code)
        spent = (time.perf_counter() - begun) / 100
    finally:
        if environment is not None:
            os.environ["GRADWIRE_RUN"] = environment
    assert spent < 1e-3
    program = "import sys; print(any(name.split('.')[0] == 'gradwire' for name in sys.modules))"
    assert started([sys.executable, "-c", program], tmp_path).stdout == "False\n"


def test_with_the_variable_torch_is_not_imported_and_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customised')\n")
    program = "import sys; print('gradwire.run.start' in sys.modules, 'torch' in sys.modules)"
    own = {"GRADWIRE_RUN": "watch", "PYTHONPATH": str(tmp_path)}
    done = started([sys.executable, "-c", program], tmp_path, **own)
    assert done.stdout == "customised\nTrue False\n"
    assert done.stderr == ""


def test_a_machine_without_the_first_rank_says_nothing_where_that_rank_has_spoken(tmp_path: Path) -> None:
    """Each machine of a job has a command of its own, and ranks from its own place on."""
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    jobs = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        # The command itself has no rank: what it starts, such as a launcher of one machine, gives them.
        inner = [sys.executable, "-c", STARTS, str(rank), str(SCRIPTS / "ddp.py"), "60"]
        own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **store}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        jobs.append(subprocess.Popen([*RUN, "--", *inner], cwd=folder, env=own, **pipes))
    first, other = (job.communicate(timeout=300)[1] for job in jobs)
    assert "step 50: " in first
    assert [line for line in other.splitlines() if line.startswith("gradwire run: ")] == []


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-"])
def test_a_script_without_stderr_is_watched_as_any_other(closed: str, tmp_path: Path) -> None:
    shell = f'"$0" -m torch.distributed.run --nproc-per-node 2 "$1" 60 {closed}'
    done = started(["sh", "-c", shell, sys.executable, str(SCRIPTS / "ddp.py")], tmp_path, GRADWIRE_RUN="watch")
    assert done.returncode == 0
    assert json.loads((tmp_path / "gradwire-report.json").read_text())["steps"] == 60


def test_a_report_that_cannot_be_written_is_said_before_the_script_starts(tmp_path: Path) -> None:
    script = "import sys; print('ran', file=sys.stderr)"
    done = started([*RUN, "--report", "missing/report", "--", sys.executable, "-c", script], tmp_path)
    assert done.returncode == 0
    first, second = done.stderr.splitlines()[:2]
    assert re.search(r"the report cannot be written here: .*\.json cannot be written: ", first)
    assert second == "ran"
