"""Replayed exchanges: speed-ups, and where a method stops paying."""

from __future__ import annotations

import pytest

from gradwire_lab.report import Results, markdown, warnings
from gradwire_lab.report._replayed_exchanges import Crossing, crossing, exchanges
from gradwire_lab.report.break_even import codec_marks, link_marks
from gradwire_lab.report.links_table import blocks
from gradwire_lab.report.speedup import blocks as speedup_plots
from gradwire_lab.report.speedup import marks as speedups
from gradwire_lab.report.step_time import marks as times
from lab.tests.report.made import replayed, timed


def of(*rows):
    (found,) = exchanges(Results(replays=rows))
    return found


def modelled(method, overhead, bits, *links):
    """Rows of a method whose step takes ``overhead + bits / rate`` seconds."""
    rates = {"100mbit": 1e8, "1gbit": 1e9, "10gbit": 1e10, "none": float("inf")}
    return [replayed(method, link, overhead + bits / rates[link]) for link in links]


def test_links_are_ordered_by_their_rates_and_methods_by_the_slowest():
    found = of(
        *modelled("topk", 0.1, 1e6, "none", "1gbit", "100mbit"),
        *modelled("qsgd", 0.1, 5e6, "100mbit"),
        *modelled("none", 0.0, 9e7, "100mbit"),
        *modelled("ddp", 0.0, 1e8, "100mbit", "1gbit"),
    )
    assert found.links == ("100mbit", "1gbit", "none")
    assert found.methods == ["ddp", "none", "topk", "qsgd"]
    assert found.speedup("topk", "100mbit") == pytest.approx(1.0 / 0.11)
    assert found.speedup("topk", "none") is None


@pytest.mark.parametrize("links", [("100mbit", "1gbit"), ("100mbit", "none"), ("1gbit", "100mbit", "10gbit", "none")])
def test_the_break_even_is_that_of_the_model_between_two_links_that_enclose_it(links):
    """0.05 s of coding against 9e6 bits saved: 180 Mbit/s."""
    found = of(*modelled("ddp", 0.01, 1e7, *links), *modelled("topk", 0.06, 1e6, *links))
    assert crossing(found, "topk") == Crossing(rate=pytest.approx(1.8e8))


def test_beyond_the_measured_links_there_is_a_bound_and_no_figure():
    links = ("100mbit", "1gbit")
    found = of(
        *modelled("ddp", 0.01, 1e7, *links), *modelled("topk", 0.011, 1e6, *links), *modelled("qsgd", 1.0, 1.0, *links)
    )
    assert crossing(found, "topk") == Crossing(above=1e9)
    assert crossing(found, "qsgd") == Crossing(below=1e8)
    everywhere = of(*modelled("ddp", 0.2, 1e7, "100mbit", "none"), *modelled("topk", 0.1, 1e6, "100mbit", "none"))
    assert crossing(everywhere, "topk") == Crossing(above=1e8, everywhere=True)
    equal = of(*modelled("ddp", 0.1, 1e7, "100mbit", "none"), *modelled("topk", 0.1, 1e6, "100mbit", "none"))
    assert crossing(equal, "topk") == Crossing(above=1e8, everywhere=True)


def test_without_a_rate_or_a_baseline_nothing_is_said():
    assert crossing(of(*modelled("ddp", 0, 1, "none"), *modelled("topk", 1, 1, "none")), "topk") is None
    assert crossing(of(*modelled("topk", 1, 1, "100mbit")), "topk") is None
    delayed = of(replayed("ddp", "1gbit+1ms", 1.0), replayed("topk", "1gbit+1ms", 0.5))
    assert crossing(delayed, "topk") is None
    assert delayed.speedup("topk", "1gbit+1ms") == 2.0


def test_rows_that_failed_are_left_out_and_a_repeated_row_counts_once():
    wrong = {key: value for key, value in replayed("topk", "none", 1.0).items() if not key.startswith("seconds")}
    found = of(replayed("ddp", "none", 3.0), replayed("ddp", "none", 2.0), wrong | {"error": "a worker died"})
    assert found.methods == ["ddp"]
    assert found.rows["ddp", "none"]["seconds"] == 2.0


def test_marks_are_in_milliseconds_and_times():
    found = of(replayed("ddp", "1gbit", 0.2), replayed("topk", "1gbit", 0.1), replayed("fp16", "1gbit", 0.4))
    assert [(mark.name, mark.series, mark.x) for mark in times(found)] == [
        ("ddp", "1 Gbit/s", 200.0),
        ("topk", "1 Gbit/s", 100.0),
        ("torch's fp16", "1 Gbit/s", 400.0),
    ]
    assert {mark.name: mark.x for mark in speedups(found)} == {"ddp": 1.0, "topk": 2.0, "torch's fp16": 0.5}
    assert [mark.family for mark in times(found)] == ["no compression", "sparsification", "torch's hook"]


