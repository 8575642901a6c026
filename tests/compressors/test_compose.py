import math
import re

import pytest
import torch

import gradwire
from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.casts.bf16 import BF16
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.levels.loco import LoCo
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.signs.onebit import OneBit
from gradwire.compressors.signs.signsgd import SignSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.compressors.wrappers import around
from gradwire.contrib.compressors.lowrank.acp_sgd import ACPSGD
from gradwire.contrib.compressors.lowrank.atomo import Atomo
from gradwire.contrib.compressors.lowrank.gradiveq import GradiVeQ
from gradwire.contrib.compressors.sparse.adaptive_sparse import AdaptiveSparse
from gradwire.contrib.compressors.sparse.adaptive_threshold import AdaptiveThreshold
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.contrib.compressors.sparse.sidco import SIDCo
from gradwire.contrib.compressors.transforms.demo import DeMo
from gradwire.contrib.compressors.wrappers.entropy import Entropy
from gradwire.errors import ConfigError, WireError
from gradwire.testing import contract
from gradwire.testing.inputs import SPECIAL, gaussian
from gradwire.vocabulary import Key
from tests.cases import together

PAIRS = [
    (TopK(0.1), QSGD(bits=4)),
    (TopK(0.05, indices="rice"), BF16()),
    (TopK(0.2, "float16"), OneBit()),
    (RandomK(0.2), QSGD(bits=8, block=16)),
    (RandomK(0.2, scaled=True), QSGD(bits=3, block=16)),
    (TopK(0.1, indices="bitmap"), Identity()),
    (TopK(0.5), TwoBit(0.5, "adaptive")),
]


@together
@pytest.mark.parametrize(("outer", "inner"), PAIRS, ids=lambda code: code.name)
def test_pairs_keep_the_contract(outer, inner):
    contract.check_all(gradwire.compose(outer, inner), gaussian(333))
    contract.check_all(gradwire.compose(outer, inner), SPECIAL["mixed scales"](40))


def test_values_are_those_of_the_inner_method_on_what_the_outer_one_chooses():
    x, outer, inner = gaussian(1000), TopK(0.05), QSGD(bits=4)
    out = gradwire.compose(outer, inner).decompress(gradwire.compose(outer, inner).compress(x), (1000,))
    chosen = outer.decompress(outer.compress(x), (1000,)).nonzero().view(-1)
    assert torch.equal(out[chosen], inner.decompress(inner.compress(x[chosen]), (50,)))
    assert int((out != 0).sum()) <= 50


def test_the_residual_is_what_was_not_sent_and_what_the_values_lost():
    code, n = gradwire.compose(TopK(0.1), QSGD(bits=2, block=16, scaled=True)), 500
    grad, residual = gaussian(n), gaussian(n, seed=1)
    total, layout = grad + residual, code.layout((n,))
    payload = layout.views(torch.empty(layout.nbytes, dtype=torch.uint8))
    code.encode_feedback(grad, residual, payload, {}, Key(step=3))
    sent = torch.zeros(n)
    code.add_decoded(payload, sent)
    assert torch.equal(residual, total - sent)
    assert bool((residual[sent != 0] != 0).any())


def test_exact_values_make_it_the_outer_method():
    x = gaussian(300)
    plain, made = TopK(0.1), gradwire.compose(TopK(0.1), Identity())
    assert torch.equal(made.decompress(made.compress(x), (300,)), plain.decompress(plain.compress(x), (300,)))
    assert capabilities.delta(made, 300) == capabilities.delta(plain, 300)


def test_constants_multiply():
    code = gradwire.compose(TopK(0.1), QSGD(bits=8, block=16))
    assert capabilities.contraction(code)
    assert capabilities.delta(code, 1000) == pytest.approx(0.1 * capabilities.delta(QSGD(bits=8, block=16), 100))
    noisy = gradwire.compose(RandomK(0.1, scaled=True), QSGD(bits=4, block=16))
    assert noisy.unbiased
    inner = capabilities.omega(QSGD(bits=4, block=16), 100)
    assert capabilities.omega(noisy, 1000) == pytest.approx(10 * (1 + inner) - 1)


@pytest.mark.parametrize(
    ("code", "feedback"),
    [
        (gradwire.compose(TopK(), QSGD()), "required"),
        (gradwire.compose(TopK(), QSGD(bits=2, scaled=True)), "required"),
        (gradwire.compose(RandomK(scaled=True), QSGD()), "unsafe"),
        (gradwire.compose(RandomK(scaled=True), QSGD(bits=2)), "unsafe"),
    ],
)
def test_feedback_follows_from_both(code, feedback):
    assert code.feedback == feedback


def test_four_bit_values_with_coded_places_take_a_quarter_of_plain_topk():
    shape = (1024, 1024)
    made, plain = gradwire.compose(TopK(0.01, indices="rice"), QSGD(bits=4)), TopK(0.01)
    assert made.layout(shape).nbytes < 0.27 * plain.layout(shape).nbytes


