"""Links as they are written, and as the kernel is told."""

from __future__ import annotations

import pytest

from gradwire.errors import ConfigError
from gradwire_lab.netlab import Netlab, lab_for
from gradwire_lab.netlab.check import check
from gradwire_lab.netlab.link import Link


@pytest.mark.parametrize(
    ("rate", "delay", "bits", "seconds"),
    [
        ("100mbit", "0ms", 100e6, 0),
        ("2.5gbit", "1ms", 2.5e9, 1e-3),
        ("1GBIT", "250us", 1e9, 250e-6),
        ("3600gbit", "0ms", 3.6e12, 0),
        ("100tbit", "0ms", 100e12, 0),
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
        ("10kbit", "0ms", r"Link.rate must be in \[1mbit, 100tbit\], or None, got 10000"),
        ("101tbit", "0ms", r"Link.rate must be in \[1mbit, 100tbit\], or None, got 101000000000000"),
        ("1gbit", "5s", r"Link.delay must be in \[0, 1\] seconds, got 5.0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(rate: str, delay: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Link.parse(rate, delay)


@pytest.mark.parametrize("text", ["100mbit", "1gbit", "2.5gbit", "400gbit", "3.6tbit", "none"])
def test_text_and_link_are_the_same(text: str) -> None:
    assert str(Link.parse(text)) == text


def test_a_lab_has_no_link_as_fast_as_one_on_paper() -> None:
    """It is refused before anything is made, with or without root, and where a suite or a record names it."""
    assert Link.parse("100gbit").in_lab() == Link.read("100gbit") == Link(10**11)
    said = r"Link\.rate must be at most 100gbit in a lab, got '400gbit'"
    fast = Link.parse("400gbit")
    for made in (
        fast.in_lab,
        lambda: Netlab(2, "400gbit"),
        lambda: lab_for(2, fast),
        lambda: Link.read("400gbit"),
        lambda: next(check(2, ["400gbit"], 1.0)),
    ):
        with pytest.raises(ConfigError, match=said):
            made()


def test_what_is_under_way_on_a_link_without_a_rate_is_that_of_the_fastest() -> None:
    assert Link.parse("none", "1ms").shaper("eth0", near=True) == [
        f"qdisc add dev eth0 root netem delay 1000us limit {1000 + int(1.25e10 * 0.201 / 1500)}"
    ]


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
