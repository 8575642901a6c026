"""Links as they are written, and as the kernel is told."""

from __future__ import annotations

import pytest

from gradwire.bench.netlab.link import Link
from gradwire.errors import ConfigError


@pytest.mark.parametrize(
    ("rate", "delay", "bits", "seconds"),
    [
        ("100mbit", "0ms", 100e6, 0),
        ("2.5gbit", "1ms", 2.5e9, 1e-3),
        ("1GBIT", "250us", 1e9, 250e-6),
        ("none", "0s", None, 0),
    ],
)
def test_rates_and_delays_are_read(rate: str, delay: str, bits: float | None, seconds: float) -> None:
    assert Link.parse(rate, delay) == Link(bits, seconds)


@pytest.mark.parametrize(
    ("rate", "delay", "said"),
    [
        ("1gbps", "0ms", "rate must be written as 100mbit, 2.5gbit or none, got '1gbps'"),
        ("fast", "0ms", "got 'fast'"),
        ("1gbit", "1", "delay must be written as 500us, 1ms or 0.1s, got '1'"),
        ("10kbit", "0ms", r"Link.rate must be in \[1mbit, 100gbit\], or None, got 10000"),
        ("1gbit", "5s", r"Link.delay must be in \[0, 1\] seconds, got 5.0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(rate: str, delay: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Link.parse(rate, delay)


@pytest.mark.parametrize("text", ["100mbit", "1gbit", "2.5gbit", "none"])
def test_text_and_link_are_the_same(text: str) -> None:
    assert str(Link.parse(text)) == text


def test_a_bucket_holds_a_millisecond_and_no_less_than_ten_frames() -> None:
    assert [Link.parse(rate).bucket for rate in ("10mbit", "1gbit", "10gbit")] == [16384, 125_000, 1_250_000]


def test_one_end_of_a_cable_delays_and_both_are_shaped() -> None:
    link = Link.parse("1gbit", "1ms")
    near, far = link.shaper("eth0", near=True), link.shaper("port0")
    assert [line.split()[4] for line in near] == ["root", "parent"]
    assert near[0].endswith("tbf rate 1000000000bit burst 125000 latency 201ms")
    assert "netem delay 1000us" in near[1]
    assert far == ["qdisc add dev port0 root handle 1: tbf rate 1000000000bit burst 125000 latency 21ms"]
    assert Link.parse("none").shaper("eth0") == []
