"""Choices made from declared properties, and a group of one."""

from __future__ import annotations

import pytest
import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.levels.loco import LoCo
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.signs.efsignsgd import EFSignSGD
from gradwire.compressors.simple import SimpleCompressor
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.lowrank.gradiveq import GradiVeQ
from gradwire.contrib.compressors.signs.signum import Signum
from gradwire.contrib.memory.momentum import Momentum
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import Named, default_strategy
from gradwire.engine.policy import Policy
from gradwire.engine.settings import Settings
from gradwire.errors import ConfigError
from gradwire.kernels.stored import read
from gradwire.memory.averaged_error import AveragedError
from gradwire.memory.base import Memory, default_memory
from gradwire.memory.dgc import DGCMemory
from gradwire.memory.preconditioned import Preconditioned
from gradwire.memory.residual import Residual
from gradwire.schedules import stages
from tests.cases import together
from tests.contracts.thread_ranks import N, exchange_in_threads


def test_memory_follows_the_declared_feedback() -> None:
    for name in registry.names("compressors"):
        compressor = registry.build("compressors", name)
        needed = "residual" if compressor.feedback in ("required", "built-in") else "none"
        wanted = capabilities.memory(compressor) or needed
        assert default_memory(compressor) == wanted


def test_strategy_follows_summability_and_the_number_of_workers() -> None:
    assert default_strategy(registry.build("compressors", "fp16"), 1000) == "allreduce"
    assert default_strategy(PowerSGD(), 2) == "allreduce"
    assert default_strategy(TwoBit(), 4) == "allgather"
    assert default_strategy(TwoBit(), 5) == "two_phase"


def test_error_feedback_that_diverges_is_refused_unless_forced() -> None:
    coarse = QSGD(bits=2, block=65536, norm="l2")
    assert coarse.feedback == "unsafe"
    with pytest.raises(ConfigError, match="would grow without bound"):
        Exchange(coarse, memory="residual")
    Exchange(coarse, memory="residual", force=True)


def test_a_built_in_residual_cannot_be_refused() -> None:
    with pytest.raises(ConfigError, match="the residual is part of 'twobit'"):
        Exchange(TwoBit(), memory="none")


REQUIRED = [
    name for name in registry.names("compressors") if registry.build("compressors", name).feedback == "required"
]


@together
@pytest.mark.parametrize("name", REQUIRED)
def test_needed_error_feedback_is_refused_only_by_force(name: str) -> None:
    compressor = registry.build("compressors", name)
    with pytest.raises(ConfigError, match=r"memory 'none' (loses for good what|makes another method).*say force=True"):
        Exchange(compressor, memory="none")
    with pytest.raises(ConfigError, match=r"memory 'none' loses for good what.*say force=True"):
        Exchange(Identity(), memory="none", policy=Policy(overrides={"*": EFSignSGD()}))
    assert Exchange(compressor, memory="none", force=True).methods.memory_for(compressor).name == "none"


@together
@pytest.mark.parametrize(
    ("main", "memory", "override", "own"),
    [
        (LoCo(block=64), AveragedError(block=64), TopK(0.001), "residual"),
        (Signum(), Momentum(beta=0.99), TopK(0.001), "residual"),
        (QSGD(), Preconditioned(), FP16(), "none"),
        (TopK(), Residual(beta=0.9), QSGD(bits=2), "none"),
        (TopK(), Residual(beta=0.9), TwoBit(), Residual(beta=0.9)),
    ],
    ids=str,
)
def test_an_override_that_the_given_memory_does_not_suit_has_its_own(
    main: Compressor, memory: Memory, override: Compressor, own: str | Memory
) -> None:
    exchange = Exchange(main, memory=memory, policy=Policy(min_numel=0, overrides={"embedding": override}))
    assert exchange.methods.memory_for(main) == memory
    wanted = registry.build("memory", own) if isinstance(own, str) else own
    assert exchange.methods.memory_for(override) == wanted
    exchange.begin_step()
    exchange.run(torch.randn(2000), [("embedding", (1000,)), ("w", (1000,))])


