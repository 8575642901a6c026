"""The length of compressed steps follows the noise of a rank's own gradients, over real Gloo processes."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradwire
from gradwire.errors import ConfigError, GroupError
from gradwire.optim import CompressedStep
from gradwire.optim.local._local_noise import EVERY, FIRST, LEAST, MOST, MOST_SAMPLED, SHARE, LocalNoise
from gradwire.testing.processes import run_ranks
from tests.heard import heard
from tests.optim.jobs import model_of, resume

LR, DECAY = 0.01, 0.5


def _step_with(optimizer: CompressedStep, param: Tensor, grad: Tensor) -> None:
    param.grad = grad.clone()
    optimizer.step()


def _by_hand(rank: int, weight_decay: float) -> tuple[list[float], list[float], list[float]]:
    """Gradients that never change: Adam's step is the learning rate towards each of their signs."""
    param = nn.Parameter(torch.ones(4))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR, weight_decay=weight_decay, eps=1e-12), "none")
    grad = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, -1.0, -1.0]][rank])
    factors = []
    for _ in range(3):
        _step_with(optimizer, param, grad)
        factors.append(optimizer.metrics()["step_factors"][0])
    return param.tolist(), factors, [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize("weight_decay", [0.0, DECAY])
def test_half_of_the_square_in_common_makes_local_steps_longer_by_its_root_and_not_the_decay(
    weight_decay: float,
) -> None:
    (values, factors, rates), other = run_ranks(2, _by_hand, weight_decay)
    assert (values, factors, rates) == other
    assert factors == pytest.approx([math.sqrt(2)] * 3)
    assert rates == [LR]  # What a scheduler sees.
    expected = [1.0, 1.0]
    for factor in (1.0, math.sqrt(2), math.sqrt(2)):
        shrunk = [value * (1 - LR * weight_decay) for value in expected]
        expected = [shrunk[0] - LR * factor, shrunk[1]]
    assert values == pytest.approx([expected[0]] * 2 + [expected[1]] * 2, abs=1e-6)


def _share(rank: int, level: float, options: dict[str, Any]) -> tuple[float, float]:
    """The factor after one round, and the one that the exact ways have."""
    param = nn.Parameter(torch.zeros(1 << 19))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR, eps=1e-12), min_numel=0, **options)
    shared = torch.randn(len(param), generator=torch.Generator().manual_seed(9)).abs()
    own = torch.randn(len(param), generator=torch.Generator().manual_seed(rank))
    _step_with(optimizer, param, torch.where(own.abs() < level, shared, own))
    way = LR * torch.where(own.abs() < level, shared, own).sign()
    ways = [torch.empty_like(way) for _ in range(dist.get_world_size())]
    dist.all_gather(ways, way)
    whole, common = (
        way.square().sum() for way in (torch.stack(ways) / math.sqrt(len(ways)), torch.stack(ways).mean(0))
    )
    factor = optimizer.metrics()["step_factors"][0]
    optimizer.synchronize()
    return factor, float((whole / common).sqrt())


def _shares(rank: int, level: float) -> list[tuple[float, float]]:
    return [_share(rank, level, options) for options in METHODS]


METHODS: list[dict[str, Any]] = [
    {"compressor": "none"},
    {"bits": 0.125},
    {"compressor": "topk"},
    {"keep": True},
    {"late": True},
    {"compressor": "auto"},
]
"""Right on average and not, what waits where it should and what a rank goes on with, now and a round later."""


@pytest.mark.parametrize("level", [0.0, 0.5, 5.0])
def test_what_ways_have_in_common_is_found_whatever_sends_them(level: float) -> None:
    found = run_ranks(3, _shares, level)
    assert len({factor for methods in found for factor, _ in methods}) == 1  # The same bits on all ranks.
    factor, exact = found[0][0]
    assert factor == pytest.approx(exact, rel=0.05)
    assert 1 <= factor <= math.sqrt(3) + 1e-6


def _samples(rank: int, groups: list[slice], numel: int, rounds: int) -> list[list[list[int]]]:
    """The elements that are drawn of each group, by round."""
    optimizer = CompressedStep(torch.optim.AdamW([nn.Parameter(torch.zeros(4))]), "none")
    noise = LocalNoise(optimizer.exchange, groups, "AdamW")
    places, found = torch.arange(numel), []
    for step in range(1, rounds + 1):
        optimizer.exchange.protocol.go_to(step)
        found.append([noise._sample(places[span]).tolist() for span in groups])
    return found


