import dataclasses
import math
import re

import pytest
import torch
import torch.distributed as dist

from gradwire.errors import ConfigError
from gradwire.testing.processes import run_ranks
from gradwire_lab.experiments.dense_start import DenseStart
from gradwire_lab.experiments.records import Record
from gradwire_lab.experiments.regions import DENSE, METHODS, RATES, RegionsPlan, bits_of, markdown, regions_rows
from tests.cases import together
from tests.optim.jobs import forward, model_of, parameters

PARAMETERS = 1000


def ended(job, quality, bits=32.0):
    """A record of a run of four workers that ended with a loss."""
    sent = bits * PARAMETERS / 8
    figures = {"bytes_per_step": sent, "dense_bytes_per_step": 6.0 * PARAMETERS, "seconds": {"step": 0.5}}
    return Record(job.settings, "test loss", False, quality=quality, **figures)


def runs(jobs, steps):
    return [job for job in jobs if job.settings.recipe["steps"] == steps // 5]


def test_rates_are_tried_on_shorter_runs_of_the_first_seed_and_the_best_is_taken():
    plan = RegionsPlan(steps=300, seeds=(3, 5), only=("diloco",))
    first = plan.jobs([])
    assert [job.settings.method for job in first] == [DENSE] * 3 + ["diloco"] * 3
    assert {job.settings.seed for job in first} == {3}
    assert runs(first, 100) == first
    made = [ended(job, 2.0 + (job.settings.recipe["lr"] != 5e-4)) for job in first[:3]]
    made += [ended(job, 2.0 + (job.settings.recipe["lr"] != 2e-3)) for job in first[3:]]
    later = runs(plan.jobs(made), 300)
    assert [(job.settings.method, job.settings.seed, job.settings.recipe["lr"]) for job in later] == [
        (DENSE, 3, 5e-4),
        ("diloco", 3, 2e-3),
        (DENSE, 5, 5e-4),
        ("diloco", 5, 2e-3),
    ]


def test_every_method_tries_as_many_rates():
    jobs = RegionsPlan().jobs([])
    assert {len(rates) for rates in RATES.values()} == {3}
    assert len(jobs) == 3 * len(METHODS)
    muon = {job.settings.recipe["lr"] for job in jobs if job.settings.recipe.get("optimizer") == "muon"}
    assert muon == {*RATES["muon"]}


def test_refit_goes_on_from_the_best_outer_step():
    plan = RegionsPlan(steps=300, seeds=(0,), refit=True)
    first = plan.jobs([])
    assert first[0].settings.method == DENSE
    assert "diloco" in {job.settings.method for job in first}
    best = "outer rate 0.5, momentum 0.8, every 30"
    made = [ended(job, 2.0 if job.settings.method == best else 2.5) for job in first]
    more = [job.settings for job in plan.jobs(made) if job.settings.id not in {each.settings.id for each in made}]
    assert [(each.optimizer["every"], each.optimizer.get("dense", 0)) for each in more] == [
        (10, 0),
        (50, 0),
        (30, 15),
        (30, 30),
    ]
    assert {(each.optimizer["lr"], each.optimizer["momentum"]) for each in more} == {(0.5, 0.8)}


def test_a_row_says_how_far_a_loss_is_above_dense_and_what_was_sent():
    plan = RegionsPlan(steps=300, seeds=(0, 1), only=("diloco",))
    tries = [ended(job, job.settings.recipe["lr"]) for job in plan.jobs([])]
    assert regions_rows(plan, tries) == []
    jobs = runs(plan.jobs(tries), 300)
    made = [*tries, *(ended(job, 2.0 if job.settings.method == DENSE else 2.1, 1.6) for job in jobs)]
    dense, diloco = regions_rows(plan, made)
    assert (dense.above, diloco.above) == (0.0, pytest.approx(0.05))
    assert (diloco.losses, diloco.rate, diloco.tuned) == ((2.1, 2.1), 5e-4, True)
    assert diloco.bits == pytest.approx(1.6)
    assert "| diloco | 0.0005 | 2 | 2.100 | +5.0% | 1.6 |" in markdown(plan, [dense, diloco])
    alone = [record for record in made if record.settings.method != DENSE or record.settings.seed != 1]
    assert regions_rows(plan, alone)[1].above is None


def test_a_method_that_diverged_at_all_its_rates_has_a_row():
    plan = RegionsPlan(steps=300, seeds=(0,), only=("diloco",))
    tries = [ended(job, 2.0 if job.settings.method == DENSE else math.nan, 1.6) for job in plan.jobs([])]
    made = [*tries, *(ended(job, 2.0, 1.6) for job in runs(plan.jobs(tries), 300))]
    dense, diloco = regions_rows(plan, made)
    assert (dense.losses, diloco.rate, diloco.above) == ((2.0,), None, None)
    assert "| diloco | all | 1 | diverged |  | 1.6 |" in markdown(plan, [dense, diloco])
    # One of the rates has not ended yet, or failed and may be tried again.
    assert [row.method for row in regions_rows(plan, [*made[:5], *made[6:]])] == [DENSE]
    failed = dataclasses.replace(made[5], status="failed", quality=None)
    assert [row.method for row in regions_rows(plan, [*made[:5], failed, *made[6:]])] == [DENSE]
    # And where it is dense training others are above nothing.
    lost = [ended(job, 2.0 if job.settings.method == "diloco" else math.nan) for job in plan.jobs([])]
    lost += [ended(job, 2.0) for job in runs(plan.jobs(lost), 300)]
    assert [row.texts[2:4] for row in regions_rows(plan, lost)] == [("diverged", ""), ("2.000", "?")]


def test_a_run_at_a_rate_that_is_not_known_to_be_the_best_is_marked():
    plan = RegionsPlan(steps=300, seeds=(0,), only=("diloco",))
    job = plan._job(METHODS["diloco"], 0, 300, 1e-3)
    (row,) = regions_rows(plan, [ended(job, 2.0)])
    assert (row.tuned, row.rate, row.above) == (False, 1e-3, None)
    assert "0.001, not tuned" in markdown(plan, [row])


def test_dense_training_of_four_workers_sends_48_bits():
    job = RegionsPlan(steps=300).jobs([])[0]
    assert bits_of(ended(job, 2.0, 48.0)) == 48.0


@together
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": 301}, "steps must be a multiple of 5, >= 15, got 301"),
        ({"steps": 10}, "steps must be a multiple of 5, >= 15, got 10"),
        ({"steps": 10**6}, "steps must be at most 9765, for which there is text, got 1000000"),
        ({"workers": 1}, "workers must be an integer in [2, 16], got 1"),
        ({"seeds": ()}, "seeds must be different integers"),
        ({"seeds": (1, 1)}, "seeds must be different integers"),
        ({"only": ("diloc",)}, "only must be"),
        ({"only": ("diloco",), "refit": True}, "only must be left out with refit, got both"),
    ],
)
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        RegionsPlan(**given)


