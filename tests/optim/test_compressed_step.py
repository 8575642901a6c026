"""The compressed step of a local optimizer, over real Gloo processes."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradwire
from gradwire.errors import ConfigError
from gradwire.optim import CompressedStep, QsparseLocal
from gradwire.optim._flat import FlatParameters
from gradwire.optim.local.local_steps import LocalSteps
from gradwire.testing.processes import run_ranks
from tests.once import once
from tests.optim.jobs import adamw, dense_loss, digest, forward, loss_of, model_of, parameters, resume, train

SPARSE: dict[str, Any] = {"compressor": "topk", "ratio": 0.1, "min_numel": 0}


def _trained(rank: int, optimizer: LocalSteps, model: nn.Module, steps: int) -> list[str]:
    seen = []
    for step in range(steps):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        seen.append(parameters(model))
    return seen


@pytest.mark.parametrize("options", [{}, {"keep": True}, {"late": True}, {"every": 4, "late": True, "moments": 5}])
def test_under_adamw_one_element_in_ten_is_nearly_as_good_as_all(options: dict[str, Any]) -> None:
    results = run_ranks(2, train, "compressed_step", 160, {**SPARSE, **options})
    dense = dense_loss(adamw, 160)
    assert results[0]["digests"] == results[1]["digests"]
    assert results[0]["loss"] < dense + 0.1 < loss_of(model_of()) - 1.0


@pytest.mark.parametrize("options", [{}, {"bits": 0.5}, {"bits": 0.5, "every": 5}])
def test_under_adamw_the_noise_of_few_bits_costs_little_and_nothing_waits(options: dict[str, Any]) -> None:
    results = run_ranks(2, train, "compressed_step", 160, {"min_numel": 0, **options})
    dense = dense_loss(adamw, 160)
    assert results[0]["digests"] == results[1]["digests"]
    assert results[0]["loss"] < dense + 0.1 < loss_of(model_of()) - 1.0


def _kept_by_auto(rank: int) -> bool:
    optimizer = CompressedStep(torch.optim.AdamW(model_of().parameters()), "auto", keep=True)
    return optimizer.exchange.controller is not None


def test_what_auto_keeps_back_may_be_kept() -> None:
    assert run_ranks(2, _kept_by_auto) == [True, True]


def _defaults(rank: int) -> tuple[Any, ...]:
    model = model_of()
    optimizer = gradwire.CompressedStep(torch.optim.AdamW(model.parameters()))
    others = [CompressedStep(each(model_of().parameters(), lr=0.1)) for each in (torch.optim.SGD, torch.optim.Adam)]
    kept = CompressedStep(torch.optim.AdamW(model_of().parameters()), keep=True)
    found = [
        (each.exchange.methods.compressor, each.exchange.methods.memory_for(each.exchange.methods.compressor).name)
        for each in (optimizer, kept)
    ]
    return (found, optimizer.every, optimizer.decay, optimizer.moments, [other.decay for other in others])


def test_what_is_not_said_is_one_bit_without_a_residual_in_every_step_and_a_residual_where_it_is_kept() -> None:
    told = run_ranks(1, _defaults)[0]
    methods = [(gradwire.compressor("eden"), "none"), (gradwire.compressor("topk", ratio=0.01), "residual")]
    assert told == (methods, 1, "outer", "apart", ["inner", "inner"])


def _as_qsparse(rank: int) -> dict[int, list[list[str]]]:
    runs: dict[int, list[list[str]]] = {1: [], 3: []}
    for every, told in runs.items():
        for cls in (QsparseLocal, CompressedStep):
            model = model_of(seed=3 + rank)
            inner = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.5, weight_decay=1e-3)
            optimizer = cls(inner, every=every, **SPARSE)
            told.append([*_trained(rank, optimizer, model, 8), digest(optimizer.exchange.state_dict())])
    return runs


def test_with_the_decay_inside_it_is_qsparse_local_bit_for_bit() -> None:
    for runs in run_ranks(2, _as_qsparse):
        for one, other in runs.values():
            assert one == other


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [
        {"params": named[:2], "lr": 1e-2, "weight_decay": 0.3},
        {"params": named[2:4], "weight_decay": 0.0},
        {"params": named[4:], "lr": 3e-2, "weight_decay": 0.05},
    ]


def _uncompressed(rank: int, decay: str) -> list[list[Tensor]]:
    models = [model_of(), model_of()]
    inner = [torch.optim.AdamW(_groups(model), lr=3e-3) for model in models]
    optimizers = [inner[0], CompressedStep(inner[1], "none", decay=decay)]  # type: ignore[arg-type]
    for step in range(10):
        for model, optimizer in zip(models, optimizers, strict=True):
            forward(model, optimizer, step, rank).backward()
            optimizer.step()
    return [[param.detach() for param in model.parameters()] for model in models]


@pytest.mark.parametrize("decay", ["outer", "inner"])
def test_alone_and_uncompressed_it_is_adamw(decay: str) -> None:
    for own, plain in zip(*run_ranks(1, _uncompressed, decay)[0], strict=True):
        torch.testing.assert_close(own, plain, rtol=1e-5, atol=1e-7)


class _Recorded(CompressedStep):
    """Adds up, in float64, the ways that this rank handed in."""

    gone: Tensor | float = 0.0

    def exchanged(self, flat: Tensor, *args: Any, **options: Any) -> bool:
        self.gone = self.gone + flat.double()
        return super().exchanged(flat, *args, **options)


ROUNDS: tuple[dict[str, Any], ...] = (
    {},
    {"every": 3},
    {"late": True},
    {"every": 3, "late": True},
    {"keep": True},
    {"every": 3, "keep": True},
    {"keep": True, "reset": 5},
    {"keep": True, "reset": None},
)


def _identities(rank: int) -> list[tuple[list[float], str]]:
    return [_identity(rank, options) for options in ROUNDS]


def _identity(rank: int, options: dict[str, Any]) -> tuple[list[float], str]:
    """By how much the ways, what was applied and what waits differ after each round, relative to what was applied."""
    model = model_of()
    inner = torch.optim.AdamW(model.named_parameters(), lr=3e-3, weight_decay=0.1)
    optimizer = _Recorded(inner, strategy="allgather", decay="inner", moments=2, **SPARSE, **options)
    start = optimizer.agreed.data.double().clone()
    apart = []
    for step in range(12):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        if step % 4 == 3:
            optimizer.synchronize()
            waits = FlatParameters(optimizer.params)
            kept = optimizer.exchange.residuals.worker["residual"]
            waits.gather(kept[name].view(shape) for name, shape in optimizer.named)
            total = optimizer.gone - waits.data
            dist.all_reduce(total)
            applied = start - optimizer.agreed.data.double()
            apart.append(float((total / dist.get_world_size() - applied).norm() / applied.norm()))
            assert all(
                torch.equal(param, view) for param, view in zip(model.parameters(), optimizer.agreed.views, strict=True)
            )
    return apart, parameters(model)


@pytest.mark.parametrize("world", [2, 3])
def test_the_ways_are_what_was_applied_and_what_waits(world: int) -> None:
    for results in zip(*run_ranks(world, _identities), strict=True):
        assert len({end for _, end in results}) == 1
        for apart, _ in results:
            assert len(apart) == 3
            assert max(apart) < 1e-5


def _kept_by_hand(rank: int) -> dict[bool, list[list[float]]]:
    """Two ranks whose steps are 3 in eight elements, which are sent, and 1 elsewhere: where each goes on from."""
    seen: dict[bool, list[list[float]]] = {}
    for keep in (False, True):
        model = nn.Linear(64, 1, bias=False)
        nn.init.zeros_(model.weight)
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = CompressedStep(inner, "topk", ratio=0.125, min_numel=0, keep=keep, reset=None)
        seen[keep] = []
        for _ in range(2):
            model.weight.grad = torch.full((1, 64), -1.0)
            model.weight.grad[0, 8 * rank : 8 * rank + 8] = -3.0
            optimizer.step()
            seen[keep].append(model.weight[0, [0, 8]].tolist())
        optimizer.finish()
        seen[keep] += [model.weight[0, [0, 8]].tolist(), optimizer.agreed.data[[0, 8]].tolist()]
        assert optimizer.in_step
    return seen


def test_a_rank_goes_on_with_what_it_did_not_send() -> None:
    first, second = run_ranks(2, _kept_by_hand)
    # Each sends 3 of one element, of which half arrives; the 1 of the other one waits.
    assert first[False][0] == second[False][0] == [1.5, 1.5]
    assert (first[True][0], second[True][0]) == ([1.5, 2.5], [2.5, 1.5])
    assert (first[True][1], second[True][1]) == ([3.0, 5.0], [5.0, 3.0])
    assert first[False][2:] == [[3.0, 3.0]] * 2
    # In the end the mean of 0 and the 2 that waits is applied, too.
    assert first[True][2:] == second[True][2:] == [[4.0, 4.0]] * 2


def _reset_by_hand(rank: int) -> tuple[list[list[int]], list[int], float, float]:
    """The elements that wait after each step, the bytes of a step, and what the ratio compares."""
    model = nn.Sequential(nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = CompressedStep(inner, "topk", ratio=0.0625, min_numel=0, every=2, keep=True, reset=5)
    waiting, sent = [], [0]
    for step in range(6):
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        optimizer.step()
        if step % 2:
            kept = optimizer.exchange.residuals.worker["residual"]
            flat = torch.cat([kept[name].view(-1) for name, _ in optimizer.named])
            waiting.append((flat == 0).nonzero().view(-1).tolist())
            sent.append(optimizer.metrics()["bytes_sent"])
    dense = optimizer.exchange.counters.dense_bytes
    optimizer.finish()
    left = optimizer.metrics()["residual_norm"]
    return waiting, [after - before for before, after in pairwise(sent)], dense / (3 * 4 * 128), left


def test_what_waits_is_averaged_in_turn_and_then_waits_no_more() -> None:
    for waiting, sent, dense, left in run_ranks(2, _reset_by_hand):
        # 2 of 5 steps make a round, so 52 of the 128 elements are reset in each; the rest of a round wraps around.
        for done, part in zip(waiting, ({*range(52)}, {*range(52, 104)}, {*range(104, 128), *range(28)}), strict=True):
            assert part <= set(done)
            assert len(part) <= len(done) <= len(part) + 8
        assert min(sent) >= 4 * 52
        assert max(sent) < 4 * 52 + 250
        assert dense == 1.0
        assert left == 0.0


def _far(rank: int, options: dict[str, Any]) -> tuple[float, str]:
    """One element in a thousand: each rank nearly trains alone."""
    model = model_of(seed=3 + rank)
    inner = torch.optim.AdamW(model.named_parameters(), lr=3e-3)
    optimizer = CompressedStep(inner, "topk", ratio=0.001, min_numel=0, **options)
    _trained(rank, optimizer, model, 160)
    optimizer.synchronize()
    return loss_of(model), parameters(model)


def test_where_nearly_everything_waits_it_trains_nevertheless() -> None:
    kept, plain = (run_ranks(2, _far, options) for options in ({"keep": True}, {}))
    assert kept[0] == kept[1]
    assert kept[0][0] + 0.1 < plain[0][0]


def _late_by_hand(rank: int) -> list[tuple[list[float], list[float]]]:
    """Two ranks, steps of 1 and 3 in one element each, uncompressed, applied a round late."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = CompressedStep(torch.optim.SGD(model.parameters(), lr=1.0), "none", late=True)
    seen = []
    for step in range(4):
        model.weight.grad = torch.tensor([[1.0, 0.0] if rank == 0 else [0.0, 3.0]])
        optimizer.step() if step < 3 else optimizer.finish()
        seen.append((model.weight[0].tolist(), optimizer.agreed.data.tolist()))
    return seen


