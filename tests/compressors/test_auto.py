"""Thresholds that follow the gradient: the share that fires, floods, what is conserved, what is remembered."""

import copy
import math
import re

import pytest
import torch

from gradwire import kernels
from gradwire.compressors import capabilities
from gradwire.compressors.signs.onebit import OneBit
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.compressors.wrappers.compose import compose
from gradwire.contrib.compressors.sparse.threshold import Threshold
from gradwire.contrib.compressors.ternary.strom import Strom
from gradwire.contrib.compressors.wrappers.entropy import Entropy
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.engine.settings import build_compressor
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from gradwire.testing.memory import check_memory
from gradwire.vocabulary import Key
from tests.cases import together

N, JUMP, STEPS = 6000, 60, 160
METHODS = [TwoBit("auto"), TwoBit("auto", "adaptive", 0.02), Strom("auto"), Threshold("auto", target=0.05)]
methods = pytest.mark.parametrize("code", METHODS, ids=str)
carried = pytest.mark.parametrize(
    ("strategy", "code"), [*(("allgather", c) for c in METHODS), ("two_phase", METHODS[0])]
)

SCALES = {
    "normal": lambda step: gaussian(N, seed=step),
    "equal": lambda _: torch.full((N,), 1e-9),
    "equal and negative": lambda _: torch.full((N,), -3.0),
    "a thousand times larger": lambda step: gaussian(N, seed=step) * (1e3 if step >= JUMP else 1.0),
    "a thousand times smaller": lambda step: gaussian(N, seed=step) * (1e-3 if step >= JUMP else 1.0),
    "drifting": lambda step: 0.3 + gaussian(N, seed=step),
    "of sparse rows": lambda step: gaussian(N, seed=step) * (torch.arange(N) % 50 == step % 50),
}


def run(code, gradients, shape=(N,), policy=None):
    """The exchange, and what was put in and came out: one tensor, one rank."""
    exchange, put, out = Exchange(code, policy=policy or Policy(min_numel=0)), [], []
    for gradient in gradients:
        put.append(gradient.clone())
        step(exchange, gradient, shape)
        out.append(gradient)
    return exchange, put, out


def step(exchange, flat, shape=(N,)):
    exchange.begin_step()
    exchange.run(flat, [("w", shape)])
    return flat


def threshold_of(exchange, name="w"):
    wishes, weights = exchange.residuals.states[name]["agreed"].tolist()
    return wishes / weights if weights > 0 else math.nan


@together
@methods
@pytest.mark.parametrize("kind", SCALES)
def test_the_share_stays_near_the_target_and_nothing_is_lost(code, kind):
    """Never twice the target, whatever happens; at least a third of it once it is known, but where the scale falls."""
    exchange, put, out = run(code, map(SCALES[kind], range(STEPS)))
    shares = torch.tensor([float((x != 0).float().mean()) for x in out])
    assert float(shares.max()) < 2 * code.target
    if kind == "a thousand times smaller":
        assert float(shares[:JUMP].min()) > code.target / 3
        assert float(shares[-50:].mean()) > code.target / 3
    elif kind != "of sparse rows":
        assert float(shares.min()) > code.target / 3
        assert float(shares.mean()) == pytest.approx(code.target, rel=0.1)
    kept = exchange.residuals.worker["residual"]["w"].double()
    came, went = sum(x.double() for x in put), sum(x.double() for x in out)
    torch.testing.assert_close(went + kept, came, rtol=0, atol=1e-5 * float(sum(x.abs().max() for x in put)))


@pytest.mark.parametrize("code", [TwoBit("auto"), Strom("auto", target=0.1)], ids=str)
def test_a_fixed_threshold_is_flooded_where_auto_is_not(code):
    """Equal elements: one reaches the threshold when all do."""
    fixed = type(code)(0.1)
    _, _, flooded = run(fixed, [torch.full((N,), 0.0125) for _ in range(40)])
    shares = {float((x != 0).float().mean()) for x in flooded}
    assert shares == {0.0, 1.0}
    _, _, out = run(code, [torch.full((N,), 0.0125) for _ in range(40)])
    assert max(float((x != 0).float().mean()) for x in out) < 1.3 * code.target


