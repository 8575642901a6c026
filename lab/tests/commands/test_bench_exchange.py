"""``gradwire bench exchange``."""

import json

import pytest

MODEL = ("bench", "exchange", "--model", "2x100,5000")


def test_meta_has_rows_and_a_table(gradwire, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- exchange meta -->\nold\n<!-- end of exchange meta -->\nafter\n")
    file = tmp_path / "rows.json"
    arguments = ("--device", "meta", "--ranks", "2", "--ranks", "8", "--method", "twobit", "--method", "torch_bf16")
    done = gradwire(*MODEL, *arguments, "--budget", "0.01", "--json", str(file), "--markdown", str(page))
    assert done.exit_code == 0, done.stderr
    rows = json.loads(file.read_text())
    names = ["all_reduce", "twobit", "torch_bf16"]
    assert [(row["ranks"], row["method"]) for row in rows] == [(ranks, name) for ranks in (2, 8) for name in names]
    assert all(row["model"] == "2x100,5000" and row["parameters"] == 5200 and "seconds" in row for row in rows)
    text = page.read_text()
    assert text.startswith("before\n<!-- exchange meta -->\n2x100,5000, 5,200 parameters in 3 tensors, 2 ranks, meta")
    assert text.endswith("<!-- end of exchange meta -->\nafter\n")
    assert "old" not in text
    for row in rows:
        cells = f"| `{row['method']}` | {row['operations']:,} | {row['collectives']:,} | 0 | "
        assert cells + f"{row['bytes_per_element']:.2f} |" in text
    assert "2 ranks, meta, 1 bucket" in done.stdout
    assert "host, microseconds for a bucket of 1,024 elements in 4 tensors: twobit " in done.stdout


def test_real_ranks_with_a_busy_neighbour(gradwire):
    done = gradwire(*MODEL, "--ranks", "2", "--method", "bf16", "--busy", "1", "--budget", "0.05", "--json", "-")
    assert done.exit_code == 0, done.stderr
    plain, cast = json.loads(done.stdout)
    assert (plain["method"], plain["ratio"], cast["method"], cast["busy"]) == ("all_reduce", 1, "bf16", 1)
    assert "host_seconds" not in plain
    assert 0 < cast["host_seconds"] < 1
    assert cast["all_reduce_seconds"] > 0
    assert cast["checked"] == "bound"


def test_beside_ddp(gradwire):
    done = gradwire(
        *MODEL, "--ranks", "2", "--ddp", "--method", "none", "--method", "twobit", "--budget", "0.05", "--json", "-"
    )
    assert done.exit_code == 0, done.stderr
    none, twobit = json.loads(done.stdout)
    assert (none["method"], none["device"], none["bytes_sent"]) == ("none", "ddp", 4 * 5200)
    assert twobit["bytes_sent"] < none["bytes_sent"]
    assert none["buckets"] >= 1
    assert none["ratio"] == pytest.approx(none["seconds"] / none["all_reduce_seconds"])


def test_what_reads_back_is_told(gradwire):
    done = gradwire(*MODEL, "--device", "meta", "--method", "strom")
    assert done.exit_code == 0, done.stderr
    assert "strom: the host would wait for the device: aten::" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "resnet2o"), "did you mean 'resnet20'"),
        (("--method", "towbit"), "unknown compressor 'towbit': did you mean 'twobit'?"),
        (("--method", "torch_ddp"), "hook must be one of bf16, fp16, powersgd, got 'ddp'"),
        (("--ranks", "1"), "1 is not in the range 2<=x<=64"),
        (("--ddp",), "beside DDP only methods of gradwire are measured, and on the CPU"),
        (("--bucket-mb", "0"), "0.0 is not in the range"),
        (("--busy", "x"), "'x' is not an integer"),
    ],
)
def test_a_mistake_is_told(gradwire, arguments, message):
    done = gradwire("bench", "exchange", "--device", "meta", *arguments)
    assert done.exit_code != 0
    assert message in " ".join(f"{done.stderr} {done.exception}".split())
