"""The figures of a scrape of a server's metrics."""

import urllib.request

import torch

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.kvstore.protocol.compression import parse
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.prometheus_metrics import serve
from gradwire.kvstore.server.rules import Rules
from tests.kvstore.talk import ask, hello, init, pull, push


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))


def test_a_scrape_has_what_was_pushed_and_pulled():
    core = ServerCore(Rules(workers=2, dead_after=5.0))
    a, b = hello(core, 0), hello(core, 1)
    for peer in (a, b):
        init(core, peer, 1, "w", torch.zeros(64))
    ask(core, a, "config", 2, number=1, config=parse({"type": "2bit"}).to_config())
    push(core, a, 3, "w", 1, TwoBit().compress(torch.ones(64)), config=1)
    push(core, b, 3, "w", 1, torch.ones(64), now=0.5)
    push(core, b, 3, "w", 1, torch.ones(64), now=0.5)
    pull(core, a, 4, "w", 1)
    pull(core, a, 5, "w", 2)
    core.tick(10.0)
    told = scraped(serve(core, 0))
    assert float(told['gradwire_pushes_total{compressor="twobit"}']) == 1
    assert float(told['gradwire_received_bytes_total{compressor="twobit"}']) == 16
    assert float(told['gradwire_received_bytes_total{compressor="none"}']) == 512
    assert float(told["gradwire_repeated_pushes_total"]) == 1
    assert float(told["gradwire_step_seconds_count"]) == 1
    assert float(told["gradwire_step_seconds_sum"]) == 0.5
    assert float(told["gradwire_pulls_total"]) == 1
    assert float(told['gradwire_sent_bytes_total{compressor="none"}']) == 256
    assert (float(told["gradwire_waiting"]), float(told["gradwire_dead_workers"])) == (0, 2)


def test_compressed_answers_are_counted_by_their_method():
    core = ServerCore(Rules(workers=1))
    a = hello(core, 0, world=1)
    init(core, a, 1, "w", torch.zeros(64))
    ask(core, a, "config", 2, number=1, config=parse({"type": "none", "pull": {"type": "2bit"}}).to_config())
    push(core, a, 3, "w", 1, torch.ones(64), config=1)
    ask(core, a, "follow", 4, key="w", step=1, config=1, have=-1)
    told = scraped(serve(core, 0))
    assert float(told['gradwire_sent_bytes_total{compressor="twobit"}']) == 16 + 16
