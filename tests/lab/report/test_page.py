"""The report as a file."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dropmuon.lab import analysis
from dropmuon.lab.config import Config, read_settings
from dropmuon.lab.report import write_report
from dropmuon.lab.run import RunDirectory
from tests.lab.synthetic_races import write_race
from tests.lab.synthetic_runs import LAYERS, METHODS, in_bits, write_run

VOID = {"meta", "input", "br", "link", "img"}


class Balanced(HTMLParser):
    """Fails where an element is closed that is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def page(folder: Path, name: str) -> str:
    return (folder / name).read_text()


@pytest.mark.parametrize("name", ["whole/report.html", "cut/report.html", "all.html"])
def test_elements_are_balanced_and_nothing_is_fetched(folder, name):
    text = page(folder, name)
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert not re.search(r"""(src|href|@import|url\()\s*=?\s*["'(]?\s*(https?:)?//""", text)
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_losses_stand_beside_accuracies_and_text_has_bits_only(folder, tmp_path):
    text = page(folder, "whole/report.html")
    assert "<dt>final test loss</dt>" in text
    assert "<dt>final test accuracy</dt>" in text
    assert '<th scope="col">test loss</th><th scope="col">train</th>' in text
    run = in_bits(write_run(tmp_path / "text"))
    write_report([run], tmp_path / "text.html")
    text = page(tmp_path, "text.html")
    assert "<dt>final bits per byte</dt>" in text
    assert "<dt>final test accuracy</dt>" not in text
    assert '<th scope="col">bits per byte</th><th scope="col">time</th>' in text
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []


def test_the_verdict_comes_first_and_charts_need_no_script(folder):
    text = page(folder, "whole/report.html")
    verdict = analysis.verdict(analysis.summarize(RunDirectory(folder / "whole")))
    plain = re.sub(r"</?em>", "", text).replace("\N{NO-BREAK SPACE}", " ")
    assert verdict in plain
    assert plain.index(verdict) < plain.index("<svg")
    without_scripts = text[: text.index("<script")]
    assert without_scripts.count("<polyline") > 50
    assert without_scripts.count('class="chart bars"') == 4
    legend = re.findall(r"</svg>([^<]+)</label>", text)
    assert legend == list(METHODS)


def test_everything_from_files_is_escaped(tmp_path):
    nasty = '</script><img src=x onerror="alert(1)">&\'"'
    run = write_run(
        tmp_path / "nasty", methods=("muon", nasty), title=nasty, dataset=nasty, seeds=1
    )
    write_report([run], tmp_path / "report.html")
    text = page(tmp_path, "report.html")
    assert "<img" not in text
    assert text.count("</script>") == 1
    assert "&lt;/script&gt;&lt;img" in text


def test_what_a_reader_must_know_is_said_at_the_top(folder):
    shrunk, cut = page(folder, "single/report.html"), page(folder, "cut/report.html")
    assert shrunk.index("scaled down to 0.5") < shrunk.index("<h1")
    assert "One seed only" in shrunk
    assert "Unfinished: 3 of 15 trials" in cut
    assert "caution" not in page(folder, "whole/report.html").partition("<body>")[2]


def test_a_busy_machine_is_mentioned(tmp_path):
    run = write_run(tmp_path / "busy")
    run.write("environment.json", {"cores": 1, "command": "dropmuon compare --seeds 3"})
    loaded = [e.__class__(**{**vars(e), "load": 3.0}) for e in run.evaluations()]
    run.rewrite(loaded)
    write_report([run], tmp_path / "report.html")
    text = page(tmp_path, "report.html")
    assert "a load of 3.0 on 1 core." in text
    assert "<code>dropmuon compare --seeds 3</code>" in text


def test_a_run_whose_command_is_unknown_is_repeated_from_its_configuration(folder):
    code = re.findall(r"<pre><code>(.*?)</code>", page(folder, "whole/report.html"))
    assert code == ["dropmuon compare --config config.json"]
    assert Config.of(read_settings(folder / "whole" / "config.json")).methods == METHODS


