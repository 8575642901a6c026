"""Every section: numbers first, then that Plotly accepts what is drawn of them."""

from __future__ import annotations

import json
import math

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_lab import report
from gradwire_lab.report import Plot, Results, Table
from gradwire_lab.report._curves import curve
from gradwire_lab.report._labels import HEIGHT, WIDTH, Box, around, place
from gradwire_lab.report._look import COLOURS
from gradwire_lab.report._memory import memory_marks
from gradwire_lab.report._panels import panels
from gradwire_lab.report._quality import stripe
from gradwire_lab.report._scatter import Dot, scatter
from gradwire_lab.report.break_even import codec_marks
from gradwire_lab.report.latency import latencies
from gradwire_lab.report.quality_throughput import dots as by_throughput
from gradwire_lab.report.quality_volume import dots as by_volume
from lab.tests.experiments.test_auto_check import row
from lab.tests.report.made import ENTRIES, record, replayed, seeds, timed


def everything():
    runs = [*seeds("none", 0.97, 0.98, 0.99), *seeds("topk", 0.90, 0.92, examples_per_second=150.0)]
    runs += [*seeds("qsgd:bits=8", 0.98, 0.97, bytes_per_step=250.0), *seeds("mine", 0.1, 0.2, compressor="of_mine")]
    runs += [*seeds("none", 20.0, 21.0, task="language", higher_is_better=False, measure="perplexity")]
    runs += [record("topk", math.nan, task="language", higher_is_better=False, measure="perplexity")]
    runs += [record("dgc", None, 9, status="failed", error="worker 1 died: <out of memory>")]
    linked = {"task": "segmentation", "link": "100mbit"}
    runs += [*seeds("none", 0.9, **linked), *seeds("qsgd", 0.9, **linked, examples_per_second=250.0)]
    runs += [*seeds("eden", 0.9, 0.95, optimizer={"name": "diloco", "every": 30}, bytes_per_step=25.0)]
    replays = [replayed("ddp", "100mbit", 1.0), replayed("fp16", "100mbit", 0.6), replayed("topk", "100mbit", 0.1)]
    replays += [replayed("ddp", "none", 0.1), replayed("fp16", "none", 0.1), replayed("topk", "none", 0.2)]
    codecs = [timed(name, op, 1 << 16, [1e-3, 2e-3]) for name in ("topk", "qsgd") for op in ("encode", "decode")]
    cells = [row(0.5, within=0.5) | {"decisions": ENTRIES}]
    return Results(runs, replays, codecs, ["r.jsonl"], cells=cells)


def only(runs):
    (panel,) = panels(runs)
    return panel


def test_every_section_has_something_to_show_and_in_the_order_of_the_page():
    found = report.sections(everything())
    assert {section.name for section in found} == set(report.names())
    assert found[0].name == "links_speed"
    assert all(section.title and section.note.endswith(".") and section.blocks for section in found)


def test_a_section_of_which_nothing_was_measured_is_not_there():
    assert {section.name for section in report.sections(Results(codecs=everything().codecs))} == {
        "break_even",
        "latency",
    }
    assert report.sections(Results()) == []


@pytest.mark.parametrize("name", report.names())
def test_plotly_accepts_every_plot(name):
    (section,) = report.sections(everything(), [name])
    for block in section.blocks:
        if isinstance(block, Plot):
            assert len(go.Figure(block.figure).data) > 0
            assert block.height >= 150
        else:
            assert all(len(row) == len(block.heads) for row in block.rows)
            assert set(block.brief) <= set(block.heads)


def test_the_table_has_what_else_is_measured_and_what_needs_no_learning():
    more = {"measures": {"top-1": 0.9, "Dice": 0.75}, "baselines": {"chance": 0.1}}
    (section,) = report.sections(Results([record(**more), record("topk", **more)]), ["quality_table"])
    (table,) = section.blocks
    assert table.heads[-1] == "Dice"
    assert [row[-1].text for row in table.rows] == ["0.75", "0.75"]
    assert table.notes[-1] == "Without learning: chance 10.00 (top-1, %)."


def test_throughput_is_relative_and_quality_in_percent_with_the_spread_of_the_seeds():
    runs = [*seeds("none", 0.9, 0.9), *seeds("topk", 0.8, 0.6, examples_per_second=250.0)]
    found = {dot.name: dot for dot in by_throughput(only(runs))}
    assert (found["none"].x, found["none"].y) == (1.0, pytest.approx(90.0))
    assert (found["topk"].x, found["topk"].y) == (2.5, pytest.approx(70.0))
    assert found["topk"].dy == pytest.approx(100 * math.sqrt(0.02))
    assert found["topk"].dx == 0.0


def test_a_method_without_a_speed_or_a_finite_quality_is_no_dot():
    runs = [record(), record("topk", math.nan), record("qsgd", examples_per_second=None), record("dgc", 0.5)]
    assert {dot.name for dot in by_throughput(only(runs))} == {"none", "dgc"}


