"""The page, in a browser where there is one; files of plots; tables for the docs."""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from gradwire.compressors.casts.none import Identity
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.errors import ConfigError
from gradwire_lab import report
from gradwire_lab.bench import codec
from gradwire_lab.report import Results, write_violins
from lab.tests.report.made import record, replayed, seeds
from lab.tests.report.test_figures import everything

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chrome or Chromium on the path")

HOSTILE = '</script><img src=x onerror="document.title=1">'


class Loads(HTMLParser):
    """Collects everything that a browser would load, and the names of elements."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        given = dict(attributes)
        links = [given.get(name) for name in ("src", "href", "srcset", "data", "action", "poster")]
        self.loads += [link for link in links if link and not link.startswith(("#", "data:"))]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with a hostile name in it, and its sections."""
    results = everything()
    results.runs.append(record(HOSTILE, 0.5, 0, compressor=None))
    path = tmp_path_factory.mktemp("page") / "report.html"
    sections = report.sections(results)
    report.write(path, results, sections, "what was <measured>")
    return path, sections


@pytest.fixture(scope="module")
def drawn(page, tmp_path_factory):
    """The page in a browser without a network, with a table sorted twice and another choice made."""
    path, sections = page
    named = {section.name: section for section in sections}
    script = f"""<script>
    const [, head] = document.querySelectorAll("#quality_table th");
    head.click();
    head.click();
    const column = head.closest("table").querySelectorAll("td:nth-child(2)");
    document.title = [...column].map((cell) => cell.textContent).join(" ");
    const menu = document.querySelector("#quality_epochs select");
    menu.value = {json.dumps(named["quality_table"].blocks[1].choice)};
    menu.dispatchEvent(new Event("change"));
    </script></body>"""
    changed = tmp_path_factory.mktemp("browser") / "changed.html"
    changed.write_text(path.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    return dumped(changed)


def dumped(path, *flags):
    """The document as it is after its scripts ran."""
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--proxy-server=127.0.0.1:9",
        "--dump-dom",
        *flags,
        f"--user-data-dir={path.parent / 'profile'}",
        "--virtual-time-budget=20000",
        path.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout


@needs_browser
@pytest.mark.parametrize("width", [390, 500])
def test_a_narrow_page_breaks_no_word_of_a_methods_name(tmp_path, width):
    """A frame is as narrow as it is told to be; a window of a browser is not."""
    names = ["none", "sketched_sgd", "adaptive_threshold", "twobit:threshold=auto", "torch's powersgd", "onebit_sgd"]
    results = Results([record(name) for name in names])
    inner, outer = tmp_path / "inner.html", tmp_path / "outer.html"
    report.write(inner, results, report.sections(results, ["quality_table"]), "narrow")
    outer.write_text(f"""<iframe src="inner.html" width="{width}" height="800"></iframe><script>
    addEventListener("load", () => {{
      const page = document.querySelector("iframe").contentDocument;
      const lines = [...page.querySelectorAll("td:first-child")].map((cell) => {{
        let text = "", last = null;
        const range = page.createRange(), walk = page.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) for (let at = 0; at < walk.currentNode.length; at++) {{
          range.setStart(walk.currentNode, at);
          range.setEnd(walk.currentNode, at + 1);
          const top = range.getBoundingClientRect().top;
          text += (last !== null && top > last + 5 ? "|" : "") + walk.currentNode.data[at];
          last = top;
        }}
        return text;
      }});
      document.title = lines.join(";") + ";" + page.defaultView.innerWidth;
    }});
    </script>""")
    (title,) = re.findall(r"<title>(.*?)</title>", dumped(outer, "--allow-file-access-from-files"))
    *lines, across = title.split(";")
    assert int(across) == width
    assert sorted(line.replace("|", "") for line in lines) == sorted(names)
    assert sum(line.count("|") for line in lines) >= 1
    assert not [line for line in lines if re.search(r"[^_:,= ]\|", line)]


@needs_browser
def test_on_a_phone_all_text_of_a_figure_stays_in_the_picture(page, tmp_path):
    inner, outer = tmp_path / "inner.html", tmp_path / "outer.html"
    inner.write_text(page[0].read_text(encoding="utf-8"), encoding="utf-8")
    outer.write_text("""<iframe src="inner.html" width="390" height="800"></iframe><script>
    addEventListener("load", () => setTimeout(() => {
      const page = document.querySelector("iframe").contentDocument, outside = [];
      const texts = [...page.querySelectorAll("svg.figure text")];
      for (const text of texts) {
        const box = text.getBoundingClientRect(), picture = text.closest("svg").getBoundingClientRect();
        if (box.left < picture.left - 1 || box.right > picture.right + 1) outside.push(text.textContent);
      }
      document.title = JSON.stringify([texts.length, outside, page.documentElement.scrollWidth]);
    }, 3000));
    </script>""")
    (title,) = re.findall(r"<title>(.*?)</title>", dumped(outer, "--allow-file-access-from-files"))
    count, outside, across = json.loads(html.unescape(title))
    assert count > 100
    assert outside == []
    assert across <= 390


def test_nothing_is_loaded_from_anywhere(page):
    path, _ = page
    text = path.read_text(encoding="utf-8")
    found = Loads(text)
    assert found.loads == []
    assert "script" in found.tags
    assert not re.findall(r"@import|url\(", re.findall(r"<style>(.*?)</style>", text, re.DOTALL)[0])


def test_names_from_files_are_text(page):
    path, _ = page
    text = path.read_text(encoding="utf-8")
    assert HOSTILE not in text
    assert "&lt;/script&gt;&lt;img" in text
    assert "<h1>what was &lt;measured&gt;</h1>" in text
    assert "img" not in Loads(text).tags


def figures_of(text):
    """The figures of a page, in their order."""
    found = re.findall(r'<script type="application/gzip">(.*?)</script>', text)
    return [json.loads(gzip.decompress(base64.b64decode(each)), parse_constant=pytest.fail) for each in found]


def test_the_json_of_every_plot_is_whole(page):
    path, sections = page
    found = figures_of(path.read_text(encoding="utf-8"))
    plots = [block for section in sections for block in section.blocks if isinstance(block, report.Plot)]
    assert [len(each["data"]) for each in found] == [len(plot.figure["data"]) for plot in plots]


def test_a_page_is_small(page):
    """At most 1.5 MB, of which all but the results is below a tenth."""
    path, sections = page
    assert path.stat().st_size < 300_000
    assert sum(len(section.blocks) for section in sections) > 20


@needs_browser
def test_a_browser_without_a_network_draws_the_first_plot_of_every_section(page, drawn):
    for section in page[1]:
        if isinstance(section.blocks[0], report.Plot):
            (text,) = re.findall(rf'<section id="{section.name}">.*?</section>', drawn, re.DOTALL)
            (first, *_) = re.findall(r'<div class="block".*?<script', text, re.DOTALL)
            assert 'data-drawn="yes"' in first, f"{section.name} was not drawn"
            assert re.search(r'<svg [^>]*class="figure"', first)
            assert re.search(r"<(path|polygon|rect|circle) ", first)
            assert "NaN" not in first


@needs_browser
def test_a_click_on_a_head_sorts_and_a_menu_chooses_for_all_sections(page, drawn):
    figures = [float(text) for text in re.findall(r"<title>(.*?)</title>", drawn)[0].split()]
    assert len(figures) == 6
    assert figures == sorted(figures, reverse=True)
    shown = re.findall(r'<div class="block" data-choice="([^"]+)">', drawn)
    (table,) = (section for section in page[1] if section.name == "quality_table")
    chosen = table.blocks[1].choice
    assert shown.count(chosen) == sum(chosen in [block.choice for block in section.blocks] for section in page[1]) > 2


def test_the_machine_the_seeds_and_what_is_mixed_are_said():
    elsewhere = record("topk", environment={"machine": "another", "commit": "fedcba9876543210-dirty"})
    results = Results([*seeds("none", 0.9, 0.8), elsewhere], files=["r.jsonl"])
    facts = dict(report.facts(results))
    assert facts["machine"] == "a machine, another"
    assert facts["commit"] == "0123456789ab, fedcba987654-dirty"
    assert (facts["seeds"], facts["dates"], facts["results"]) == ("0, 1", "2026-01-02 03:04 UTC", "3 training runs")
    text = " ".join(report.warnings(results))
    for part in ("2 machines are mixed", "2 commits are mixed", "changes that no commit has", "Of two seeds"):
        assert part in text
    assert report.warnings(Results(seeds("none", 0.9, 0.8, 0.7))) == []
    assert "nothing to compare with" in report.warnings(Results([record("topk")]))[0]
    assert "needs two seeds" in report.warnings(Results([record()]))[0]


def warned(*runs):
    return " ".join(report.warnings(Results(runs)))


def test_why_there_is_no_floor_is_said_and_which_group_it_is():
    group = "classification: a_model on some data, 2 workers, 1 epoch"
    alike = warned(*seeds("none", 0.7, 0.7, 0.7))
    assert (
        f"exactly the same quality, as happens with few test data, so that the noise floor is not known: {group}."
        in (alike)
    )
    assert "needs two seeds" not in alike
    assert f"An uncompressed run diverged, so that nothing compares with it: {group}." in warned(
        *seeds("none", 0.7, math.nan)
    )
    notes = report.sections(Results(seeds("none", 0.7, 0.7)), ["quality_table"])[0].blocks[0].notes
    assert "not known, 2 uncompressed runs that ended exactly alike show no spread" in notes[0]


def test_several_recipes_and_what_they_leave_without_a_baseline_are_said():
    group = "classification: a_model on some data, 2 workers, 1 epoch"
    fast = seeds("none", 0.5, 0.51, 0.52, recipe={"lr": 0.5})
    both = Results([*fast, *seeds("none", 0.9, 0.91, 0.92)])
    said = " ".join(report.warnings(both))
    assert f"compared with those of its own recipe, or else of the task's own: {group}." in said
    (table,) = report.sections(both, ["quality_table"])[0].blocks
    assert [note.partition(":")[0] for note in table.notes] == [
        "Noise floor of none #2 and what has its recipe",
        "Noise floor of none and what has its recipe",
    ]
    assert "2 workers: 3.51, of 3 seeds of none #2 and 3.51, of 3 seeds of none." in report.markdown(both)["quality"]
    assert f"so that they have nothing to compare with: topk ({group})." in warned(*fast, record("topk"))


def test_data_of_other_digests_are_not_compared_in_silence():
    one, other = seeds("none", 0.9, 0.8, 0.7, data_digest="a" * 64), record("topk", data_digest="b" * 64)
    assert "Runs were made on data with different digests" in warned(*one, other)
    assert warned(*one, record("topk", data_digest="a" * 64), record("qsgd")) == ""


def test_a_run_that_diverged_breaks_no_page_and_no_table(tmp_path):
    runs = [*seeds("none", 0.9, 0.8, 0.7), record("topk", math.inf), record("qsgd", math.nan)]
    results, path = Results(runs), tmp_path / "report.html"
    report.write(path, results, report.sections(results), "diverged")
    text = path.read_text(encoding="utf-8")
    assert figures_of(text)
    assert not re.search(r'data-sort="-?(nan|inf)', text)
    assert "| `topk` | diverged | 1 | 1,000 |" in report.markdown(results)["quality"]


def test_an_empty_page_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nothing to show"):
        report.write(tmp_path / "r.html", Results(), [], "title")
    assert not (tmp_path / "r.html").exists()


@needs_browser
def test_files_of_plots_are_images(tmp_path):
    results = Results(seeds("none", 0.9, 0.8) + seeds("topk", 0.7, 0.6))
    files = report.images(tmp_path / "plots", report.sections(results, ["quality_volume"]))
    assert sorted(file.name for file in files) == ["quality_volume.png", "quality_volume.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    svg = files[1].read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert "topk" in svg


def test_without_a_browser_files_of_plots_are_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"drawn by Chrome or Chromium.*BROWSER_PATH"):
        report.images(tmp_path, report.sections(everything(), ["speedup"]))


def test_markdown_has_a_difference_only_above_the_noise_floor():
    runs = [*seeds("none", 0.97, 0.98, 0.99), *seeds("topk", 0.90, 0.92), *seeds("a|b", 0.98, 0.97, compressor="qsgd")]
    runs += [*seeds("none", 0.98, 0.96, workers=4), record("dgc", None, status="failed", error="worker 1 died")]
    text = report.markdown(Results(runs))["quality"]
    assert "| `none` | 98.00 ± 1.00 | 3 | 1,000 | 97.00 ± 1.41 | 2 | 1,000 |" in text
    assert "| `topk` | 91.00 ± 1.41 (-7.00) | 2 | 1,000 |" in text
    assert r"| `a\|b` | 97.50 ± 0.71 ≈ | 2 | 1,000 |" in text
    assert "2 workers: 3.51, of 3 seeds; 4 workers: 17.97, of 2 seeds" in text
    assert "- `dgc`, classification, 2 workers, seed 0: worker 1 died" in text


def test_replays_are_a_table_of_their_own_and_failed_ones_say_why():
    rows = [
        replayed("ddp", "1gbit", 0.2),
        replayed("topk", "1gbit", 0.1),
        {**replayed("qsgd", "1gbit", 1.0), "error": "lost | it"},
    ]
    del rows[2]["seconds"]
    found = report.markdown(Results(replays=rows))
    assert set(found) == {"links"}
    assert re.search(r"\| `topk` \| 100\.0 \| 2\.00 \|", found["links"])
    assert "- `qsgd`, resnet20, 1gbit, 2 workers: lost \\| it" in found["links"]


def test_the_page_of_the_codec_has_violins_for_each_size(tmp_path):
    page = tmp_path / "latency.html"
    write_violins(list(codec.rows([Identity(), QSGD(bits=8)], [1000, 4096], repeats=3)), page)
    text = page.read_text(encoding="utf-8")
    names = [trace["name"] for figure in figures_of(text) for trace in figure["data"] if trace["type"] == "violin"]
    assert sorted(names) == ["none", "none", "qsgd:bits=8", "qsgd:bits=8"]
    for size in ("1,000 elements", "2^12 elements"):
        assert f"<option>{size}</option>" in text
    assert Loads(text).loads == []


def test_nothing_measured_is_nothing_to_plot(tmp_path):
    skipped = {"method": "topk", "params": {}, "op": "encode", "size": 8, "skipped": "too slow"}
    with pytest.raises(ConfigError, match="nothing to plot"):
        write_violins([skipped], tmp_path / "latency.html")
    assert not (tmp_path / "latency.html").exists()