def test_a_late_round_by_hand() -> None:
    # Own ways (1, 0) and (0, 3), their mean (0.5, 1.5): agreed is a round behind, and a rank is its own way further.
    behind = [[0.0, 0.0], [-0.5, -1.5], [-1.0, -3.0], [-1.5, -4.5]]
    first, second = run_ranks(2, _late_by_hand)
    assert [agreed for _, agreed in first] == [agreed for _, agreed in second] == behind
    assert [weight for weight, _ in first] == [[-1.0, 0.0], [-1.5, -1.5], [-2.0, -3.0], [-1.5, -4.5]]
    assert [weight for weight, _ in second] == [[0.0, -3.0], [-0.5, -4.5], [-1.0, -6.0], [-1.5, -4.5]]


def _all_decayed(rank: int) -> list[tuple[list[str], list[float], float]]:
    return [_decayed(options) for options in ROUNDS]


def _decayed(options: dict[str, Any]) -> tuple[list[str], list[float], float]:
    """Parameters after steps with gradients of zero, a schedule and a frozen parameter; those of AdamW beside them."""
    models = [model_of(), model_of()]
    for model in models:
        next(model.parameters()).requires_grad_(False)
    inner = [torch.optim.AdamW(_groups(model), lr=5e-3) for model in models]
    optimizers = [CompressedStep(inner[0], **SPARSE, **options), inner[1]]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers]
    for step in range(6):
        for model, optimizer, schedule in zip(models, optimizers, schedules, strict=True):
            for param in model.parameters():
                param.grad = torch.zeros_like(param) if param.requires_grad else None
            if step == 4:
                optimizer.param_groups[2]["weight_decay"] = 0.2
            optimizer.step()
            schedule.step()
    optimizers[0].synchronize()  # type: ignore[attr-defined]
    waits = optimizers[0].metrics()["residual_norm"]  # type: ignore[attr-defined]
    ends = [parameters(model) for model in models]
    return ends, [group["weight_decay"] for group in optimizers[0].param_groups], waits