def test_a_sample_takes_all_elements_of_a_group_alike_and_no_others() -> None:
    groups = [slice(1503), slice(1503, 1703), slice(1703, 1703)]
    counts = torch.zeros(3, 2003)
    for drawn in run_ranks(1, _samples, groups, 2003, 600)[0]:
        assert [len(sample) for sample in drawn] == [256, 200, 0]
        for group, sample in enumerate(drawn):
            counts[group].index_add_(0, torch.tensor(sample, dtype=torch.long), torch.ones(len(sample)))
    one, other, none = counts
    inside = torch.zeros(2003, dtype=torch.bool)
    inside[:1503] = True
    assert not one[~inside].any()
    assert (one[inside].mean() - 600 * 256 / 1503).abs() < 1e-3
    assert one[inside].min() > 60
    assert one[inside].max() < 150
    assert (other[1503:1703] == 600).all()
    assert other.sum() == 600 * 200
    assert not none.any()


@pytest.mark.parametrize("columns", [256, 257, 1023])
def test_a_sample_sees_all_columns_of_a_matrix_in_every_round(columns: int) -> None:
    numel = 1024 * columns
    for (drawn,) in run_ranks(1, _samples, [slice(numel)], numel, 8)[0]:
        assert len(drawn) == min(max(numel // SHARE, LEAST), MOST_SAMPLED)
        odd = sum(place % columns % 2 for place in drawn) / len(drawn)
        assert 0.4 < odd < 0.6


def _partly(rank: int, kind: str) -> list[float]:
    """Groups of which nothing is trained, beside one on which the ranks agree by half."""
    param = nn.Parameter(torch.ones(4))
    rest = {
        "frozen": [nn.Parameter(torch.ones(3), requires_grad=False)],
        "empty": [],
        "none": [nn.Parameter(torch.ones(0))],
    }
    groups = [{"params": rest[kind]}, {"params": [param]}]
    optimizer = CompressedStep(torch.optim.AdamW(groups, lr=LR), "none")
    _step_with(optimizer, param, SIGNS[rank])
    return optimizer.metrics()["step_factors"]


@pytest.mark.parametrize("kind", ["frozen", "empty", "none"])
def test_a_group_of_which_nothing_is_trained_has_no_factor(kind: str) -> None:
    for factors in run_ranks(2, _partly, kind):
        assert factors == pytest.approx([1.0, math.sqrt(2)], rel=1e-3)


def _came_apart(rank: int) -> str:
    param = nn.Parameter(torch.ones(4))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR), "none", timeout=20)
    _step_with(optimizer, param, SIGNS[rank])
    if rank == 1:
        # Its next round is one that is not measured.
        optimizer.exchange.protocol.go_to(FIRST + 1)
    try:
        _step_with(optimizer, param, SIGNS[rank])
    except GroupError as error:
        return str(error)
    return ""


def test_ranks_in_different_rounds_hear_of_it_though_only_one_of_them_measures() -> None:
    for text in run_ranks(2, _came_apart):
        assert "step is" in text


STEPS = 100


def _noisy(rank: int, cases: list[dict[str, Any]]) -> list[float]:
    return [_gone(rank, options) for options in cases]


def _gone(rank: int, options: dict[str, Any]) -> float:
    """Return how far parameters go along gradients that are mostly noise, with an AdamW on each rank or one for all."""
    param = nn.Parameter(torch.zeros(4096))
    inner = torch.optim.AdamW([param], lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    optimizer = inner if options.get("dense") else CompressedStep(inner, min_numel=0, **options)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        grad = 0.2 + torch.randn(len(param), generator=generator)
        if optimizer is inner:
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
        param.grad = grad
        optimizer.step()
    if optimizer is not inner:
        optimizer.synchronize()
    return float(-param.detach().mean())


def test_steps_on_noise_get_nearer_to_those_of_one_optimizer_on_the_mean_gradient() -> None:
    late = {"bits": 0.5, "late": True}
    kept = {"compressor": "topk", "ratio": 0.2, "keep": True}
    ways: list[dict[str, Any]] = [{"compressor": "none"}, {"bits": 0.5}, {"bits": 0.5, "every": 5}, late, kept]
    cases = [{**options, "variance_correction": given} for options in ways for given in (None, False)]
    dense, *gone = run_ranks(4, _noisy, [{"dense": True}, *cases])[0]
    for corrected, plain in zip(gone[::2], gone[1::2], strict=True):
        assert plain < 0.6 * dense
        assert 1.2 * plain < corrected < 1.05 * dense


def _measured_rounds(rank: int) -> list[int]:
    param = nn.Parameter(torch.zeros(64))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR), "none")
    assert isinstance(optimizer._noise, LocalNoise)
    seen, measure = [], optimizer._noise.measure

    def recorded(way: Tensor) -> None:
        seen.append(optimizer.round)
        measure(way)

    optimizer._noise.measure = recorded  # type: ignore[method-assign]
    sent, dense = [], []
    for _ in range(FIRST + 2 * EVERY):
        _step_with(optimizer, param, torch.ones(64))
        sent.append(optimizer.metrics()["bytes_sent"])
        dense.append(optimizer.metrics()["dense_bytes"])
    differences = torch.tensor(sent).diff().tolist()
    assert len(set(torch.tensor(dense).diff().tolist())) == 1  # Nothing of it would be sent without compression.
    # On two ranks an average sends all its bytes: 64 elements, their square, and whether a rank left out.
    assert max(differences) == min(differences) + 4 * 66
    return seen