@together
@pytest.mark.parametrize("name", registry.names("compressors"))
def test_a_group_of_one_needs_no_process_group_and_still_compresses(name: str) -> None:
    exchange = Exchange(registry.build("compressors", name), policy=Policy(min_numel=0))
    grad = torch.randn(64, 64)
    flat = grad.reshape(-1).clone()
    exchange.begin_step()
    exchange.run(flat, [("w", (64, 64))])
    assert exchange.metrics()["bytes_sent"] == 0
    if name in ("none", "gradiveq"):  # gradiveq sends its first gradients whole, to learn a basis from them.
        assert torch.equal(flat.view(64, 64), grad)
        return
    assert not torch.equal(flat.view(64, 64), grad)
    assert flat.isfinite().all()
    kept = exchange.residuals.worker.get("residual", {})
    votes = capabilities.settles(exchange.methods.compressor)
    if kept and not votes:
        left = read(kept["w"], 4096)
        codes = exchange.methods.memory_for(exchange.methods.compressor).form.block
        rounding = float(left.abs().max()) / 253 if codes else 2e-6
        torch.testing.assert_close(flat + left, grad.reshape(-1), rtol=0, atol=rounding)


@pytest.mark.parametrize("memory", [Preconditioned(floor=0.5), DGCMemory(clip=1.0)], ids=lambda memory: memory.name)
@pytest.mark.parametrize("name", ["bf16", "fp16", "threshold"])
def test_a_mean_or_a_norm_that_a_memory_takes_is_that_of_each_parameter_whatever_the_bucket(
    name: str, memory: Memory
) -> None:
    shapes, sizes = [("a", (32, 32)), ("b", (40,)), ("c", (32, 32))], [1024, 40, 1024]

    def outcome(buckets: list[list[Named]]) -> list[torch.Tensor]:
        exchange = Exchange(registry.build("compressors", name), memory=memory, policy=Policy(min_numel=0), force=True)
        outputs = []
        for step in range(3):
            exchange.begin_step()
            flat = torch.randn(2088, generator=torch.Generator().manual_seed(step))
            grads = dict(zip("abc", torch.split(flat, sizes), strict=True))
            grads["a"].mul_(1000.0)
            for bucket in buckets:
                whole = torch.cat([grads[each] for each, _ in bucket])
                exchange.run(whole, bucket)
                outputs += torch.split(whole, [torch.Size(shape).numel() for _, shape in bucket])
        return outputs

    together, apart = outcome([shapes]), outcome([[each] for each in shapes])
    assert all(map(torch.equal, together, apart))


def test_an_override_that_the_strategy_cannot_carry_gets_its_own() -> None:
    policy = Policy(min_numel=0, overrides={"a": PowerSGD(rank=1)})
    exchange = Exchange(TwoBit(0.01), strategy="two_phase", policy=policy)
    flat = torch.randn(2 * 4096)
    exchange.begin_step()
    exchange.run(flat, [("a", (64, 64)), ("b", (64, 64))])
    assert torch.linalg.matrix_rank(flat[:4096].view(64, 64)) == 1
    assert flat[4096:].abs().unique().tolist() == pytest.approx([0.0, 0.01])


def test_a_scheduled_threshold_keeps_the_plan_and_a_scheduled_ratio_makes_a_new_one() -> None:
    for compressor, schedule, plans in [
        (TwoBit(), {"threshold": lambda step: 1.0 / (step + 1)}, 1),
        (TopK(), {"ratio": lambda step: 0.5 / (step + 1)}, 3),
    ]:
        exchange = Exchange(compressor, policy=Policy(min_numel=0, schedule=schedule))
        made = set()
        for _ in range(3):
            exchange.begin_step()
            exchange.run(torch.randn(1024), [("w", (32, 32))])
            made.add(id(exchange.planner._plans["w"].sessions[0]))
            last = exchange.planner._plans["w"]
        assert last.units[0].compressor == exchange.methods.policy.at(2, compressor)
        assert len(made) <= plans
        assert (plans > 1) == (len(made) > 1)


@pytest.mark.parametrize("pattern", ["a", "b"])
def test_an_override_equal_to_the_scheduled_method_does_not_follow_the_schedule(pattern: str) -> None:
    policy = Policy(
        min_numel=0, overrides={pattern: TwoBit(threshold=0.5)}, schedule={"threshold": stages({0: 0.5, 1: 0.125})}
    )
    exchange = Exchange(TwoBit(threshold=0.5), policy=policy)
    for _ in range(2):
        exchange.begin_step()
        flat = torch.full((128,), 4.0)
        exchange.run(flat, [("a", (64,)), ("b", (64,))])
    sent = dict(zip("ab", flat.view(2, 64)[:, 0].tolist(), strict=True))
    assert sent.pop(pattern) == 0.5
    assert list(sent.values()) == [0.125]


