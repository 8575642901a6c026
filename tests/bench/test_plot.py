"""The page of violins."""

from __future__ import annotations

import re

import pytest

from gradwire.bench import codec
from gradwire.bench.plot import latencies, write_violins
from gradwire.compressors.none import Identity
from gradwire.compressors.qsgd import QSGD
from gradwire.errors import ConfigError


def row(method: str, op: str, size: int, samples: list[float]) -> dict[str, object]:
    return {"method": method, "params": {}, "op": op, "size": size, "samples": samples}


def test_latency_is_encode_plus_decode_and_the_fastest_comes_first() -> None:
    rows = [
        row("none", "encode", 8, [0.5, 0.25]), row("none", "decode", 8, [0.25, 0.5, 9.0]),
        row("bf16", "encode", 8, [0.125]), row("bf16", "decode", 8, [0.125]), row("bf16", "decode8", 8, [7.0]),
        row("fp16", "encode", 8, [1.0]), row("bf16", "encode", 16, [1.0]),
        {"method": "topk", "params": {}, "op": "encode", "size": 8, "skipped": "too slow"},
    ]  # fmt: skip
    assert latencies(rows, 8) == {"bf16": [250.0], "none": [750.0, 750.0]}
    assert list(latencies(rows, 8)) == ["bf16", "none"]


def test_the_page_has_a_violin_for_each_method_and_a_choice_of_sizes(tmp_path) -> None:
    page = tmp_path / "latency.html"
    write_violins(list(codec.rows([Identity(), QSGD(bits=8)], [1000, 4096], repeats=3)), page)
    text = page.read_text(encoding="utf-8")
    names = re.findall(r'"name":"([^"]+)","orientation":"h"', text)
    assert sorted(names) == ["none", "none", "qsgd:bits=8", "qsgd:bits=8"]
    for size in ("1,000 elements", "2^12 elements"):
        assert f'"label":"{size}"' in text
    assert "<script src=" not in text


def test_nothing_measured_is_nothing_to_plot(tmp_path) -> None:
    skipped = {"method": "topk", "params": {}, "op": "encode", "size": 8, "skipped": "too slow"}
    with pytest.raises(ConfigError, match="nothing to plot"):
        write_violins([skipped], tmp_path / "latency.html")
    assert not (tmp_path / "latency.html").exists()