def test_from_names_and_configurations():
    code = gradwire.compose(TopK(0.01), QSGD(bits=4))
    config = {"name": "compose", "outer": {"name": "topk", "ratio": 0.01}, "inner": "qsgd"}
    assert registry.from_config("compressors", config) == code
    assert registry.from_config("compressors", code.to_config()) == code


def test_places_of_a_stranger_are_checked():
    code = gradwire.compose(TopK(0.1), BF16())
    buffer = code.compress(gaussian(100))
    buffer[:4] = 255
    with pytest.raises(WireError, match="topk counts must be"):
        code.decompress(buffer, (100,))


@pytest.mark.parametrize(
    ("outer", "inner", "message"),
    [
        (QSGD(), QSGD(), "Compose.outer must be a method of values and places, such as topk or randomk, got QSGD("),
        (TopK(), PowerSGD(), "Compose.inner must be a compressor of one round, got PowerSGD("),
        (TopK(), "qsgd", "Compose.inner must be a compressor of one round, got 'qsgd'"),
        (TopK(), LoCo(), "Compose.inner must be a method that is defined without a memory, got LoCo("),
    ],
)
def test_what_does_not_fit(outer, inner, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        gradwire.compose(outer, inner)


@pytest.mark.parametrize(
    "inner",
    [
        RandomK(0.25, scaled=True),
        gradwire.compose(RandomK(0.25, scaled=True), Identity()),
        Entropy(gradwire.compose(RandomK(0.25, scaled=True), Identity())),
    ],
    ids=["itself", "composed", "coded"],
)
def test_a_draw_inside_a_draw_is_another_one(inner):
    """One seed for both draws would send only those of the first elements that both choose by the same number."""
    code, x, draws = gradwire.compose(RandomK(0.25, scaled=True), inner), torch.ones(64), 600
    total = torch.zeros(64)
    for step in range(draws):
        code.add_decoded(code.layout((64,)).views(code.compress(x, key=Key(step=step))), total)
    standard_error = math.sqrt(capabilities.omega(code, 64) / draws)
    assert float((total / draws - 1).abs().max()) < 5 * standard_error
    assert code.unbiased


def test_a_vote_on_values_is_refused():
    """A method that makes +1 of an even vote would make it of all that was not sent."""
    for inner in (SignSGD(), DeMo(), Entropy(SignSGD())):
        with pytest.raises(ConfigError, match=r"Compose\.inner must be a method that hands out the mean and not"):
            gradwire.compose(TopK(), inner)
    assert gradwire.compose(TopK(), DeMo(sign=False)).feedback == "required"


def test_what_the_values_take_is_declared():
    plain, folded = gradwire.compose(TopK(), QSGD()), gradwire.compose(TopK(), DeMo(sign=False))
    assert (capabilities.portable(plain), capabilities.portable(folded)) == (True, False)
    decomposed = gradwire.compose(RandomK(scaled=True), Atomo())
    assert (capabilities.factorises(plain), capabilities.factorises(decomposed)) == (False, True)


@pytest.mark.parametrize("room", [1, 700, 10**6])
@pytest.mark.parametrize("outer", [TopK(0.1), TopK(0.1, indices="rice"), RandomK(0.2)], ids=repr)
def test_ranks_are_opened_a_few_at_a_time(monkeypatch, outer, room):
    monkeypatch.setattr(around, "ROOM", room)
    code, n, ranks = gradwire.compose(outer, QSGD(bits=4, block=16)), 800, 5
    layout = code.layout((n,))
    rows = torch.stack([code.compress(gaussian(n, seed=rank), key=Key(step=rank)) for rank in range(ranks)])
    expected, together = gaussian(n, seed=9), gaussian(n, seed=9)
    for row in rows:
        code.add_decoded(layout.views(row), expected, 1 / 3)
    code.add_decoded_many(layout.views(rows), together, 1 / 3)
    assert torch.equal(together, expected)


@together
@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (TopK(0.1), SIDCo()),
        (TopK(0.1), AdaptiveSparse(mode="closed", eps=0.5)),
        (TopK(0.1), AdaptiveThreshold()),
        (RandomK(0.1, scaled=True), Atomo()),
    ],
    ids=lambda code: code.name,
)
@pytest.mark.parametrize("n", [33, 70, 95])
def test_streams_begin_wherever_the_places_end(outer, inner, n):
    """An odd number of 16-bit places, and nothing to send."""
    code = gradwire.compose(outer, inner)
    for x in (gaussian(n), torch.zeros(n)):
        out = code.decompress(code.compress(x), (n,))
        assert bool(out.isfinite().all())
        assert int(out.count_nonzero()) <= outer.slots(n)


def test_a_mean_of_factors_is_no_code_of_values():
    """One round is one too many: nobody averages inside a composition."""
    for inner in (ACPSGD(), GradiVeQ()):
        with pytest.raises(ConfigError, match=r"Compose\.inner must be a compressor of one round, got"):
            gradwire.compose(TopK(), inner)