def test_a_seed_that_is_not_one_is_named() -> None:
    with pytest.raises(ConfigError, match="seed must be an integer >= 0, got -1"):
        Exchange(TwoBit(), seed=-1)


def test_a_schedule_that_starts_too_large_to_pay_still_compresses_later() -> None:
    policy = Policy(min_numel=0, schedule={"ratio": lambda step: 1.0 if step < 2 else 0.01})
    exchange = Exchange(TopK(), policy=policy)
    nonzero = []
    for _ in range(4):
        flat = torch.randn(4096)
        exchange.begin_step()
        exchange.run(flat, [("w", (64, 64))])
        nonzero.append(int(flat.count_nonzero()))
    assert nonzero == [4096, 4096, 41, 41]


def test_a_value_that_is_not_finite_in_the_dense_part_takes_the_bucket_back() -> None:
    exchange = Exchange(TwoBit(0.5), policy=Policy(min_numel=100))
    params = [("w", (4096,)), ("b", (8,))]
    before = None
    for value in (0.3, float("nan"), 0.3):
        flat = torch.full((4104,), 0.3)
        flat[-1] = value
        exchange.begin_step()
        exchange.run(flat, params)
        if value != value:
            assert torch.equal(exchange.residuals.worker["residual"]["w"], before)
            assert flat[:4096].isnan().all()
        before = exchange.residuals.worker["residual"]["w"].clone()
    assert flat[:4096].eq(0.5).all()
    assert exchange.metrics()["nonfinite_steps"] == 1


def test_a_sum_that_hides_a_nan_still_tells() -> None:
    class Sign(SimpleCompressor):
        summable = True

        def compress(self, tensor, name):
            return [torch.where(tensor > 0, 1.0, -1.0).half()], None

        def decompress(self, tensors, ctx):
            return tensors[0].float()

    exchange = Exchange(Sign().adapted(), memory="residual", strategy="allreduce", policy=Policy(min_numel=0))
    for value in (1.0, float("nan"), 1.0):
        flat = torch.ones(64)
        flat[3] = value
        exchange.begin_step()
        exchange.run(flat, [("w", (64,))])
        assert flat.isfinite().all() == (value == 1.0)
    assert exchange.metrics()["nonfinite_steps"] == 1
    assert exchange.residuals.worker["residual"]["w"].isfinite().all()


def test_misuse_of_run_is_named() -> None:
    exchange = Exchange(TwoBit())
    with pytest.raises(ConfigError, match="run must be called after begin_step"):
        exchange.run(torch.zeros(4), [("w", (4,))])
    exchange.begin_step()
    for flat in (torch.zeros(5), torch.zeros(4).double(), torch.zeros(2, 2), torch.zeros(8)[::2]):
        with pytest.raises(ConfigError, match=r"flat must be contiguous float32 of shape \(4,\)"):
            exchange.run(flat, [("w", (4,))])


def test_refusing_memory_refuses_it_to_owners_too() -> None:
    exchange = Exchange(TopK(0.1), memory="none", force=True, strategy="two_phase", policy=Policy(min_numel=0))
    exchange.begin_step()
    exchange.run(torch.randn(4096), [("w", (64, 64))])
    assert not exchange.residuals.owned


def test_residuals_of_16_bits_take_half_the_memory_and_still_send_everything() -> None:
    exchange = Exchange(TopK(ratio=0.25), policy=Policy(min_numel=0), residual_dtype="bfloat16")
    total, sent = torch.zeros(64), torch.zeros(64)
    for step in range(40):
        flat = torch.sin(torch.arange(64.0) + step)
        total += flat
        exchange.begin_step()
        exchange.run(flat, [("w", (64,))])
        sent += flat
    kept = exchange.residuals.worker["residual"]["w"]
    assert kept.dtype == torch.bfloat16
    torch.testing.assert_close(sent + kept.float(), total, rtol=0, atol=0.15)