def test_it_is_measured_in_the_first_rounds_and_at_intervals() -> None:
    assert run_ranks(2, _measured_rounds)[0] == [*range(1, FIRST + 1), FIRST + EVERY, FIRST + 2 * EVERY]


def _most(rank: int) -> float:
    param = nn.Parameter(torch.zeros(1024))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR), "none")
    noise = LocalNoise(optimizer.exchange, [slice(1024)], "AdamW")
    noise.load_state_dict({"shares": [1e-6]})
    return noise.factors[0]


def test_it_has_a_largest_value() -> None:
    assert run_ranks(1, _most) == [MOST]


SIGNS = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).repeat(1, 2)
"""Gradients of two ranks; half of the square of Adam's first step is common."""


def _spoilt(rank: int, where: str, options: dict[str, Any]) -> tuple[list[float], int]:
    param = nn.Parameter(torch.ones(4))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR), min_numel=0, **{"compressor": "none", **options})
    factors = []
    for step in range(4):
        grad = SIGNS[rank].clone()
        if step in (0, 2) and rank == 1 and where == "gradient":
            grad[0] = math.inf
        if step == 2 and rank == 1 and where == "parameter":
            with torch.no_grad():
                param[0] = math.nan
        _step_with(optimizer, param, grad)
        factors.append(optimizer.metrics()["step_factors"][0])
    optimizer.synchronize()
    return factors, optimizer.metrics()["nonfinite_steps"]


@pytest.mark.parametrize("options", [{}, {"compressor": "topk"}, {"late": True}, {"keep": True, "compressor": "topk"}])
def test_a_round_that_is_not_finite_or_that_a_rank_left_out_says_nothing(options: dict[str, Any]) -> None:
    """A rank that goes nowhere would look like one that has nothing in common with the others."""
    if not options:
        root = pytest.approx(math.sqrt(2), rel=1e-3)
        assert run_ranks(2, _spoilt, "gradient", options) == [([1.0, root, root, root], 0)] * 2
        assert run_ranks(2, _spoilt, "parameter", options) == [([root] * 4, 3)] * 2
    else:
        # The parameter stays as it was set by hand. Sample and exchange find it, and each round counts once.
        rounds = 3 if options == {"compressor": "topk"} else 1
        assert [count for _, count in run_ranks(2, _spoilt, "parameter", options)] == [rounds] * 2


def _grouped(rank: int) -> tuple[list[float], list[float], float]:
    """The ranks agree on one group, and not on the other."""
    agreed, apart = nn.Parameter(torch.ones(64)), nn.Parameter(torch.ones(4))
    groups = [{"params": [agreed], "lr": 1e-4}, {"params": [apart], "lr": LR}]
    optimizer = CompressedStep(torch.optim.AdamW(groups, weight_decay=0.0, eps=1e-12), "none")
    for _ in range(3):
        agreed.grad = torch.ones(64)
        _step_with(optimizer, apart, SIGNS[rank])
    return optimizer.metrics()["step_factors"], apart.tolist(), float(agreed.detach().mean())


def test_what_a_group_has_in_common_says_nothing_of_another() -> None:
    factors, apart, agreed = run_ranks(2, _grouped)[0]
    assert factors == pytest.approx([1.0, math.sqrt(2)], rel=1e-3)
    assert apart == pytest.approx([1 - LR * (1 + 2 * math.sqrt(2)), 1.0] * 2, abs=1e-5)
    assert agreed == pytest.approx(1 - 3e-4, abs=1e-6)


def _smoothed(rank: int) -> list[float]:
    param = nn.Parameter(torch.ones(4))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR, betas=(0.0, 0.999), eps=1e-12), "none")
    factors = []
    for grad in (SIGNS[rank], torch.ones(4), torch.ones(4)):
        _step_with(optimizer, param, grad)
        factors.append(optimizer.metrics()["step_factors"][0])
    return factors