def test_the_tail_of_a_volume_is_the_unpacked_one_where_it_differs():
    runs = [record(), record("topk", unpacked_bytes_per_step=1000.0), record("qsgd", unpacked_bytes_per_step=None)]
    found = {dot.name: (dot.x, dot.tail) for dot in by_volume(only(runs))}
    assert found == {"none": (1000.0, 4000.0), "topk": (1000.0, None), "qsgd": (1000.0, None)}


def test_bits_are_those_of_a_parameter_and_step_where_something_is_exchanged_rarely():
    rare = record("eden", optimizer={"name": "diloco", "every": 30}, bytes_per_step=25.0)
    ((plot,),) = [section.blocks for section in report.sections(Results([record(), rare]), ["quality_bits"])]
    # Two workers send 8,000 bytes for 2,000 parameters of float32 in a ring.
    found = {x for trace in plot.figure["data"] for x in trace["x"]}
    assert found == {8 * 1000 / 2000, 8 * 25 / 2000}
    assert report.sections(Results([record(), record("eden")]), ["quality_bits"]) == []


def test_the_stripe_is_the_noise_floor_around_the_uncompressed_quality():
    panel = only(seeds("none", 0.97, 0.98, 0.99))
    low, high = stripe(panel)
    assert (low + high) / 2 == pytest.approx(98.0)
    assert (high - low) / 2 == pytest.approx(100 * panel.floor())
    assert stripe(only([record()])) is None


def test_a_curve_is_the_mean_over_seeds_as_far_as_all_came():
    runs = [record(quality=0.4, seed=0), record(quality=0.8, seed=1)]
    found = curve(only(runs).entries[0], "seconds")
    assert found.x == [2.0, 4.0]
    assert found.quality == pytest.approx([0.3, 0.6])
    shorter = [*runs, record(quality=0.4, seed=2, history=runs[0].history[:1])]
    assert curve(only(shorter).entries[0], "epoch").x == [1.0]


def test_memory_is_in_megabytes_and_the_largest_comes_first():
    panel = only([record(state_bytes=0), record("topk", state_bytes=5e6), record("qsgd", state_bytes=None)])
    marks = memory_marks(panel, lambda entry: entry.mean("state_bytes"), "state")
    assert [(mark.name, mark.x) for mark in marks] == [("topk", 5.0), ("none", 0.0)]


def test_peak_memory_is_what_a_run_added_and_who_does_not_tell_is_named():
    runs = [record(), record("topk", peak_rss_bytes=130 * 10**6), record("qsgd", start_rss_bytes=None)]
    peak, table = report.sections(Results(runs), ["memory_peak", "quality_table"])[::-1]
    (plot,), (rows,) = peak.blocks, table.blocks
    assert go.Figure(plot.figure).data[-1].x == (70.0, 40.0)
    assert [note for note in plot.notes if "not shown of qsgd:" in note] == list(plot.notes) == [rows.notes[-1]]
    at = rows.heads.index("growth of memory, MB")
    assert {row[0].text: row[at].text for row in rows.rows} == {"none": "40", "topk": "70", "qsgd": "-"}


def test_where_no_run_tells_what_it_began_with_no_peak_is_drawn_and_the_table_says_why():
    found = report.sections(Results([record(start_rss_bytes=None), record("topk", start_rss_bytes=None)]))
    assert "memory_peak" not in {section.name for section in found}
    (table,) = found[0].blocks
    assert "growth of memory, MB" not in table.heads
    assert table.notes[-1].startswith("Peak memory is not shown of any method")


def test_a_run_that_diverged_is_named_and_is_in_no_mean_or_plot():
    runs = [*seeds("none", 0.9, 0.8), *seeds("topk", 0.9, math.inf), *seeds("qsgd", 0.7, 0.6)]
    found = {section.name: section.blocks for section in report.sections(Results(runs))}
    (table,), (wrong,) = found["quality_table"], found["failures"]
    rows = {row["method"]: row for row in table.as_dict()["rows"]}
    assert (rows["topk"]["verdict"], rows["topk"]["top-1, %"], rows["topk"]["± of seeds"]) == ("diverged", None, None)
    assert rows["qsgd"]["top-1, %"] == pytest.approx(65.0)
    assert [cell.text for cell in wrong.rows[0]][2:] == ["1", "diverged: it ended with no quality that is a number"]
    names = {mark for trace in found["quality_volume"][0].figure["data"] for mark in trace.get("text", ())}
    assert "topk" not in names
    assert "qsgd" in names
    json.dumps([block.as_dict() for block in (table, wrong)], allow_nan=False)