def test_rows_of_other_instructions_are_not_compared_and_take_no_place():
    rows = [
        replayed(method, "none", seconds, target=target)
        for target, method, seconds in (
            ("avx2", "ddp", 2.0),
            ("reference", "ddp", 2.5),
            ("avx2", "topk", 1.0),
            ("reference", "topk", 5.0),
        )
    ]
    found = exchanges(Results(replays=rows))
    assert [each.title for each in found] == ["resnet20, 2 workers, avx2", "resnet20, 2 workers, reference"]
    assert [each.speedup("topk", "none") for each in found] == [2.0, 0.5]
    assert warnings(Results(replays=rows)) == []


def test_one_label_with_other_parameters_or_options_is_another_method():
    rows = [replayed("topk", "none", 1.0), replayed("topk", "none", 2.0, params={"ratio": 0.5})]
    rows += [replayed("topk", "none", 3.0, options={"min_numel": 1}), replayed("topk", "100mbit", 4.0)]
    found = of(*rows)
    assert {key: row["seconds"] for key, row in found.rows.items()} == {
        ("topk", "none"): 1.0,
        ("topk #2", "none"): 2.0,
        ("topk #3", "none"): 3.0,
        ("topk", "100mbit"): 4.0,
    }


def test_exchanges_that_were_replayed_again_are_counted():
    rows = [replayed("ddp", "none", seconds, commit=commit) for seconds, commit in ((3.0, "a"), (2.0, "a"), (1.0, "b"))]
    assert "2 exchanges were replayed again later" in " ".join(warnings(Results(replays=rows)))


def test_what_speed_ups_refer_to_is_said_where_it_is_not_plain_ddp():
    rows = [replayed("none", "1gbit", 0.2), replayed("topk", "1gbit", 0.1)]
    (plot,) = speedup_plots(Results(replays=rows))
    (table,) = blocks(Results(replays=rows))
    said = ["Plain DDP was not replayed (1 Gbit/s): compared with none, our own exchange without compression."]
    assert plot.notes == table.notes == said
    assert said[0] in markdown(Results(replays=rows))["links"]
    (mark,) = [mark for mark in speedups(of(*rows)) if mark.name == "topk"]
    assert mark.hover == ["2.00 times as fast as none, our own exchange without compression"]
    with_ddp = of(*rows, replayed("ddp", "1gbit", 0.4))
    assert with_ddp.instead() == []
    assert [mark.hover for mark in speedups(with_ddp) if mark.name == "topk"] == [["4.00 times as fast as plain DDP"]]


def test_a_strategy_is_a_part_of_the_name():
    found = of(replayed("topk", "none", 1.0), replayed("topk", "none", 2.0, options={"strategy": "two_phase"}))
    assert found.methods == ["topk", "topk two_phase"]
    assert found.family("topk two_phase") == "sparsification"


def test_a_hook_of_torch_and_a_method_of_ours_with_one_name_are_two():
    ours, torchs = replayed("powersgd", "none", 1.0), replayed("powersgd", "none", 2.0, params=None)
    found = of(replayed("ddp", "none", 1.0), ours, torchs)
    assert {name: found.family(name) for name in found.methods} == {
        "ddp": "no compression",
        "powersgd": "low rank",
        "torch's powersgd": "torch's hook",
    }


def test_bounds_are_other_marks_and_the_baseline_has_none():
    links = ("100mbit", "1gbit")
    plain = modelled("ddp", 0.01, 1e7, *links)
    compared = of(*plain, *modelled("topk", 0.06, 1e6, *links), *modelled("qsgd", 0.011, 1e6, *links))
    found = {mark.name: (mark.series, mark.x) for mark in link_marks(compared)}
    assert found == {"qsgd": ("pays at least up to here", 1e9), "topk": ("break-even", pytest.approx(1.8e8))}


def test_the_codec_alone_breaks_even_where_the_bits_it_saves_take_as_long_as_it_does():
    rows = [
        timed("qsgd", "encode", 1000, [2e-6]),
        timed("qsgd", "decode", 1000, [1e-6]),
        timed("topk", "encode", 1000, [1.0]),
        timed("none", "encode", 1000, [1e-6], wire_bits_per_element=32.0),
        timed("none", "decode", 1000, [1e-6]),
    ]
    (mark,) = codec_marks(rows, 1000)
    assert (mark.name, mark.x) == ("qsgd", pytest.approx(1000 * 24 / 3e-6))


def test_the_table_judges_where_quartiles_do_not_overlap():
    rows = (replayed("ddp", "1gbit", 0.2), replayed("topk", "1gbit", 0.1), replayed("qsgd", "1gbit", 0.19))
    (table,) = blocks(Results(replays=rows))
    at = table.heads.index("1 Gbit/s, x")
    assert {row[0].text: (row[at].text, row[at].tone) for row in table.rows} == {
        "ddp": ("1.00", ""),
        "topk": ("2.00", "better"),
        "qsgd": ("1.05", ""),
    }