@together
@methods
def test_residuals_neither_queue_up_nor_wait_for_ever(code):
    """They stay within a few steps' worth of what the target drains."""
    exchange, _, _ = run(code, map(SCALES["drifting"], range(STEPS)))
    early = float(exchange.residuals.worker["residual"]["w"].abs().max())
    for late in range(STEPS, 2 * STEPS):
        step(exchange, SCALES["drifting"](late))
    late_residual = exchange.residuals.worker["residual"]["w"]
    assert float(late_residual.abs().max()) < 1.5 * early
    assert float(late_residual.abs().max()) < 4 * threshold_of(exchange)


@together
@methods
@pytest.mark.parametrize(("factor", "most"), [(1e3, 40), (1e-3, 200)])
def test_the_threshold_follows_a_jump_of_the_scale(code, factor, most):
    exchange, _, _ = run(code, map(SCALES["normal"], range(60)))
    before = threshold_of(exchange)
    last, changes = before, []
    for later in range(most):
        step(exchange, SCALES["normal"](later) * factor)
        changes.append(threshold_of(exchange) / last)
        last = threshold_of(exchange)
    assert max(max(changes), 1 / min(changes)) < 4
    assert 0 < threshold_of(exchange) < math.inf
    if factor > 1:
        assert threshold_of(exchange) / before > 200
    else:
        assert threshold_of(exchange) / before < 0.2


@together
@methods
def test_zero_gradients_send_nothing_and_leave_the_threshold_alone(code):
    exchange, _, (zeros,) = run(code, [torch.zeros(N)])
    assert not bool(zeros.any())
    for later in range(30):
        step(exchange, gaussian(N, seed=later))
    exchange.residuals.worker["residual"]["w"].zero_()
    for _ in range(5):
        assert not bool(step(exchange, torch.zeros(N)).any())
    known = threshold_of(exchange)
    for _ in range(100):
        step(exchange, torch.zeros(N))
    assert threshold_of(exchange) == pytest.approx(known, rel=0.2)


@together
@methods
def test_what_waits_goes_out_when_the_gradient_stops(code):
    exchange, _, _ = run(code, map(SCALES["normal"], range(30)))
    before = float(exchange.residuals.worker["residual"]["w"].norm())
    for _ in range(100):
        step(exchange, torch.zeros(N))
    assert float(exchange.residuals.worker["residual"]["w"].norm()) < 0.5 * before


@carried
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_step_leaves_no_trace(code, bad, strategy):
    runs = []
    for spoilt in (False, True):
        exchange = Exchange(code, strategy=strategy, policy=Policy(min_numel=0))
        for later in range(6):
            step(exchange, gaussian(N, seed=later))
        kept = copy.deepcopy(exchange.state_dict())
        if spoilt:
            step(exchange, torch.full((N,), bad))
        for name in ("advice", "agreed", "turn"):
            assert torch.equal(exchange.residuals.states["w"][name], kept["ranks"]["0"]["states"]["w"][name])
        runs.append([step(exchange, gaussian(N, seed=later)) for later in range(6, 12)])
    assert all(torch.equal(clean, after) for clean, after in zip(*runs, strict=True))


@together
@methods
@pytest.mark.parametrize("n", [1, 2, 17])
def test_small_tensors(code, n):
    residual, layout, state, out = torch.zeros(n), code.layout((n,)), code.init_state((n,), Key()), torch.zeros(n)
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    for _ in range(60):
        state["agreed"].copy_(state["advice"])
        code.encode_feedback(torch.full((n,), 0.7), residual, payload, state, Key())
        code.add_decoded(payload, out)
    torch.testing.assert_close(out + residual, torch.full((n,), 42.0), rtol=1e-5, atol=0)
    assert float(residual.abs().max()) < 2.5 * 0.7 * n


@together
@methods
def test_a_dense_warm_up_leaves_no_wish(code):
    exchange, _, out = run(code, [gaussian(N, seed=1)] * 3, policy=Policy(min_numel=0, start_after=3))
    assert all(torch.equal(x, gaussian(N, seed=1)) for x in out)
    fresh = Exchange(code, policy=Policy(min_numel=0))
    for later in range(5):
        assert torch.equal(step(exchange, gaussian(N, seed=later)), step(fresh, gaussian(N, seed=later)))


