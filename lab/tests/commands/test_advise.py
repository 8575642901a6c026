import io
import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console

from gradwire.compressors.sparse.topk import TopK
from gradwire.errors import ConfigError, GroupError
from gradwire_lab.advise import check
from gradwire_lab.advise.check import Compared, Setting, holds
from gradwire_lab.advise.pipeline import PipelineStep
from gradwire_lab.advise.profile import BucketProfile, Profile
from gradwire_lab.commands import _check_advise
from gradwire_lab.commands._check_advise import _line, _table
from gradwire_lab.netlab import Link
from gradwire_lab.netlab.link import PAYLOAD_SHARE

NUMBERS = ("--model", "resnet9", "--compute", "0.05", "--codec", "0.5,0.3")


def test_an_answer_for_people_and_for_programs(gradwire):
    done = gradwire("advise", *NUMBERS, "--link", "100mbit", "--workers", "16", "--json", "-")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["compress"]
    assert told["verdict"].startswith(told["best"])
    assert told["parameters"] == 6_573_120
    assert sum(bucket["elements"] for bucket in told["buckets"]) == 6_573_120
    rows = {row["label"]: row for row in told["candidates"]}
    assert rows["twobit"]["strategy"] == "two_phase"
    assert rows["twobit"]["step"]["total"] < told["dense"]["total"]
    assert rows["twobit"]["break_even"] > 1e8
    assert told["dense"]["sent"] == 2 * 15 / 16 * 4 * 6_573_120


def test_where_no_step_can_be_timed_the_link_says_what_it_takes(gradwire):
    """An answer, and no error."""
    asked = ("--model", "resnet50", "--within", "0.01", "--link", "100mbit", "--latency", "0ms")
    shown = gradwire("advise", *asked)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("cannot tell: two steps of resnet50 on 8 examples take more than 0.005 s here. Give")
    assert "Error" not in shown.output
    told = json.loads(gradwire("advise", *asked, "--json", "-").stdout)
    rows = {row["method"]: row for row in told["on_the_link"]}
    plain = 2 * 3 / 4 * 4 * 25_557_032  # an all-reduce of 4 workers moves 1.5 times the float32 of the model
    assert rows["uncompressed"]["bytes"] == pytest.approx(plain, rel=1e-3)
    assert rows["bf16"]["bytes"] == pytest.approx(plain / 2, rel=0.01)
    assert rows["twobit"]["bytes"] == pytest.approx(plain / 8, rel=0.3)  # of 2 bits each, sent to all others
    for row in rows.values():
        assert row["seconds"] == pytest.approx(8 * row["bytes"] / 100e6, rel=0.1)
    # twobit, which nobody named, has a strategy of its own.
    summed = gradwire("advise", *asked, "--method", "bf16", "--strategy", "allreduce", "--json", "-")
    assert summed.exit_code == 0, summed.output
    assert json.loads(summed.stdout)["on_the_link"] == told["on_the_link"]


def test_a_table_for_nodes_says_what_is_on_paper(gradwire):
    shown = gradwire(
        "advise",
        *NUMBERS,
        "--workers",
        "10000",
        "--nodes",
        "1250",
        "--method",
        "topk",
        "--method",
        "qsgd:bits=8",
    )
    assert shown.exit_code == 0, shown.output
    for text in ("uncompressed", "topk", "qsgd:bits=8", "?", "10000 workers in 1250 nodes", "compress_fsdp"):
        assert text in " ".join(shown.stdout.split())
    # The codecs are the given numbers.
    assert "Codecs were measured" not in shown.stdout


def test_links_may_be_faster_than_a_lab_has(gradwire):
    """On paper: 400 Gbit/s between nodes, and inside them 3.6 Tbit/s."""
    fast = ("--workers", "16", "--nodes", "2", "--link", "400gbit", "--intra-link", "3600gbit", "--method", "topk")
    done = gradwire("advise", *NUMBERS, *fast, "--json", "-")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["rate"] == pytest.approx(50e9 * PAYLOAD_SHARE)
    assert told["link"] == "400gbit+0.1ms"