def test_the_decay_of_a_schedule_is_that_of_adamw_bit_for_bit_where_gradients_are_zero() -> None:
    for told in run_ranks(2, _all_decayed):
        for (own, plain), decays, waits in told:
            assert own == plain
            assert decays == [0.3, 0.0, 0.2]
            assert waits == 0


def _sixteen_bits(rank: int) -> tuple[float, str]:
    """Decay by less than a bfloat16 step adds up in float32, and is no way that would be taken back."""
    model = nn.Linear(64, 64, bias=False).bfloat16()
    nn.init.ones_(model.weight)
    optimizer = CompressedStep(torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.5), every=3, min_numel=0)
    for _ in range(60):
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
    return float(optimizer.agreed.data.mean()), parameters(model.float())


def test_sixteen_bit_parameters_decay_by_less_than_their_resolution() -> None:
    results = run_ranks(2, _sixteen_bits)
    assert results[0] == results[1]
    assert results[0][0] == pytest.approx((1 - 5e-4) ** 60, rel=1e-5)


def _rates_apart(rank: int) -> list[str]:
    """The error of each rank: at once, or with the round that is late; and when it goes on nevertheless."""
    told = []
    for late in (False, True):
        model = model_of()
        inner = torch.optim.AdamW(model.parameters(), lr=1e-3 * (1 + rank), weight_decay=0.1)
        optimizer = CompressedStep(inner, late=late)
        for _ in range(2):
            try:
                _trained(rank, optimizer, model, 1 + late)
            except Exception as error:
                told.append(f"{type(error).__name__}: {error}")
    return told


