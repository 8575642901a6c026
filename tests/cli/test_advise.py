import io
import json

import pytest
from rich.console import Console

from gradwire.bench.advise.check import Compared, Setting, holds
from gradwire.bench.advise.pipeline import Step
from gradwire.bench.netlab import Link
from gradwire.cli._check_advise import _line, _table
from gradwire.errors import ConfigError

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


def test_a_table_for_nodes_says_what_is_on_paper(gradwire):
    shown = gradwire(
        "advise", *NUMBERS, "--workers", "10000", "--nodes", "1250", "--method", "topk", "--method", "qsgd:bits=8",
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    for text in ("uncompressed", "topk", "qsgd:bits=8", "?", "10000 workers in 1250 nodes", "compress_fsdp"):
        assert text in " ".join(shown.stdout.split())
    # The codecs are the given numbers.
    assert "Codecs were measured" not in shown.stdout


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
        ((*NUMBERS, "--compute", "nan"), "--compute must be a finite number >= 0, got nan"),
        ((*NUMBERS, "--compute", "inf"), "--compute must be a finite number >= 0, got inf"),
        ((*NUMBERS, "--workers", "1000000000"), "--workers must be in [2, 100000], got 1000000000"),
        ((*NUMBERS, "--together", "9"), "--together must be at most the 4 workers, got 9"),
        (("--model", "resnet9", "--codec", "1"), "--codec must be two numbers of nanoseconds, each >= 0"),
        ((*NUMBERS, "--method", "topkk"), "unknown compressor 'topkk'"),
        ((*NUMBERS, "--method", "sidco", "--strategy", "two_phase"), "strategy 'two_phase' cuts tensors into shards"),
        ((*NUMBERS, "--", "--epochs", "3"), "arguments are for --script, got '--epochs 3' without it"),
    ],
)
def test_mistakes_are_told(gradwire, arguments, said):
    done = gradwire("advise", *arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def compared(predicted, measured):
    return Compared("resnet9", 2, "1gbit", "topk", Step(0, 0, 0, 0, predicted, 0), measured, None)


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
    assert gradwire("check", "advise", "--link", "none").exit_code == 2
    assert gradwire("check", "advise", "--help").exit_code == 0


def test_every_combination_is_shown_with_its_terms():
    failed = Compared("resnet9", 2, "1gbit", "qsgd", None, None, None, "worker 1 died")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(_table([compared(1.5, 1.0), failed]))
    shown = " ".join(console.export_text().split())
    assert "0 of 2 within 20%; 90% are needed" in shown
    assert "resnet9 x2 1gbit topk 0.0 0.0 0.0 0.0 1,500.0 1,000.0 +50%" in shown
    assert "qsgd failed" in shown
    assert "worker 1 died" in _line(failed)