def test_a_slow_link_inside_nodes_is_in_both_predictions(gradwire):
    """The link between nodes is fast, so a step without compression takes what the link inside takes."""
    slow = ("--workers", "16", "--nodes", "2", "--link", "100gbit", "--intra-link", "100mbit", "--method", "none")
    done = gradwire("advise", "--model", "resnet9", "--compute", "0", "--codec", "0,0", *slow, "--json", "-")
    told = json.loads(done.stdout)
    least = 2 * 7 / 8 * 4 * 6_573_120 / (12.5e6 * PAYLOAD_SHARE)
    assert least <= told["dense"]["total"] <= told["candidates"][0]["step"]["total"] <= 1.01 * least


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "one of --model and --script must be given, got none"),
        (("--model", "resnet9", "--script", "train.py"), "one of --model and --script must be given, got both"),
        (("--model", "resnet99", "--compute", "1"), "unknown model 'resnet99'"),
        ((*NUMBERS, "--link", "none"), "--link must be a rate, as 1gbit, got 'none'"),
        ((*NUMBERS, "--link", "fast"), "rate must be written as 100mbit, 2.5gbit or none, got 'fast'"),
        (
            (*NUMBERS, "--workers", "10", "--nodes", "4"),
            "--nodes must be a divisor of the 10 workers, and fewer, got 4",
        ),
        ((*NUMBERS, "--link", "101tbit"), "Link.rate must be in [1mbit, 100tbit], or None, got 101000000000000"),
        (
            (*NUMBERS, "--link", "400gbit", "--measure-link"),
            "Link.rate must be at most 100gbit in a lab, got '400gbit'",
        ),
        ((*NUMBERS, "--compute", "nan"), "'--compute': 'nan' is not a number: it must be one in the range x>=0"),
        ((*NUMBERS, "--compute", "inf"), "--compute must be a finite number >= 0, got inf"),
        ((*NUMBERS, "--workers", "1000000000"), "--workers must be in [2, 100000], got 1000000000"),
        ((*NUMBERS, "--together", "9"), "--together must be at most the 4 workers, got 9"),
        (("--model", "resnet9", "--codec", "1"), "--codec must be two numbers of nanoseconds, each >= 0"),
        ((*NUMBERS, "--method", "topkk"), "unknown compressor 'topkk'"),
        ((*NUMBERS, "--method", "sidco", "--strategy", "two_phase"), "strategy 'two_phase' cuts tensors into shards"),
        ((*NUMBERS, "--measure-link", "--latency", "1ms"), "--latency has no effect with --measure-link: leave it out"),
        ((*NUMBERS, "--intra-link", "10gbit"), "--intra-link has no effect without --nodes: leave it out"),
        (("--script", "x.py", "--batch", "4"), "--batch has no effect with --script: leave it out"),
        ((*NUMBERS, "--batch", "4"), "--batch has no effect with --compute: leave it out"),
        (("--model", "resnet9", "--compute", "0", "--batch", "4"), "--batch has no effect with --compute: leave it"),
        ((*NUMBERS, "--deadline", "9"), "--deadline has no effect without --script: leave it out"),
        ((*NUMBERS, "--budget", "9"), "--budget has no effect with --codec: leave it out"),
        ((*NUMBERS, "--", "--epochs", "3"), "arguments are for --script, got '--epochs 3' without it"),
    ],
)
def test_mistakes_are_told(gradwire, arguments, said):
    done = gradwire("advise", *arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_what_need_not_be_so_elsewhere_is_said(gradwire):
    own = ("--model", "resnet9", "--compute", "0.05", "--method", "twobit", "--together", "2", "--within", "20")
    done = gradwire("advise", *own)
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "Codecs were timed on this machine's CPU, and the step is that of an accelerator" in said
    assert "Each of the 2 workers of a machine has a whole link here" in said


def compared(predicted, measured):
    return Compared("resnet9", 2, "1gbit", "topk", PipelineStep(0, 0, 0, 0, predicted, 0), measured, None)


def test_nine_of_ten_predictions_must_hold():
    right, wrong = compared(1.2, 1.0), compared(1.21, 1.0)
    assert (right.good, wrong.good) == (True, False)
    assert compared(0.8, 1.0).off == pytest.approx(-0.2)
    assert holds([right] * 9 + [wrong])
    assert not holds([right] * 8 + [wrong] * 2)
    assert not holds([])
    failed = Compared("resnet9", 2, "1gbit", "topk", None, None, None, "it failed")
    assert not failed.good
    assert json.dumps(failed.as_dict())


def test_the_check_compares_links_that_have_a_rate(gradwire):
    with pytest.raises(
        ConfigError, match="--link must be a rate: a link without one has nothing to predict, got 'none'"
    ):
        Setting(["resnet9"], [2], [Link()], {})
    with pytest.raises(ConfigError, match=r"Link\.rate must be at most 100gbit in a lab, got '400gbit'"):
        Setting(["resnet9"], [2], [Link.parse("400gbit")], {})
    assert gradwire("check", "advise", "--link", "none").exit_code == 2
    assert gradwire("check", "advise", "--help").exit_code == 0


def test_what_was_compared_is_in_the_file_when_a_later_one_fails(gradwire, monkeypatch, tmp_path):
    def made(*_):
        yield compared(1.2, 1.0)
        raise GroupError("worker 1 died")

    monkeypatch.setattr(_check_advise, "compare", made)
    assert gradwire("check", "advise", "--json", str(tmp_path / "rows.json")).exit_code == 2
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["off"] == pytest.approx(0.2)


def test_codecs_that_no_group_could_time_leave_the_measured_steps(monkeypatch):
    def died(*_, **__):
        raise GroupError("worker 1\ndied")

    profile = Profile((BucketProfile((("a", (64, 96)),), 0.001),), 0.001)
    monkeypatch.setattr(check, "gauge_replayed", lambda *_, **__: profile)
    monkeypatch.setattr(check, "gauge_codecs", died)
    monkeypatch.setattr(check, "lab_for", lambda *_: nullcontext())
    monkeypatch.setattr(check, "gauge_wire", lambda *_: SimpleNamespace(wire=lambda workers, link: link.wire(workers)))
    rows = [{"model": "resnet9", "method": label, "seconds": 1.0} for label in ("ddp", "topk")]
    monkeypatch.setattr(check, "replay", lambda *_: rows)
    setting = Setting(["resnet9"], [2], [Link.parse("1gbit")], {"topk": TopK()})
    dense, topk = check.compare(setting)
    assert (dense.step is None, topk.step, topk.measured, topk.error) == (False, None, 1.0, "worker 1 died")


def test_every_combination_is_shown_with_its_terms():
    failed = Compared("resnet9", 2, "1gbit", "qsgd", None, None, None, "worker 1 died")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(_table([compared(1.5, 1.0), failed]))
    shown = " ".join(console.export_text().split())
    assert "0 of 2 within 20%; 90% are needed" in shown
    assert "resnet9 x2 1gbit topk 0.0 0.0 0.0 0.0 1,500.0 1,000.0 +50%" in shown
    assert "qsgd failed" in shown
    assert "worker 1 died" in _line(failed)