def test_the_width_of_a_residual_is_checked_and_told_to_the_ranks() -> None:
    settings = Settings(residual_dtype="float8")
    with pytest.raises(ConfigError, match="residual_dtype must be 'float32' or 'bfloat16' or 'int4', got 'float8'"):
        settings.check()
    with pytest.raises(ConfigError, match="residual_dtype must be float32 with a memory object"):
        Settings(residual_dtype="bfloat16", memory=Residual()).check()
    for name in ("bfloat16", "bf16"):
        Settings(residual_dtype=name).check()
        assert '"dtype": "bfloat16"' in Exchange(TopK(), residual_dtype=name).describe([])
    assert Residual(dtype="bf16") == Residual(dtype="bfloat16")


def test_a_residual_of_16_bits_does_not_collect_how_ranks_differ() -> None:
    told = {"residual_dtype": "bfloat16", "policy": Policy(overrides={"a.*": PowerSGD(rank=4)})}
    exchange = Exchange(PowerSGD(rank=2), **told)
    assert exchange.methods.compressor == PowerSGD(rank=2, error="local")
    assert exchange.methods.policy.overrides == {"a.*": PowerSGD(rank=4, error="local")}
    assert Exchange(PowerSGD(rank=2)).methods.compressor == PowerSGD(rank=2)
    with pytest.raises(ConfigError, match="the residual of 'gradiveq' must be float32, got fewer bits"):
        Exchange(GradiVeQ(), residual_dtype="bfloat16")
    with pytest.raises(ConfigError, match="the residual of 'gradiveq' must be float32, got fewer bits"):
        Exchange(TopK(), memory=Residual(dtype="bfloat16"), policy=Policy(overrides={"a": GradiVeQ()}))


def test_old_gradients_are_applied_with_the_rate_they_were_meant_for() -> None:
    """Top 1 of 20: the second element waits while the rate falls from 1 to 0.1."""
    moved = []
    for scaled in (False, True):
        exchange, weights = Exchange(TopK(ratio=0.05), policy=Policy(min_numel=0)), torch.zeros(20)
        for rate, grad in ((1.0, [3.0, 2.0]), (0.1, [0.0, 0.0])):
            if scaled and rate < 1:
                exchange.scale_residuals(1.0 / rate)
            flat = torch.tensor(grad + 18 * [0.0])
            exchange.begin_step()
            exchange.run(flat, [("w", (20,))])
            weights -= rate * flat
        moved.append(weights[:2].tolist())
    assert moved == [[-3.0, pytest.approx(-0.2)], [-3.0, pytest.approx(-2.0)]]


@together
@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), "2"])
def test_a_bad_factor_of_residuals(bad: float) -> None:
    with pytest.raises(ConfigError, match=r"factor must be a finite number > 0, got"):
        Exchange(TopK()).scale_residuals(bad)


def test_a_factor_after_a_skipped_step_is_not_taken_back_with_it() -> None:
    exchange, waits = Exchange(TopK(ratio=0.05), policy=Policy(min_numel=0)), []
    exchange.rollback.follow_skips(True)
    for last in (2.0, float("nan")):
        exchange.begin_step()
        for name, value in (("a", 1.0), ("b", last)):
            exchange.run(torch.tensor([3.0, value] + 18 * [0.0]), [(name, (20,))])
        waits.append(exchange.residuals.worker["residual"]["a"].tolist())
    exchange.scale_residuals(2.0)
    exchange.end_step()
    assert exchange.residuals.worker["residual"]["a"].tolist() == [2.0 * value for value in waits[0]]
    assert waits[0] != waits[1]


@pytest.mark.parametrize("world", [2, 4])
def test_without_another_word_an_uncompressed_exchange_is_counted_in_float32(world: int) -> None:
    """A ring moves 2 (W - 1) / W of the gradient's bytes."""
    rank = exchange_in_threads(TopK(), world, 1, lambda *_: torch.ones(N))[0]
    assert rank.exchange.metrics()["dense_bytes"] == 2 * (world - 1) * 4 * N // world


def test_a_step_that_is_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph would repeat the launches of one step for ever, with its random numbers and without its comparison."""
    exchange = Exchange(QSGD())
    exchange.begin_step()
    exchange.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ConfigError, match="a step must not be captured in a CUDA graph"):
        exchange.begin_step()
    assert exchange.step == 1
