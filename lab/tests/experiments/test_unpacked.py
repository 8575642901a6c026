"""The bytes that packing saves, of which the layouts alone can tell."""

from __future__ import annotations

import pytest

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire_lab.experiments.method_text import parse_method
from gradwire_lab.experiments.unpacked import unpacked_bytes, unpacked_payload

N = 96 * 100


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("signsgd", N),  # a bit becomes a byte
        ("twobit", N),
        ("efsignsgd", N + 4 * 5),  # the scales stay
        ("qsgd:bits=4", N + 4 * 19),
        ("qsgd:bits=8", N + 4 * 19),
        ("dynamic8", N + 4),
        ("topk:ratio=0.01", 96 * 4 + 4 + 96 * 2),
        ("powersgd", 4 * 2 * (96 + 100)),
        ("fp16", 2 * N),
        ("none", 4 * N),
        ("compose", 960 + 8 + 4 + 2 * 960),  # the codes are of the elements that are named
        ("three_lc", None),  # its size depends on the data
        ("global_qsgd", None),  # sums in words
    ],
)
def test_each_code_in_the_smallest_whole_type(text: str, nbytes: int | None) -> None:
    assert unpacked_payload(parse_method(text), (96, 100)) == nbytes


def test_it_is_never_less_than_what_is_sent() -> None:
    for name in registry.names("compressors"):
        compressor = registry.build("compressors", name)
        wide = unpacked_payload(compressor, (96, 100))
        sent = compressor.layout((96, 100)).nbytes if capabilities.rounds_needed(compressor) == 1 else 0
        assert wide is None or wide >= sent, name


def test_the_traffic_grows_with_the_payloads_and_what_is_dense_stays() -> None:
    exchange = Exchange(parse_method("twobit"), policy=Policy(1024))
    params = [("weight", (100, 100)), ("bias", (100,))]
    exchange.begin_step()
    # A group of one sends nothing dense: every byte that it is said to send is payload.
    assert unpacked_bytes(exchange, params, 2500.0) == pytest.approx(10_000, rel=0.01)
    assert unpacked_bytes(exchange, params[1:], 400.0) == 400.0
    lossless = Exchange(parse_method("three_lc"), policy=Policy(1024))
    lossless.begin_step()
    assert unpacked_bytes(lossless, params, 300.0) is None
