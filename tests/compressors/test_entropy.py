"""The wrapper: what comes out is the inner method's, in fewer bytes or hardly more."""

import pytest
import torch
import torch.distributed as dist

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import MultiRound
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.compressors.wrappers import around
from gradwire.contrib.compressors.signs.signum import Signum
from gradwire.contrib.compressors.wrappers._coders import CODERS
from gradwire.contrib.compressors.wrappers.entropy import Entropy
from gradwire.contrib.memory.momentum import Momentum
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.errors import ConfigError, WireError
from gradwire.memory.residual import Residual
from gradwire.testing.inputs import gaussian
from gradwire.testing.processes import run_ranks
from gradwire.vocabulary import Key, align
from tests.cases import together


def fixed_methods():
    for name in registry.names("compressors"):
        method = registry.build("compressors", name)
        if method.fixed_size and not isinstance(method, MultiRound):
            yield pytest.param(method, id=name)


def used(buffer):
    return int(buffer[:4].view(torch.int32))


def sent(code, buffer, n):
    """Bytes that travel."""
    return code.layout((n,)).cut(used(buffer)).nbytes


@together
@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("method", list(fixed_methods()))
def test_every_fixed_size_method_comes_back_bit_for_bit(method, coder):
    code = Entropy(method, coder)
    for x in (gaussian(5000), gaussian(5000) ** 5, torch.zeros(5000), gaussian(3)):
        plain, key = method.compress(x, key=Key(step=3)), Key(step=3)
        buffer = code.compress(x, key=key)
        bits = [c.decompress(b, x.shape).view(torch.int32) for c, b in ((code, buffer), (method, plain))]
        assert torch.equal(*bits)
        fields = len(method.layout(x.shape).fields)
        assert sent(code, buffer, x.numel()) <= method.layout(x.shape).nbytes + 4 + 4 * fields


def entropy_of(codes, bits):
    symbols = (codes[:, None].int() >> torch.arange(0, 8, bits)) & (2**bits - 1)
    p = torch.bincount(symbols.view(-1)) / symbols.numel()
    return float(-(p[p > 0] * p[p > 0].log2()).sum())


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_qsgd_l2_comes_within_five_percent_of_its_entropy(bits):
    n, method = 1 << 20, QSGD(bits=bits, norm="l2")
    x = gaussian(n)
    codes = method.layout((n,)).views(method.compress(x))[1]
    limit = entropy_of(codes, bits)
    payload = Entropy(method).compress(x)
    assert limit * n / 8 < used(payload) < 1.05 * limit * n / 8
    told = {2: 0.32, 4: 1.12, 8: 4.61}[bits]  # docs/methods/wrappers.md, with 32 bits for the norm of each block.
    assert 8 * used(payload) / n + 32 / method.block == pytest.approx(told, abs=0.01)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02])
def test_a_ternary_stream_comes_within_five_percent_of_its_entropy(share):
    n = 1 << 20
    x = gaussian(n)
    method = TwoBit(threshold=float(torch.quantile(x[:100000].abs(), 1 - share)))
    limit = entropy_of(method.compress(x), 2)
    assert used(Entropy(method).compress(x)) < 1.05 * limit * n / 8


def test_coders_are_ordered_as_theory_says():
    x, method = gaussian(1 << 17), QSGD(bits=4, norm="l2")
    rans, huffman, elias = (used(Entropy(method, coder).compress(x)) for coder in ("rans", "huffman", "elias"))
    assert rans < huffman < elias < (1 << 17) / 2


@pytest.mark.parametrize("coder", CODERS)
def test_what_cannot_be_coded_travels_raw_with_one_byte_more(coder):
    method = registry.build("compressors", "onebit", {"threshold": 0.0})
    x = gaussian(1 << 15)
    buffer = Entropy(method, coder).compress(x)
    assert used(buffer) == method.layout(x.shape).nbytes + 1
    assert torch.equal(buffer[5:], method.compress(x))


def test_a_method_without_codes_is_passed_on():
    x = gaussian(1000)
    code = Entropy(TopK(ratio=0.1))
    buffer = code.compress(x)
    assert used(buffer) == sum(f.count + 1 for f in TopK(ratio=0.1).layout(x.shape).fields if f.dtype.itemsize == 1)
    assert code.feedback == "required"
    assert capabilities.delta(code, 1000) == 0.1


def test_what_the_inner_method_declares_is_passed_on():
    code = Entropy(QSGD(bits=8))
    assert (code.unbiased, code.random, code.elementwise, code.summable) == (True, True, False, False)
    assert capabilities.omega(code, 512) == capabilities.omega(QSGD(bits=8), 512)
    assert Entropy(TwoBit()).elementwise
    assert Entropy(TwoBit()).feedback == "built-in"