def test_ranks_that_would_shrink_differently_hear_of_it() -> None:
    for told in run_ranks(2, _rates_apart):
        assert len(told) == 4
        for text in told:
            assert text.startswith("GroupError: ")
            assert "ranks came apart: shrunk_by.0 is 0.9999 on rank 0; 0.9998 on rank 1" in text
            assert "decay='inner'" in text


def _moments(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    """Digests of the moments after each step, and of their mean over the ranks where nothing is averaged."""
    model = model_of()
    inner = torch.optim.AdamW(model.parameters(), lr=3e-3, amsgrad=True)
    optimizer = CompressedStep(inner, **SPARSE, **options)
    told: dict[str, Any] = {"steps": [], "bytes": []}
    for step in range(7):
        forward(model, optimizer, step, rank).backward()
        if rank == 1:
            list(model.parameters())[3].grad = None
        optimizer.step()
        states = [inner.state[param] for param in model.parameters() if param in inner.state]
        told["steps"].append(
            [digest([state[kind] for state in states if len(states) or 1]) for kind in ("exp_avg_sq", "max_exp_avg_sq")]
        )
        told["bytes"].append(optimizer.metrics()["bytes_sent"])
    told["there"] = [param in inner.state for param in model.parameters()]
    unused = list(model.parameters())[3]
    told["alone"] = digest(inner.state[unused]["exp_avg_sq"]) if rank == 0 else ""
    everywhere = [param for i, param in enumerate(model.parameters()) if i != 3]
    told["shared"] = digest([inner.state[param]["exp_avg_sq"] for param in everywhere])
    return told


@pytest.mark.parametrize("options", [{}, {"late": True}])
def test_second_moments_are_the_same_after_every_kth_round_and_their_bytes_are_counted(options: dict[str, Any]) -> None:
    last = 7 if not options else 6  # The rounds that have landed after seven steps.
    apart = run_ranks(2, _moments, {**options, "moments": "apart"})
    averaged = run_ranks(2, _moments, {**options, "moments": last})
    assert apart[0]["shared"] != apart[1]["shared"]
    assert averaged[0]["shared"] == averaged[1]["shared"]
    assert [told["there"][3] for told in averaged] == [True, False]
    assert averaged[0]["steps"][:-1] == apart[0]["steps"][:-1]
    assert averaged[0]["alone"] == apart[0]["alone"]  # The mean over the ranks that have one.
    numel = sum(param.numel() for param in model_of().parameters()) + 6 + 1
    assert [told["bytes"][-1] for told in averaged] == [told["bytes"][-1] + 2 * 4 * numel for told in apart]


def _kept_apart(rank: int) -> tuple[bool, bool]:
    """The mean of two ranks' moments is what both have after one round."""
    model = model_of()
    optimizer = CompressedStep(torch.optim.AdamW(model.parameters()), moments=1)
    param = next(model.parameters())
    for each in model.parameters():
        each.grad = torch.full_like(each, 1.0 + rank)
    optimizer.step()
    expected = torch.full_like(param, (1 - 0.999) * (1.0 + 4.0) / 2)
    return torch.allclose(optimizer.inner.state[param]["exp_avg_sq"], expected), optimizer.in_step


def test_what_is_averaged_is_the_mean() -> None:
    assert run_ranks(2, _kept_apart) == [(True, True)] * 2


@once
def resumed(every: int, how: str) -> list[bool]:
    more = {how: True} if how else {}
    return run_ranks(2, resume, "compressed_step", 7, 16, {**SPARSE, "every": every, "moments": 2, **more})


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("how", ["", "late", "keep"])
def test_a_checkpoint_continues_bit_for_bit(every: int, how: str) -> None:
    assert all(resumed(every, how))


def _saving_changes_nothing(rank: int) -> tuple[list[str], list[str]]:
    runs = []
    for save in (False, True):
        model = model_of()
        optimizer = CompressedStep(torch.optim.AdamW(model.parameters()), every=2, late=True, **SPARSE)
        seen = []
        for step in range(8):
            forward(model, optimizer, step, rank).backward()
            optimizer.step()
            if save:
                optimizer.state_dict()
            seen.append(parameters(model))
        optimizer.synchronize()
        runs.append([*seen, parameters(model)])
    return runs[0], runs[1]


def test_saving_while_a_round_is_under_way_changes_nothing() -> None:
    for plain, saved in run_ranks(2, _saving_changes_nothing):
        assert plain == saved


def _loaded_elsewhere(rank: int) -> list[str]:
    model = model_of()
    optimizer = CompressedStep(torch.optim.AdamW(model.named_parameters()), late=True, **SPARSE)
    _trained(rank, optimizer, model, 2)
    saved = [copy.deepcopy(optimizer.state_dict())]
    optimizer.synchronize()
    saved.append(copy.deepcopy(optimizer.state_dict()))
    saved.append({**saved[0], "exchange": {**saved[0]["exchange"], "world": 3}})
    others = [
        CompressedStep(torch.optim.AdamW(model_of().named_parameters()), late=late, **SPARSE)
        for late in (False, False, True)
    ]
    told = []
    for state, other in zip(saved, others, strict=True):
        try:
            other.load_state_dict(state, on_resize="reset")
            told.append("")
        except ConfigError as error:
            told.append(str(error))
    return told


def test_a_round_under_way_cannot_be_loaded_where_nothing_is_late_or_by_other_ranks() -> None:
    for late, in_step, resized in run_ranks(2, _loaded_elsewhere):
        assert late == resized
        assert late.startswith("state_dict must be saved after synchronize() ")
        assert in_step == ""


def _spoilt(rank: int, what: str, options: dict[str, Any]) -> dict[str, Any]:
    """Rank 1's gradient, or a parameter before an exchange, is not finite in step 3."""
    model = model_of()
    optimizer = CompressedStep(torch.optim.AdamW(model.parameters()), every=2, **SPARSE, **options)
    finite = True
    for step in range(9):
        loss = forward(model, optimizer, step, rank)
        bad = (step, rank) == (3, 1)
        (loss * (float("nan") if bad and what == "gradient" else 1.0)).backward()
        if bad and what == "parameter":  # In the middle of a round: in between it would be a value that was loaded.
            with torch.no_grad():
                next(model.parameters())[0, 0] = float("inf")
        optimizer.step()
        finite = finite and all(bool(param.isfinite().all()) for param in model.parameters())
    optimizer.synchronize()
    return {"end": parameters(model), "finite": finite, "count": optimizer.metrics()["nonfinite_steps"]}


@pytest.mark.parametrize("options", [{}, {"late": True}, {"keep": True, "reset": 4}])
@pytest.mark.parametrize(("what", "dropped"), [("gradient", 0), ("parameter", 1)])
def test_what_is_not_finite_on_one_rank_spoils_its_step_or_the_round(
    what: str, dropped: int, options: dict[str, Any]
) -> None:
    results = run_ranks(2, _spoilt, what, options)
    assert results[0]["end"] == results[1]["end"]
    assert [(told["finite"], told["count"]) for told in results] == [(True, dropped)] * 2


def _scaled(rank: int, options: dict[str, Any]) -> tuple[str, str, float]:
    """A GradScaler's power of two changes no bit; rank 1 overflows alone in step 2 and holds nobody up."""
    ends = []
    for scale in (1.0, 4.0):
        model = model_of()
        optimizer = CompressedStep(torch.optim.AdamW(model.parameters()), **SPARSE, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=100)
        for step in range(6):
            loss = forward(model, optimizer, step, rank)
            scaler.scale(loss * (float("inf") if (step, rank) == (2, 1) else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.synchronize()
        ends.append(parameters(model))
    return ends[0], ends[1], scaler.get_scale()


@pytest.mark.parametrize("options", [{}, {"every": 2, "late": True}])
def test_a_loss_scaler_may_overflow_on_one_rank(options: dict[str, Any]) -> None:
    results = run_ranks(2, _scaled, options)
    assert results[0][:2] == results[1][:2]
    assert results[0][0] == results[0][1]
    assert [scale for *_, scale in results] == [4.0, 2.0]


def _refused(rank: int) -> list[str]:
    model, told = model_of(), []
    meeting = gradwire.Meeting(dist.HashStore(), "0")
    adam, sgd = torch.optim.AdamW, torch.optim.SGD
    for cls, options in (
        (adam, {"every": 0}),
        (adam, {"decay": "both"}),
        (adam, {"moments": 0}),
        (adam, {"moments": "mean"}),
        (adam, {"late": 1}),
        (sgd, {"decay": "outer"}),
        (torch.optim.Adam, {"decay": "outer"}),
        (sgd, {"moments": 3}),
        (adam, {"moments": 3, "meeting": meeting}),
        (adam, {"late": True, "meeting": meeting}),
        (adam, {"decay": "outer", "meeting": meeting}),
        (adam, {"keep": 1}),
        (adam, {"keep": True, "reset": 0}),
        (adam, {"keep": True, "late": True}),
        (adam, {"keep": True, "meeting": meeting}),
        (adam, {"keep": True, "compressor": "bf16"}),
        (adam, {"keep": True, "compressor": "dgc"}),
    ):
        try:
            CompressedStep(cls(model.parameters(), lr=0.1), **options)  # type: ignore[arg-type]
            told.append("")
        except ConfigError as error:
            told.append(str(error))
    return told


def test_bad_parameters_are_refused() -> None:
    assert run_ranks(1, _refused)[0] == [
        "CompressedStep.every must be an integer >= 1, got 0",
        "CompressedStep.decay must be 'outer', 'inner' or None, got 'both'",
        "CompressedStep.moments must be 'apart' or an integer >= 1, got 0",
        "CompressedStep.moments must be 'apart' or an integer >= 1, got 'mean'",
        "CompressedStep.late must be True or False, got 1",
        "CompressedStep.decay must be 'inner' with an optimizer whose weight decay is not decoupled, "
        "got 'outer' with SGD",
        "CompressedStep.decay must be 'inner' with an optimizer whose weight decay is not decoupled, "
        "got 'outer' with Adam",
        "CompressedStep.moments must be 'apart' with an optimizer that keeps no exp_avg_sq, got 3 with SGD",
        "CompressedStep.moments must be 'apart' with a meeting, got 3",
        "CompressedStep.late must be False with a meeting, got True",
        "CompressedStep.decay must be 'inner' with a meeting, got 'outer'",
        "CompressedStep.keep must be True or False, got 1",
        "CompressedStep.reset must be an integer >= 1 or None, got 0",
        "CompressedStep.keep must be False with late, where a whole round is kept, got True",
        "CompressedStep.keep must be False with a meeting, got True",
        "CompressedStep.keep must be False with memory 'none', where nothing waits, got True",
        "CompressedStep.keep must be False with memory 'dgc', whose residual is a momentum, got True",
    ]


class Lion(torch.optim.SGD):
    """Stands for an optimizer of another package, whose state cannot be known before its first step."""


def _foreign(rank: int) -> tuple[str, str]:
    model = model_of()
    optimizer = CompressedStep(Lion(model.parameters(), lr=0.1, momentum=0.9), decay="outer", moments=2)
    try:
        _trained(rank, optimizer, model, 2)
    except ConfigError as error:
        return optimizer.decay, str(error)
    return optimizer.decay, ""


def test_an_optimizer_of_another_package_without_moments_is_told_when_they_are_to_be_averaged() -> None:
    told = ("outer", "CompressedStep.inner must be an optimizer with exp_avg_sq, got Lion, which keeps none")
    assert run_ranks(2, _foreign) == [told] * 2


def test_an_inner_optimizer_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"CompressedStep.inner must be a torch.optim.Optimizer"):
        CompressedStep(model_of().parameters())  # type: ignore[arg-type]


def _at_a_meeting() -> tuple[str, int]:
    model = model_of()
    meeting = gradwire.Meeting(dist.HashStore(), "0", workers=1)
    optimizer = CompressedStep(torch.optim.AdamW(model.named_parameters()), meeting=meeting, **SPARSE)
    optimizer.join()
    _trained(0, optimizer, model, 3)
    optimizer.leave()
    return optimizer.decay, optimizer.round


def test_at_a_meeting_the_decay_stays_inside() -> None:
    assert _at_a_meeting() == ("inner", 3)
