"""A replayed model has the real one's gradients, and nothing is timed that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.compressors.casts.none import Identity
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.errors import ConfigError, GroupError
from gradwire_lab.experiments import models
from gradwire_lab.experiments import replay as replaying
from gradwire_lab.experiments.launch import launch
from gradwire_lab.experiments.replay import (
    SIGNAL,
    Contestant,
    Replayed,
    ReplayPlan,
    Result,
    _figures,
    exchange,
    replay,
)
from gradwire_lab.netlab import Link, Netlab
from lab.tests.experiments.jobs import meet
from lab.tests.netlab.conftest import here

PLAN = ReplayPlan("resnet20", workers=2, steps=3)


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def test_gradients_are_the_values_and_come_from_the_last_parameter_to_the_first(alone: None) -> None:
    shapes = models.facts("resnet20").shapes
    replayed, order = Replayed(shapes), list[int]()
    assert [tuple(param.shape) for param in replayed.tensors] == list(shapes.values())
    for place, param in enumerate(replayed.tensors):
        param.register_hook(lambda _grad, place=place: order.append(place))
    DistributedDataParallel(replayed)(torch.zeros((), requires_grad=True)).backward()
    assert order == list(reversed(range(51)))
    assert all(torch.equal(param.grad, param) for param in replayed.tensors)


def test_gradients_as_trained_share_a_signal_have_heavy_tails_and_differ_by_layer() -> None:
    shapes = {"a": (300, 400), "b": (500, 200), "c": (200, 300)}
    one, other = (
        [each.detach() for each in Replayed(shapes, seed=rank, gradients="trained").tensors] for rank in (1, 2)
    )
    for mine, theirs in zip(one, other, strict=True):
        # What two workers have in common is the signal, a tenth of the squared norm.
        common = float((mine * theirs).sum() / (mine.norm() * theirs.norm()))
        assert common == pytest.approx(SIGNAL, abs=0.05)
        assert float(mine.pow(4).mean() / mine.pow(2).mean() ** 2) > 6
    sizes = [float(each.std()) for each in one]
    assert max(sizes) > 1.5 * min(sizes)
    again = Replayed(shapes, seed=1, gradients="trained").again()
    assert all(torch.equal(mine, same) for mine, same in zip(one, again.tensors, strict=True))


@pytest.mark.parametrize("contestant", [Contestant("ddp"), Contestant("fp16"), Contestant("none", Identity())])
def test_a_worker_tells_what_it_did(contestant: Contestant, alone: None) -> None:
    result = exchange(PLAN, contestant)
    assert len(result.seconds) == 3
    assert min(result.seconds) > 0
    assert result.interface_bytes is None
    assert (result.phases is None) == (contestant.compressor is None)


def test_a_pretended_computation_takes_its_time(alone: None) -> None:
    assert min(exchange(ReplayPlan("resnet20", steps=3, compute=0.2), Contestant("ddp")).seconds) >= 0.2


def test_the_budget_limits_the_steps_but_leaves_three(alone: None) -> None:
    assert len(exchange(ReplayPlan("resnet20", steps=100, budget=1e-6), Contestant("ddp")).seconds) == 3


def test_workers_that_disagree_are_an_error_and_a_step_is_the_slowest_ones() -> None:
    one = Result([1.0, 2.0, 3.0], 100.0, 4.0, {}, None, "a")
    other = Result([2.0, 1.0, 5.0], 100.0, 4.0, {}, None, "a")
    assert _figures([one, other])["samples"] == [2.0, 2.0, 5.0]
    assert _figures([one, other])["seconds"] == 2.0
    with pytest.raises(GroupError, match="workers ended with different gradients"):
        _figures([one, Result([1.0], 100.0, 4.0, {}, None, "b")])


@pytest.mark.timeout(600)
def test_rows_compare_methods_and_an_error_is_a_row() -> None:
    wrong = Contestant("wrong", TwoBit(), {"min_numel": -1})
    plain, failed, twobit = replay(PLAN, [Contestant("ddp"), wrong, Contestant("twobit", TwoBit())])
    assert (plain["model"], plain["parameters"], plain["tensors"], plain["link"]) == ("resnet20", 269_467, 51, "none")
    assert plain["speedup"] == 1.0
    assert "min_numel" in failed["error"]
    assert twobit["speedup"] == pytest.approx(plain["seconds"] / twobit["seconds"])
    assert twobit["ratio"] > 10
    assert twobit["bytes_sent"] == pytest.approx(4 * 269_467 / twobit["ratio"], rel=0.01)
    assert json.loads(json.dumps(twobit)) == twobit


def test_without_a_baseline_there_is_no_speedup(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = iter([{"error": "the link is gone"}, {"seconds": 2.0}, {"seconds": 1.0}])
    monkeypatch.setattr(replaying, "_row", lambda *_: next(rows))
    assert list(replay(PLAN, [Contestant("ddp")] * 3)) == [
        {"error": "the link is gone"},
        {"seconds": 2.0},
        {"seconds": 1.0},
    ]


@pytest.mark.timeout(600)
def test_traffic_of_a_lab_crosses_its_links() -> None:
    reason = here()
    if reason:
        pytest.skip(reason)
    with Netlab(2, "500mbit") as lab:
        assert launch(2, meet, 10, lab=lab) == [(0, 1, 21.0), (1, 1, 21.0)]
        assert min(each.sent for each in lab.traffic()) > 1000
        with pytest.raises(ConfigError, match="workers must be as many as the lab has, got 3"):
            launch(3, meet, 10, lab=lab)
    (row,) = replay(
        ReplayPlan("resnet20", workers=2, link=Link.parse("500mbit"), steps=3), [Contestant("none", Identity())]
    )
    assert row["link"] == "500mbit"
    assert row["bytes_sent"] == 4 * 269_467
    assert 1.0 < row["interface_bytes"] / row["bytes_sent"] < 1.15


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "resnet21"}, "unknown model 'resnet21'"),
        ({"workers": 1}, r"ReplayPlan.workers must be an integer in \[2, 64\], got 1"),
        ({"steps": 2}, "ReplayPlan.steps must be an integer >= 3, got 2"),
        ({"budget": 0}, "ReplayPlan.budget must be seconds > 0, got 0"),
        ({"gradients": "real"}, "ReplayPlan.gradients must be normal or trained, got 'real'"),
        ({"compute": -1}, "ReplayPlan.compute must be seconds >= 0, got -1"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ReplayPlan(**{"model": "resnet20", **change})