def test_latency_is_encode_plus_decode_and_the_fastest_comes_first():
    rows = [
        timed("none", "encode", 8, [0.5, 0.25]),
        timed("none", "decode", 8, [0.25, 0.5, 9.0]),
        timed("bf16", "encode", 8, [0.125]),
        timed("bf16", "decode", 8, [0.125]),
        timed("bf16", "decode8", 8, [7.0]),
        timed("fp16", "encode", 8, [1.0]),
        timed("bf16", "encode", 16, [1.0]),
        {"method": "topk", "params": {}, "op": "encode", "size": 8, "skipped": "too slow"},
    ]
    assert latencies(rows, 8) == {"bf16": [250.0], "none": [750.0, 750.0]}
    assert list(latencies(rows, 8)) == ["bf16", "none"]


def test_rows_of_other_threads_or_instructions_are_methods_of_their_own():
    rows = [
        timed("topk", op, 8, [seconds], threads=threads, target=target)
        for threads, target, seconds in ((1, "avx2", 4.0), (2, "avx2", 2.0), (1, "reference", 8.0))
        for op in ("encode", "decode")
    ]
    assert latencies(rows, 8) == {
        "topk, 2 threads, avx2": [4000.0],
        "topk, 1 thread, avx2": [8000.0],
        "topk, 1 thread, reference": [16000.0],
    }
    assert [mark.name for mark in codec_marks(rows, 8)] == list(latencies(rows, 8))
    (section,) = report.sections(Results(codecs=rows), ["latency"])
    colours = {trace["line"]["color"] for trace in section.blocks[0].figure["data"] if trace["type"] == "violin"}
    assert colours == {COLOURS["sparsification"]}
    assert not [warning for warning in report.warnings(Results(codecs=rows)) if "again" in warning]


def test_rows_that_were_measured_again_are_counted():
    rows = [timed("topk", op, 8, [1.0], commit=commit) for commit in "abc" for op in ("encode", "decode", "decode8")]
    assert latencies(rows, 8) == {"topk": [2000.0]}
    text = " ".join(report.warnings(Results(codecs=rows)))
    assert "4 codec rows were measured again later, under equal conditions: the last counts." in text


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=40))
def test_no_label_covers_another_or_leaves_the_plot(dots):
    names = [f"method{number}" for number in range(len(dots))]
    places = place(names, dots)
    boxes = [
        around(name, (WIDTH * x, HEIGHT * y), where)
        for name, (x, y), where in zip(names, dots, places, strict=True)
        if where is not None
    ]
    assert not [1 for at, box in enumerate(boxes) for other in boxes[:at] if box.meets(other)]
    assert all(box.left >= 0 and box.right <= WIDTH for box in boxes)
    assert Box(0, 0, 2, 2).meets(Box(1, 1, 3, 3))
    assert not Box(0, 0, 2, 2).meets(Box(2, 0, 3, 2))


def test_a_label_alone_has_its_place():
    assert place(["none"], [(0.5, 0.5)]) != [None]


def test_a_closer_view_is_offered_where_one_method_is_far_away_and_places_the_labels_anew():
    far = [Dot(f"m{number}", "cast", 1 + 0.1 * number, 97 + 0.2 * number) for number in range(9)]
    figure = scatter([*far, Dot("topk", "sparsification", 1.0, 10.0)], {}, {})
    whole, closer = figure["layout"]["updatemenus"][0]["buttons"]
    assert whole["args"][1]["yaxis.range"][0] < 10 < 90 < closer["args"][1]["yaxis.range"][0]
    labels = [label for trace in closer["args"][0]["text"] for label in trace]
    assert "topk" not in labels
    assert set(labels) - {""}
    assert not scatter(far, {}, {})["layout"]["updatemenus"]


def test_numbers_grow_upwards_also_where_lower_is_better():
    figure = scatter([Dot("a", "cast", 1, 20.0), Dot("b", "cast", 2, 30.0)], {}, {}, (19.0, 21.0), lower=True)
    below, above = figure["layout"]["yaxis"]["range"]
    assert below < 20 < 30 < above
    assert figure["layout"]["shapes"][0]["y0"] == 19.0


def test_failures_are_listed_and_skipped_operations_too():
    skipped = {"method": "atomo", "params": {}, "op": "encode", "size": 8, "skipped": "it would take a minute"}
    runs = [record("dgc", None, 3, status="failed", error="worker 1 died"), record("topk", identical=False)]
    runs += [record("qsgd", nonfinite_steps=2), record()]
    wrong = {key: value for key, value in replayed("fp16", "none", 1.0).items() if not key.startswith("seconds")}
    (section,) = report.sections(Results(runs, [wrong | {"error": "no route"}], [skipped]), ["failures"])
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert [(row[0].text, row[2].text, row[3].text) for row in table.rows] == [
        ("dgc", "3", "failed after 0 steps: worker 1 died"),
        ("topk", "0", "the workers ended with different parameters"),
        ("qsgd", "0", "2 steps were left out: a gradient was not finite"),
        ("fp16", "-", "no route"),
        ("atomo", "-", "skipped: it would take a minute"),
    ]
