"""``gradwire train`` as a person and as a job scheduler run it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gradwire import registry
from gradwire.compressors.sparse.topk import TopK
from gradwire_lab.commands._options import chosen
from gradwire_lab.commands.train import command
from gradwire_lab.experiments.records import read
from gradwire_lab.experiments.run_snapshots import steps_in
from tests.forked import Forked, fork_own_workers

COMMAND = ["-m", "gradwire", "train", "classification"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def job_of_two(*arguments: str) -> list[Forked]:
    """``gradwire train classification`` on two workers that find what torchrun gives them."""
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        Forked(
            ["-m", "gradwire", "train", "classification", *arguments],
            {**os.environ, "OMP_NUM_THREADS": "1", **job, "RANK": rank, "LOCAL_RANK": rank},
            subprocess.PIPE,
            subprocess.PIPE,
        )
        for rank in "01"
    ]


def wait_for_step(process: Forked, folder: Path, least: int, seconds: float = 300.0) -> None:
    """Until the run has saved this step or a later one."""
    deadline = time.monotonic() + seconds
    while not any(step >= least for step in steps_in(folder)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"nothing was saved in {folder} within {seconds} s"
        time.sleep(0.02)


@pytest.mark.timeout(600)
def test_killed_in_an_epoch_and_resumed_is_the_unbroken_run(gradwire: Any, tmp_path: Path) -> None:
    options = ["--compressor", "topk", "--ratio", "0.01", "--epochs", "2", "--results", str(tmp_path / "results.jsonl")]
    saved = tmp_path / "saved"
    checkpoint = ["--checkpoint", str(saved), "--checkpoint-every", "2"]
    process = Forked([*COMMAND, *options, *checkpoint], stderr=subprocess.PIPE, begin=fork_own_workers)
    try:
        wait_for_step(process, saved, 24)
    finally:
        process.kill()
    process.communicate(timeout=200)
    last = steps_in(saved)[-1]
    assert last < 44
    for more in ([*checkpoint, "--resume"], []):
        done = gradwire("train", "classification", *options, *more)
        assert done.exit_code == 0, done.stderr
        assert "bit-identical" in done.stdout
    resumed, whole = read(tmp_path / "results.jsonl")
    assert (resumed.digest, resumed.measures, resumed.bytes_per_step) == (
        whole.digest,
        whole.measures,
        whole.bytes_per_step,
    )
    assert [dataclasses.replace(point, seconds=0) for point in resumed.history] == [
        dataclasses.replace(point, seconds=0) for point in whole.history
    ]
    assert (resumed.resumed, whole.resumed) == (1, 0)
    assert resumed.settings == whole.settings
    assert resumed.settings.compressor == TopK(ratio=0.01).to_config()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_end_keeps_the_epochs_and_names_the_last_checkpoint(tmp_path: Path, number: int) -> None:
    results = tmp_path / "results.jsonl"
    arguments = ["--epochs", "200", "--checkpoint", str(tmp_path), "--recipe", "steps=2", "--results", str(results)]
    process = Forked([*COMMAND, *arguments], stderr=subprocess.PIPE, begin=fork_own_workers)
    try:
        wait_for_step(process, tmp_path, 4)
        process.send_signal(number)
        _, said = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 130
    last = said.splitlines()[-1]
    (record,) = read(results)
    ended = len(record.history)
    assert ended >= 1
    assert [point.step for point in record.history] == [2 * (epoch + 1) for epoch in range(ended)]
    assert (record.status, record.error) == ("failed", f"stopped after epoch {ended} of 200")
    assert last.startswith(f"{record.error}: {results} has them; the last checkpoint is {tmp_path / 'step-'}")
    assert last.endswith(f"{steps_in(tmp_path)[-1]:08d}: go on with the same command and --resume")


@pytest.mark.timeout(400)
def test_a_run_without_a_checkpoint_says_how_it_could_have_gone_on(tmp_path: Path) -> None:
    process = Forked([*COMMAND, "--epochs", "200"], stderr=subprocess.PIPE, begin=fork_own_workers)
    try:
        for line in process.stderr:
            if b"epoch 1/200" in line:
                break
        process.terminate()
        _, said = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "of 200; it cannot go on, because no checkpoint was asked for: begin again, with --checkpoint" in said


@pytest.mark.timeout(400)
def test_a_run_begins_with_what_another_saved(gradwire: Any, tmp_path: Path) -> None:
    short = ["--workers", "1", "--epochs", "1", "--recipe", "steps=3"]
    results = ["--results", str(tmp_path / "results.jsonl")]
    saved = ["--checkpoint", str(tmp_path / "saved")]
    for more in (saved, [], ["--start", str(tmp_path / "saved"), "--recipe", "lr=0"]):
        done = gradwire("train", "classification", *short, *results, *more)
        assert done.exit_code == 0, done.stderr
    first, same, begun = read(tmp_path / "results.jsonl")
    assert first.settings == same.settings
    assert first.settings.start is None
    # A rate of nothing leaves the parameters as they were.
    assert begun.digest == first.digest
    assert begun.settings.start is not None


@pytest.mark.timeout(400)
def test_it_is_the_script_of_a_job(tmp_path: Path) -> None:
    arguments = ["--epochs", "1", "--recipe", "batch=240", "--compressor", "qsgd"]
    results = ["--results", str(tmp_path / "results.jsonl")]
    workers = job_of_two(*arguments, *results)
    ended = [worker.communicate(timeout=350) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], ended
    assert "".join(out for out, _ in ended).count("bit-identical") == 1
    assert "epoch 1/1: loss " in "".join(err for _, err in ended)
    (record,) = read(tmp_path / "results.jsonl")
    assert (record.settings.workers, record.status, record.identical) == (2, "ok", True)


@pytest.mark.timeout(400)
def test_a_job_that_fails_leaves_a_record(tmp_path: Path) -> None:
    arguments = ["--compressor", "topk", "--option", "strategy=allreduce"]
    workers = job_of_two(*arguments, "--results", str(tmp_path / "results.jsonl"))
    for worker in workers:
        worker.communicate(timeout=120)
    assert all(worker.returncode != 0 for worker in workers)
    (record,) = read(tmp_path / "results.jsonl")
    assert (record.settings.workers, record.status, record.quality) == (2, "failed", None)
    assert "payloads of 'topk' cannot be summed" in record.error


def test_mistakes_are_told_before_anything_starts(gradwire, tmp_path, monkeypatch):
    notes = tmp_path / "notes.txt"
    notes.write_text("notes of mine")
    saved = tmp_path / "saved"
    (saved / "step-00000010").mkdir(parents=True)
    (saved / "settings.json").write_text(json.dumps({"task": "language"}))
    for arguments, said in (
        (["--compressor", "topk", "--ration", "0.01"], "--ration is no option, and no parameter of topk: did you mean"),
        (["--compressor", "none", "--ratio", "0.01"], "--ratio is no option, and no parameter of none: it has none"),
        (["--compressor", "topk", "--ratio", "2"], "TopK.ratio must be in (0, 1], got 2"),
        (["--compressor", "topk", "--ratio"], "option --ratio needs a value"),
        (["--recipe", "rate=0.1"], "recipe must be one of batch, lr,"),
        (["--resume"], "checkpoint must be"),
        (["--checkpoint", str(saved)], "holds a run at step 10: go on with it (--resume)"),
        (["--checkpoint", str(saved), "--resume"], "task was 'language', is 'classification'"),
        (["--link", "fast"], "rate must be written as"),
        (["--link", "400gbit"], "Link.rate must be at most 100gbit in a lab, got '400gbit'"),
        (["--link", "1gbit", "--backend", "nccl"], "link must be none"),
        (["--device", "cuda"], "device must be cpu, whose gradients gloo carries, got 'cuda'"),
        (["--model", "lstm"], "model 'lstm' is of another task"),
        (["--data", str(tmp_path / "nowhere")], "nowhere"),
        (["--start", str(notes)], "start must be a checkpoint that gradwire train saved, got"),
        (["--start", str(tmp_path / "nowhere")], "start must be a folder of gradwire train --checkpoint"),
        (["--recipe", "cosine=2"], "Recipe.cosine must be a number in [0, 1], or None, got 2"),
        (["--results", str(tmp_path / "nowhere" / "results.jsonl")], "cannot be written: No such file or directory"),
        (["--results", str(notes)], "must be a file of results"),
        (["--timeout", "nan"], "'nan' is not a number of seconds"),
        (["--timeout", "1e300"], "1e+300 is not in the range"),
        (["--seed", "99999999999999999999"], "99999999999999999999 is not in the range"),
        (["--optimizer", "compressed_step:evry=4"], "'evry' is no parameter of compressed_step: did you mean 'every'?"),
        (["--optimizer", "diloco:name=compressed_step"], "diloco.name must be left out, got 'compressed_step'"),
        (["--compressor", "torch_powersgd", "--ranks", "2"], "'ranks' is no parameter of torch's powersgd"),
        (["--compressor", "torch_powersgd:start=1"], "torch_powersgd.start must be an integer >= 2, got 1"),
        (["--recipe", "lr=Infinity"], "recipe.lr must be texts, finite numbers"),
    ):
        done = gradwire("train", "classification", *arguments)
        assert done.exit_code == 2, done.output
        assert said in " ".join(done.stderr.split()), arguments
    assert notes.read_text() == "notes of mine"
    monkeypatch.setenv("RANK", "0")
    assert "MASTER_ADDR and MASTER_PORT must be" in gradwire("train", "classification").stderr


def test_parameters_may_be_written_in_three_ways():
    written = chosen("topk:values=bfloat16", [("ratio", 0.05)], "classification", own=False)
    assert written.label == "topk:values=bfloat16,ratio=0.05"
    assert written.compressor == TopK(ratio=0.05, values="bfloat16")
    assert chosen("onebit", [], "classification", own=False).loss_scale == 64.0
    assert chosen("onebit", [], "classification", own=True).loss_scale == 1.0


def test_no_parameter_of_a_compressor_is_an_option_of_the_command():
    mine = {name.lstrip("-").replace("-", "_") for param in command.params for name in param.opts}
    for name in registry.names("compressors"):
        fields = {field.name for field in dataclasses.fields(registry.find("compressors", name)) if field.init}
        assert not fields & mine, name