def test_shares_are_those_of_the_means_beside_them(tmp_path):
    run = write_run(tmp_path / "run", methods=("muon", "adamw"), targets=[20.0])
    busy = {("muon", 0): 4.0, ("adamw", 1): 5.0}
    run.rewrite(
        replace(e, seconds=e.seconds * busy.get((e.method, e.seed), 1.0)) for e in run.evaluations()
    )
    muon, adamw = analysis.summarize(run).finals
    assert adamw.step_seconds_share == adamw.seconds_per_step / muon.seconds_per_step
    assert adamw.seconds_share == adamw.seconds / muon.seconds
    write_report([run], tmp_path / "report.html")
    shown, own, base = re.search(
        r'<dt>time per step</dt>\s*<dd class="lead">(\d+) %</dd>\s*'
        r'<dd class="more">of muon: ([\d.]+) ms against ([\d.]+) ms',
        page(tmp_path, "report.html"),
    ).groups()
    assert int(shown) == pytest.approx(100 * float(own) / float(base), abs=1)


def test_definitions_say_on_what_train_accuracy_is_taken(folder):
    text = page(folder, "whole/report.html")
    assert "on the first 10000 training examples of a fixed random order" in text
    assert "the method's mean over the baseline's mean" in text


def test_one_epoch_is_no_epochs(tmp_path):
    run = write_run(tmp_path / "run", epochs=1, seeds=1)
    write_report([run], tmp_path / "report.html")
    text = page(tmp_path, "report.html")
    assert "cnn 16-32-64 · 1 epoch · batches of 512" in text
    assert "1 epochs" not in text


@pytest.mark.parametrize("full", ["full", "muon"])
def test_full_has_the_colour_of_a_baseline_whichever_run_comes_first(tmp_path, full):
    runs = [
        write_run(tmp_path / "a", methods=("adamw", "drop-muon:uniform"), seeds=1),
        write_run(tmp_path / "b", methods=(full, "adamw"), seeds=1),
    ]
    write_report(runs, tmp_path / "all.html")
    text = page(tmp_path, "all.html")
    colours = re.findall(r'<label for="k\d" class="(m\d) k\d">.*?</svg>([^<]*)<', text)
    assert colours == [("m1", "adamw"), ("m2", "drop-muon:uniform"), ("m0", full)]


def test_many_runs_have_an_overview_with_an_equal_budget(folder):
    text = page(folder, "all.html")
    assert "3 runs, 2 tasks" in text
    assert "budget 2 configurations per method" in text
    assert text.count('<details class="run"') == 3
    assert "operations are the safer comparison" in text
    runs = [RunDirectory(folder / name) for name in ("whole", "cut", "single", "whole")]
    write_report(runs, folder / "twice.html")
    assert page(folder, "twice.html") == text


def test_unfinished_and_empty_runs_can_be_reported(tmp_path):
    everything = {(method, seed): 0 for method in METHODS for seed in range(3)}
    run = write_run(tmp_path / "empty", stop=everything)
    write_report([run], tmp_path / "report.html")
    assert "Nothing was evaluated yet." in page(tmp_path, "report.html")
    with pytest.raises(ValueError, match="runs must hold at least one"):
        write_report([], tmp_path / "none.html")


def test_shares_and_noise_are_drawn_where_they_were_recorded(folder, tmp_path):
    run = write_race(tmp_path / "race").rung(1.0)
    write_report([run], tmp_path / "report.html")
    text = page(tmp_path, "report.html")
    for what in ("Share of the batch", "Ratio of gradient noise to signal"):
        labels = re.findall(rf'aria-label="{what} of each layer, ([^"]*)"', text)
        assert labels == ["drop-muon:parts-4"]
    assert text.count('class="layer"') == 2 * len(LAYERS)
    assert f"{LAYERS[0]}: 12 % at first, 100 % at the end" in text
    plain = page(folder, "whole/report.html")
    assert 'class="layer"' not in plain
    assert "How noisy" not in plain
