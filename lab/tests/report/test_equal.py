"""Quality at equal bytes and at equal time: measured on a link, modelled for runs over the loopback."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradwire.auto.link_cost import LATENCY
from gradwire_lab import report
from gradwire_lab.experiments.records import Point
from gradwire_lab.netlab.link import PAYLOAD_SHARE
from gradwire_lab.report import Results
from gradwire_lab.report._markdown import markdown
from gradwire_lab.report._panels import panels
from gradwire_lab.report._spent import spendings
from lab.tests.report.made import HERE, record

STEPS = 10
"""The number of steps of an epoch."""


def ran(method, losses, sent, *, seed=0, local=0.05, codec=0.0, communicate=0.02, **more):
    """A run whose epochs end with these losses, and which sends so many bytes in each."""
    points = [Point(at, STEPS * at, 2.0 * at, 1.0, loss, sent * at) for at, loss in enumerate(losses, 1)]
    seconds = {
        "step": local + codec + communicate,
        "compute": 0.01,
        "compress": codec / 2,
        "communicate": communicate,
        "decompress": codec / 2,
    }
    figures = {"seconds": seconds, "history": tuple(points), "measure": "loss", "higher_is_better": False}
    return record(method, losses[-1], seed, **(figures | more))


def dense(**more):
    return ran("none", [4.0, 3.0, 2.0, 1.8], 1e9, **more)


def fewer(**more):
    return ran("topk", [3.0, 2.0, 1.9, 1.7], 1e7, codec=0.01, **more)


def rows(runs, ending):
    (section,) = report.sections(Results(runs), ["quality_equal"])
    (table,) = [each for each in section.blocks if each.choice.endswith(ending)]
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}, table.notes


def test_at_equal_bytes_a_method_is_compared_with_what_no_compression_had_by_then():
    found, notes = rows([dense(), fewer(), ran("qsgd", [3.5, 2.5, 2.0, 1.817], 6e8)], "bytes")
    assert found["none"] == ["1.800", "4 GB", "-", "-", "-"]
    # 1.8 lies half way between the ends of the third and of the fourth epoch: 35 MB of 4 GB. 1.818 earlier: at 34.1 MB.
    assert found["topk"] == ["1.700", "40 MB", "-", f"{4e9 / 3.5e7:.3g}", f"{4e9 / 3.41e7:.3g}"]
    # After 2.4 GB no compression is at 40 % of the way from 3 to 2; 1.8 is never reached, 1 % more is.
    assert found["qsgd"][:4] == ["1.817", "2.4 GB", "2.600", "-"]
    assert float(found["qsgd"][4]) == pytest.approx(4e9 / (1.8e9 + 6e8 * (2.0 - 1.818) / (2.0 - 1.817)), rel=1e-2)
    assert not notes


@pytest.mark.parametrize(("workers", "rate"), [(2, 1e8), (4, 1e8), (2, 1e9)])
def test_time_on_a_link_is_modelled_for_runs_over_the_loopback(workers, rate):
    busy = fewer(workers=workers, seed=1, local=0.3)  # Disturbed: it does not count.
    (panel,) = panels([dense(workers=workers, local=0.06), fewer(workers=workers), busy])
    of = "100 Mbit/s" if rate == 1e8 else "1 Gbit/s"
    (found,) = [each for each in spendings(panel) if each.of == f"time, {of}, modelled"]
    alpha, beta = 2 * (workers - 1) * LATENCY, rate / 8 * PAYLOAD_SHARE
    assert found.by_method["none"].x[-1] == pytest.approx(4 * STEPS * (0.05 + alpha) + 4e9 / beta)
    assert found.by_method["topk"].x == pytest.approx(
        [STEPS * at * (0.05 + 0.01 + alpha) + 1e7 * at / beta for at in (1, 2, 3, 4)]
    )
    assert "Modelled, not measured" in found.notes[0]
    assert "50 ms beside its exchange" in found.notes[0]


def test_time_on_a_link_is_measured_where_runs_had_one():
    link = {"link": "100mbit"}
    found, notes = rows([dense(**link), fewer(**link)], "time, 100mbit")
    assert found["topk"] == ["1.700", "8 s", "1.800", f"{8 / 7:.3g}", f"{8 / 6.82:.3g}"]
    assert not notes
    untimed = {**link, "environment": {**HERE, "jobs": 2}}
    (panel,) = panels([dense(**untimed), fewer(**untimed)])
    assert [each.of for each in spendings(panel)] == ["bytes"]


def test_runs_made_beside_others_are_modelled_and_that_is_said():
    beside = {"environment": {**HERE, "jobs": 2}}
    (panel,) = panels([dense(**beside), fewer(**beside)])
    modelled = [each for each in spendings(panel) if each.of != "bytes"]
    assert len(modelled) == 2
    assert all("made beside others" in each.notes[1] for each in modelled)


def test_a_hook_of_torch_takes_as_long_as_its_step_does():
    made = ran("torch_powersgd", [3.0, 2.0, 1.9, 1.9], 1e7, local=0.09, compressor=None)
    made = replace(made, settings=replace(made.settings, hook={"name": "powersgd"}))
    (panel,) = panels([dense(), made])
    found = next(each for each in spendings(panel) if "100 Mbit/s" in each.of)
    _, hook = found.curves
    took = hook.x[-1] - 4e7 / (1e8 / 8 * PAYLOAD_SHARE)
    assert took == pytest.approx(4 * STEPS * (0.11 + 2 * LATENCY))


def test_methods_without_phases_have_bytes_alone():
    (panel,) = panels([dense(seconds={"step": 0.1}), fewer(seconds={"step": 0.1})])
    assert [each.of for each in spendings(panel)] == ["bytes"]


def test_with_a_higher_quality_a_method_is_as_good_from_the_epoch_on_that_reaches_it():
    higher = {"higher_is_better": True}
    found, _ = rows([ran("none", [0.5, 0.8], 1e6, **higher), ran("topk", [0.8, 0.9], 1e5, **higher)], "bytes")
    assert found["topk"] == ["90.00", "200 kB", "-", "20", "20"]


LOST = {
    "diverged": ran("qsgd", [3.0, 2.0, 1.9, math.nan], 1e7),
    "a run without a history": ran("qsgd", [1.9], 1e7, history=()),
    "a run with 3 of 4 epochs": ran("qsgd", [3.0, 2.0, 1.9], 1e7, seed=1),
}


@pytest.mark.parametrize("link", ["none", "100mbit"])
@pytest.mark.parametrize("reason", LOST)
def test_a_method_without_a_whole_curve_is_named_with_the_reason(reason, link):
    lost = replace(LOST[reason], settings=replace(LOST[reason].settings, link=link))
    whole = ran("qsgd", [3.0, 2.0, 1.9, 1.8], 1e7, link=link)
    group = panels([dense(link=link)])[0].title
    said = f"Left out of {group}: qsgd ({reason}). Nothing is compared with what is left out."
    beside = ("bytes", "time, 100mbit") if link != "none" else ("bytes", "100 Mbit/s, modelled", "1 Gbit/s, modelled")
    for runs in ([dense(link=link), fewer(link=link), lost], [dense(link=link), whole, lost]):
        # The lost run is a seed of the second method, which has no mean without it.
        seeds = [each if each is not lost else replace(lost, settings=replace(lost.settings, seed=1)) for each in runs]
        for ending in beside:
            found, notes = rows(seeds, ending)
            assert list(found) == [name for name in ("none", "topk") if name in {each.settings.method for each in runs}]
            assert notes[-1] == said
            assert found["none"][0] == "1.800"


@pytest.mark.parametrize("ending", ["bytes", "100 Mbit/s, modelled"])
def test_with_a_baseline_that_is_left_out_rows_stand_alone_and_that_is_said(ending):
    group = panels([dense()])[0].title
    for plain, reason in (
        (ran("none", [4.0, 3.0, 2.0, math.nan], 1e9), "diverged"),
        (ran("none", [4.0, 3.0, 2.0], 1e9), "a run with 3 of 4 epochs"),
    ):
        found, notes = rows([plain, fewer()], ending)
        assert list(found) == ["topk"]
        assert found["topk"][0] == "1.700"
        assert found["topk"][2:] == ["-", "-", "-"]
        assert notes[-1] == f"Left out of {group}: none ({reason}). Nothing is compared with what is left out."
        assert notes[-1] in markdown(Results([plain, fewer()]))["equal"]


def test_a_table_of_which_all_diverged_is_empty_and_says_so():
    lost = [ran(method, [3.0, math.nan], 1e7) for method in ("none", "topk")]
    found, notes = rows(lost, "bytes")
    assert found == {}
    assert "none (diverged), topk (diverged)" in notes[-1]


def test_a_method_whose_times_are_not_known_is_named_where_time_is_shown():
    runs = [dense(), fewer(), ran("qsgd", [3.0, 2.0, 1.9, 1.8], 1e7, seconds={})]
    assert "qsgd (what it spent is not known, or nothing)" in rows(runs, "100 Mbit/s, modelled")[1][-1]
    found, notes = rows(runs, "bytes")
    assert list(found) == ["none", "qsgd", "topk"]
    assert not notes


def test_markdown_has_the_tables_and_each_note_once():
    text = markdown(Results([dense(), fewer()]))["equal"]
    assert text.count("Modelled, not measured") == 1
    assert text.count("### ") == 3
    assert "| `topk` | 1.700 | 40 MB | - | 114 | 117 |" in text