def test_a_measurement_counts_as_much_as_all_before_it() -> None:
    assert run_ranks(2, _smoothed)[0] == pytest.approx([share**-0.5 for share in (0.5, 0.75, 0.875)], rel=1e-3)


class Decaying(torch.optim.AdamW):
    """Changes its learning rate within its step, as optimizers with a schedule of their own do."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 0.5


def _own_schedule(rank: int) -> tuple[list[float], float]:
    param = nn.Parameter(torch.ones(4))
    optimizer = CompressedStep(Decaying([param], lr=LR, weight_decay=0.0, eps=1e-12), "none")
    for _ in range(3):
        _step_with(optimizer, param, SIGNS[rank])
    return param.tolist(), optimizer.param_groups[0]["lr"]


def test_a_learning_rate_that_the_optimizer_changes_itself_is_kept() -> None:
    values, rate = run_ranks(2, _own_schedule)[0]
    assert rate == LR / 8
    assert values == pytest.approx([1 - LR * (1 + math.sqrt(2) * (0.5 + 0.25)), 1.0] * 2, abs=1e-5)


def _said(rank: int) -> list[str]:
    lines = heard()
    param = nn.Parameter(torch.ones(4))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR), "none")
    for _ in range(3):
        _step_with(optimizer, param, SIGNS[rank])
    return [line for line in lines if "makes local steps 1.41 times as long" in line]


def test_the_log_says_it_once() -> None:
    one, other = run_ranks(2, _said)
    assert (len(one), other) == (1, [])


def _resized(rank: int, saved: dict[str, Any]) -> list[float]:
    param = nn.Parameter(torch.ones(4))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR, betas=(0.0, 0.999)), "none")
    # Processes share the memory of what they are handed, and the inner optimizer goes on with the tensors given.
    optimizer.load_state_dict(copy.deepcopy(saved), on_resize="reset")
    factors = [optimizer.metrics()["step_factors"][0]]
    for _ in range(2):
        _step_with(optimizer, param, SIGNS[rank])
        factors.append(optimizer.metrics()["step_factors"][0])
    return factors


def _saved(rank: int) -> dict[str, Any]:
    param = nn.Parameter(torch.ones(4))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR, betas=(0.0, 0.999)), "none")
    for _ in range(FIRST + 1):
        _step_with(optimizer, param, torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]][rank]).repeat(2))
    assert optimizer.metrics()["step_factors"][0] > 1
    return copy.deepcopy(optimizer.state_dict())


def test_another_number_of_ranks_measures_anew_at_once() -> None:
    """The next round would not be measured otherwise."""
    state = run_ranks(3, _saved)[0]
    assert run_ranks(2, _resized, state)[0] == [1.0, *[pytest.approx(math.sqrt(2), rel=0.05)] * 2]


def _older(rank: int, saved: list[dict[str, Any]]) -> list[float]:
    """Go on from a checkpoint after more rounds than the first, in which nothing was measured."""
    param = nn.Parameter(torch.ones(4))
    optimizer = CompressedStep(torch.optim.AdamW([param], lr=LR), "none")
    state = copy.deepcopy(saved[rank])
    del state["noise"]
    optimizer.load_state_dict(state)
    _step_with(optimizer, param, SIGNS[rank])
    return optimizer.metrics()["step_factors"]


def test_a_checkpoint_of_a_version_that_did_not_measure_is_measured_at_once() -> None:
    saved = run_ranks(2, _saved)
    assert all(1.1 < factor < 1.5 for (factor,) in run_ranks(2, _older, saved))


@pytest.mark.parametrize("every", [1, 3])
def test_a_checkpoint_continues_bit_for_bit(every: int) -> None:
    # It is saved after a round that is not measured, so that what is loaded is used.
    steps = (FIRST + 1) * every
    options = {"bits": 0.5, "min_numel": 0, "every": every}
    assert all(run_ranks(2, resume, "compressed_step", steps, steps + 6 * every, options))


def _off(rank: int) -> list[bool]:
    adamw, sgd = torch.optim.AdamW, torch.optim.SGD
    found = []
    for cls, options in (
        (adamw, {}),
        (torch.optim.Adam, {"every": 4}),
        (adamw, {"compressor": "bf16"}),
        (adamw, {"compressor": "topk"}),
        (adamw, {"keep": True}),
        (adamw, {"late": True}),
        (adamw, {"compressor": "auto"}),
        (adamw, {"variance_correction": False}),
        (adamw, {"meeting": gradwire.Meeting(dist.HashStore(), "0")}),
        (torch.optim.RAdam, {}),
        (sgd, {}),
    ):
        optimizer = CompressedStep(cls(model_of().named_parameters(), lr=0.1), **options)  # type: ignore[arg-type]
        found.append("step_factors" in optimizer.metrics())
    return found


def test_it_corrects_by_itself_only_where_noise_makes_steps_shorter() -> None:
    assert run_ranks(1, _off)[0] == [True] * 7 + [False] * 4


def _refused(rank: int) -> list[str]:
    told = []
    meeting = gradwire.Meeting(dist.HashStore(), "0")
    adamw = torch.optim.AdamW
    for cls, options in (
        (adamw, {"variance_correction": 1}),
        (adamw, {"meeting": meeting}),
        (torch.optim.SGD, {}),
    ):
        model = model_of()
        try:
            CompressedStep(cls(model.parameters(), lr=0.1), **{"variance_correction": True, **options})  # type: ignore[arg-type]
            told.append("")
        except ConfigError as error:
            told.append(str(error).removeprefix("CompressedStep.variance_correction must be "))
        CompressedStep(adamw(model.parameters()))  # Nothing of the one that was refused owns the parameters.
    return told


def test_bad_parameters_are_refused() -> None:
    assert run_ranks(1, _refused)[0] == [
        "True, False or None, got 1",
        "False or None with a meeting, got True",
        "False or None with an optimizer that does not divide by a mean of squares, as Adam does, got True with SGD",
    ]


def _apart(rank: int, what: str) -> str:
    named = list(model_of().named_parameters())
    split = 1 + (rank if what == "groups" else 0)
    groups = [{"params": named[:split]}, {"params": named[split:]}]
    try:
        CompressedStep(torch.optim.AdamW(groups), variance_correction=what == "groups" or rank == 0)
    except (ConfigError, GroupError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("what", ["variance_correction", "groups"])
def test_ranks_that_would_step_differently_hear_of_it(what: str) -> None:
    for text in run_ranks(2, _apart, what):
        assert what in text


class Foreign(torch.optim.Optimizer):
    """Stands for an optimizer of another package, which has no learning rate in its groups."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state.setdefault(param, {"exp_avg_sq": torch.zeros_like(param)})
                state["exp_avg_sq"].mul_(0.9).addcmul_(param.grad, param.grad, value=0.1)
                param.sub_(3e-3 * param.grad / (state["exp_avg_sq"].sqrt() + 1e-8))