@carried
@pytest.mark.parametrize("saved_at", [1, 2, 9])
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(code, strategy, saved_at):
    exchange, again = (Exchange(code, strategy=strategy, policy=Policy(min_numel=0)) for _ in range(2))
    for later in range(saved_at):
        step(exchange, gaussian(N, seed=later))
    again.load_state_dict(copy.deepcopy(exchange.state_dict()))
    for later in range(saved_at, saved_at + 6):
        assert torch.equal(step(exchange, gaussian(N, seed=later)), step(again, gaussian(N, seed=later)))
        for name, tensor in exchange.residuals.states["w"].items():
            assert torch.equal(tensor, again.residuals.states["w"][name]), name


@together
@methods
def test_neighbours_of_another_scale_have_thresholds_of_their_own(code):
    exchange = Exchange(code, policy=Policy(min_numel=0))
    for later in range(20):
        flat = gaussian(2 * N, seed=later)
        flat[N:] *= 1e-6
        exchange.begin_step()
        exchange.run(flat, [("large", (N,)), ("small", (N,))])
    for part in flat.split(N):
        assert code.target / 2 < float((part != 0).float().mean()) < 2 * code.target
    assert threshold_of(exchange, "small") == pytest.approx(1e-6 * threshold_of(exchange, "large"), rel=0.2)
    assert not code.elementwise


@pytest.mark.parametrize("code", METHODS[:3], ids=str)
def test_a_payload_decodes_by_itself(code):
    """Two senders with thresholds of their own, before they agree on one."""
    x, layout = gaussian(N), code.layout((N,))
    rows, alone = torch.zeros(2, -(-layout.nbytes // 8) * 8, dtype=torch.uint8), []
    for row, scale in zip(rows, (1.0, 1e-4), strict=True):
        row[: layout.nbytes] = code.compress(x * scale)
        alone.append(code.decompress(row[: layout.nbytes].clone(), (N,)))
    assert alone[1].abs().max() == pytest.approx(1e-4 * float(alone[0].abs().max()), rel=1e-5)
    out = torch.zeros(N)
    code.add_decoded_many(layout.views(rows[:, : layout.nbytes]), out, 0.5)
    torch.testing.assert_close(out, 0.5 * (alone[0] + alone[1]))


@together
@pytest.mark.parametrize("code", METHODS[:3], ids=str)
@pytest.mark.parametrize("carried", [math.nan, math.inf, -1.0])
def test_a_carried_threshold_that_nobody_writes_is_refused(code, carried):
    buffer = code.compress(gaussian(100))
    code.layout((100,)).views(buffer)[-2].fill_(carried)
    with pytest.raises(WireError, match=f"{code.name} threshold of a payload must be finite and >= 0, got {carried}"):
        code.decompress(buffer, (100,))


def test_around_a_fixed_threshold_nothing_changed():
    for code in (TwoBit(0.5), Strom(0.5), Threshold(0.5)):
        assert code.elementwise
        assert capabilities.advice(code) == 0
        assert code.init_state((5,), Key()) == {}
        assert code.compress(gaussian(99)).equal(type(code)(0.5, target=0.3).compress(gaussian(99)))


@together
@methods
def test_it_goes_where_methods_go(code):
    """By name, through a configuration and inside the entropy coder, which passes the advice on."""
    again = build_compressor(code.name, {k: v for k, v in code.to_config().items() if k != "name"})
    assert again == code
    assert capabilities.advice(code) == 2
    if code.fixed_size:
        wrapped = Entropy(code)
        exchange, _, out = run(wrapped, map(SCALES["normal"], range(4)))
        _, _, plain = run(code, map(SCALES["normal"], range(4)))
        assert torch.equal(out[-1], plain[-1])
        assert threshold_of(exchange) > 0
    with pytest.raises(ConfigError, match=re.escape("Compose.inner must be a method whose ranks need not agree")):
        compose(TopK(), code)


@together
@pytest.mark.parametrize("target", [0, -0.1, 0.51, 1, math.nan, True, "auto", None])
def test_a_bad_target(target):
    for method in (TwoBit, Strom, Threshold):
        message = f"{method.__name__}.target must be in (0, 0.5], got {target!r}"
        with pytest.raises(ConfigError, match=re.escape(message)):
            method("auto", target=target)


@pytest.mark.skipif(not kernels.kernel_info()["loaded"], reason="the torch reference uses temporaries")
@methods
def test_a_step_allocates_nothing_of_the_gradients_size(code):
    check_memory(code, gaussian(2**18))


def test_onebit_has_none():
    with pytest.raises(ConfigError, match=r"OneBit\.threshold must be a finite number in float32, got 'auto'"):
        OneBit(threshold="auto")