def _begun_densely(rank):
    """The parameters after each step, and those by hand: averaged gradients first, and then steps of its own."""
    model, alone = model_of(seed=3 + rank), model_of()
    inner = torch.optim.AdamW(model.named_parameters(), lr=3e-3)
    optimizer = DenseStart(inner, "none", dense=3, every=4, lr=1.0, momentum=0.0)
    by_hand = torch.optim.AdamW(alone.parameters(), lr=3e-3)
    same, counted = [], []
    optimizer.register_step_post_hook(lambda *_: counted.append(1))
    for step in range(7):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        forward(alone, by_hand, step, rank).backward()
        for param in alone.parameters() if step < 3 else ():
            dist.all_reduce(param.grad)
            param.grad.div_(dist.get_world_size())
        by_hand.step()
        same.append(parameters(model) == parameters(alone))
    return same, optimizer.in_step, parameters(model), optimizer.metrics()["bytes_sent"], len(counted)


def test_dense_steps_at_the_begin_are_those_of_data_parallel():
    results = run_ranks(2, _begun_densely)
    # The seventh ends a round of four.
    assert [each[0] for each in results] == [[True] * 6 + [False]] * 2
    assert results[0][1]
    assert results[0][2] == results[1][2]
    size = sum(param.nbytes for param in model_of().parameters())
    assert results[0][3:] == (4 * size, 7)