def _trained(rank: int, kind: str) -> list[float]:
    """Return how far an element went on which ranks disagree, and one on which they agree, corrected and not."""
    gone = []
    for corrects in (True, False):
        param = nn.Parameter(torch.zeros(1 << 12, dtype=torch.bfloat16 if kind == "half" else torch.float32))
        inner: dict[str, Any] = {
            "plain": lambda param: torch.optim.AdamW([param], lr=3e-3),
            "fused": lambda param: torch.optim.AdamW([param], lr=3e-3, fused=True),
            "tensor": lambda param: torch.optim.AdamW([param], lr=torch.tensor(3e-3)),
            "half": lambda param: torch.optim.AdamW([param], lr=3e-3),
            "adafactor": lambda param: torch.optim.Adafactor([param], lr=3.0),
            "foreign": lambda param: Foreign([param]),
        }
        optimizer = CompressedStep(inner[kind](param), "none", variance_correction=corrects)
        for _ in range(4):
            param.grad = SIGNS[rank].repeat(1 << 10).to(param.dtype)
            optimizer.step()
        gone.append(float(param.detach()[0]))
    untold = CompressedStep(inner[kind](nn.Parameter(torch.zeros(4, dtype=param.dtype))), "none")
    assert ("step_factors" in untold.metrics()) == (kind != "foreign")
    return [float(param.detach()[1]), *gone]


@pytest.mark.parametrize("kind", ["plain", "fused", "tensor", "half", "adafactor", "foreign"])
def test_steps_of_every_kind_are_lengthened(kind: str) -> None:
    one, other = run_ranks(2, _trained, kind)
    assert one == other
    still, corrected, plain = one
    assert still == pytest.approx(0, abs=1e-6)
    # Rounding of 16 bits, and steps that are not all of one length.
    near = {"adafactor": 0.2, "half": 0.05, "foreign": 0.05}.get(kind, 0.02)
    assert corrected / plain == pytest.approx((1 + 3 * math.sqrt(2)) / 4, rel=near)