def test_a_configuration_nests():
    code = Entropy(QSGD(bits=3), "huffman")
    config = code.to_config()
    assert config["inner"] == {"name": "qsgd", **{k: v for k, v in QSGD(bits=3).to_config().items() if k != "name"}}
    assert registry.from_config("compressors", config) == code
    assert registry.build("compressors", "entropy", {"inner": "twobit"}).inner == TwoBit()


@together
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"inner": registry.build("compressors", "powersgd")}, "Entropy.inner must be a method of one round"),
        ({"inner": Entropy()}, "Entropy.inner must be a method of one round"),
        ({"inner": 3}, "Entropy.inner must be a method of one round"),
        ({"coder": "zip"}, "Entropy.coder must be 'rans', 'huffman' or 'elias', got 'zip'"),
    ],
)
def test_bad_parameters_are_refused(arguments, text):
    with pytest.raises(ConfigError, match=text):
        Entropy(**arguments)


@pytest.mark.parametrize("coder", CODERS)
def test_corrupted_bytes_are_noticed_or_decode_to_something(coder):
    code, n = Entropy(QSGD(bits=4, norm="l2"), coder), 20000
    good = code.compress(gaussian(n))
    generator, refused = torch.Generator().manual_seed(0), 0
    start = code.layout((n,)).offsets[-1]
    for trial in range(150):
        bad = good.clone()
        where = torch.randint(0, 600 if trial % 2 else good.numel(), (1 + trial % 4,), generator=generator)
        bad[where] = torch.randint(0, 256, where.shape, generator=generator).to(torch.uint8)
        if trial % 5 == 0:
            bad[start] = trial % 4
        if trial % 7 == 0:
            bad[:4] = torch.tensor([int(torch.randint(-9, n, (1,), generator=generator))]).int().view(torch.uint8)
        try:
            assert code.decompress(bad, (n,)).shape == (n,)
        except WireError:
            refused += 1
    assert refused > 30


def test_a_cut_stream_is_refused():
    code = Entropy(QSGD(bits=4, norm="l2"))
    buffer = code.compress(gaussian(20000))
    layout = code.layout((20000,))
    for keep in (0, 1, 30, 100, used(buffer) - 1):
        payload = layout.views(buffer.clone())
        payload[0].fill_(keep)
        with pytest.raises(WireError):
            code.check_payload(payload, (20000,))


def exchanged(rank, inner):
    """Two exchanges of a bucket, wrapped and not: means and bytes."""
    results = []
    for method in (inner, Entropy(inner)):
        exchange = Exchange(method, strategy="allgather", group=dist.group.WORLD, policy=Policy(min_numel=0))
        flats = [gaussian(8192, seed=10 * step + rank) for step in range(2)]
        for flat in flats:
            exchange.begin_step()
            exchange.run(flat, [("a", (64, 64)), ("b", (4096,))])
        results.append((torch.cat(flats), exchange.metrics()["bytes_sent"]))
    return results


@pytest.mark.parametrize("inner", [QSGD(bits=4, norm="l2"), TwoBit(threshold=2.0)], ids=["qsgd", "twobit"])
def test_ranks_get_the_same_mean_for_fewer_bytes(inner):
    (plain, wrapped), (_, other) = run_ranks(2, exchanged, inner)
    assert torch.equal(plain[0], wrapped[0])
    assert torch.equal(wrapped[0], other[0])
    assert wrapped[1] < 0.7 * plain[1]


def test_an_override_with_another_method_inside_keeps_that_methods_memory():
    code = Entropy(Signum())
    exchange = Exchange(Entropy(TwoBit()), memory="residual", policy=Policy(overrides={"a": code}))
    assert exchange.methods.memory_for(code) == Momentum()
    assert exchange.methods.memory_for(Entropy(TwoBit(threshold=0.1))) == Residual()


@pytest.mark.parametrize("room", [1, 900, 10**6])
def test_ranks_are_opened_a_few_at_a_time(monkeypatch, room):
    monkeypatch.setattr(around, "ROOM", room)
    code, n = Entropy(), 700
    layout = code.layout((n,))
    rows = torch.zeros(5, align(layout.nbytes), dtype=torch.uint8)
    for rank, row in enumerate(rows):
        row[: layout.nbytes] = code.compress(gaussian(n, seed=rank), key=Key(step=rank))
    expected, together = gaussian(n, seed=9), gaussian(n, seed=9)
    for row in rows:
        code.add_decoded(layout.views(row[: layout.nbytes]), expected, 1 / 3)
    code.add_decoded_many(layout.views(rows[:, : layout.nbytes]), together, 1 / 3)
    assert torch.equal(together, expected)
