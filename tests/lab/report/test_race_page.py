"""The page of a race, as a file and in a browser, and its picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from dropmuon.lab.analysis.race import summarize_race
from dropmuon.lab.analysis.race_wording import verdict_of_race
from dropmuon.lab.ladder import LADDER, RaceDirectory
from dropmuon.lab.report.race_page import write_picture, write_race_report
from tests.lab.report.test_page import Balanced
from tests.lab.report.test_page_in_a_browser import browse, needs_chromium, picture
from tests.lab.synthetic_races import SPEEDS, write_race

FAR = {"full": 1.0, "drop-muon:parts-8": 3.0}
NASTY = '</script><img src=x onerror="alert(1)">&\'"'
# Chooses accuracy, and notes which pictures are shown.
ASKED = """<script>
document.getElementById("accuracy").click();
const all = [...document.querySelectorAll("svg.race")];
const seen = all.filter((each) => each.getBoundingClientRect().width);
const of = (each, name) => each.getAttribute(name).slice(0, 17);
const said = seen.map((each) => of(each, "class") + ": " + of(each, "aria-label"));
document.body.dataset.seen = said.join("; ");
</script></body>"""
KINDS: dict[str, dict[str, Any]] = {
    "won": {"tune": 20},
    "bound": {"speeds": FAR, "seeds": 1, "tune": 6},
    "lost": {"speeds": {"full": 1.0, "sgd": 0.4}, "seeds": 2, "dataset": "shakespeare"},
    "cut": {"finished": 3, "scale": 0.5, "diverged": ("drop-muon:uniform",)},
    "begun": {"finished": 1},
    "empty": {"finished": 0},
    "nasty": {"speeds": {"full": 1.0, NASTY: 1.2}, "title": NASTY},
}


@pytest.fixture(scope="module")
def races(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("races")
    for name, kind in KINDS.items():
        race = write_race(folder / name, **kind)
        if name == "bound":
            tuned = {"settings": {"lr": 1.0}, "at_the_end": ["lr"]}
            race.rung(race.finished[0]).write("tuned.json", {"full": tuned})
        write_race_report(race, race.path / "report.html")
        write_picture(race, race.path / "picture.svg")
    return folder


def page(races: Path, name: str) -> str:
    return (races / name / "report.html").read_text()


def drawn(text: str, measure: str, unit: str, size: str = "wide") -> str:
    """The picture of one variant."""
    found = re.search(rf'<div class="v {measure} {unit} {size}">(.*?)</div>', text, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("name", KINDS)
def test_elements_are_balanced_and_nothing_is_fetched(races: Path, name: str) -> None:
    text = page(races, name)
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "<img" not in text
    assert text.count("</script>") == 1


def test_the_verdict_comes_first_then_the_picture_then_tables(races: Path) -> None:
    text = page(races, "won")
    race = RaceDirectory(races / "won")
    verdict = verdict_of_race(summarize_race(race), race.settings)
    plain = re.sub(r"</?(em|span[^>]*)>", "", text).replace("\N{NO-BREAK SPACE}", " ")
    assert verdict in plain
    places = [plain.index(part) for part in (verdict, 'class="chart race', "<table")]
    assert places == sorted(places)
    assert re.search(r"<em>1\.6\d times</em>", text)


def test_the_gap_goes_from_the_method_to_the_baseline_at_equal_quality(races: Path) -> None:
    chart = drawn(page(races, "won"), "loss", "operations")
    x1, x2, y1, y2 = (
        float(v)
        for v in re.search(
            r'<line x1="(\S+)" x2="(\S+)" y1="(\S+)" y2="(\S+)" class="gap"', chart
        ).groups()
    )
    assert y1 == y2
    lines = re.findall(r'<polyline points="([^"]*)" class="main"', chart)
    base, own = (
        np.array([point.split(",") for point in lines[i].split()], dtype=float) for i in (0, 2)
    )
    assert [x1, y1] == pytest.approx(own[LADDER.index(1.0)], abs=0.1)
    assert np.interp(x2, base[:, 0], base[:, 1]) == pytest.approx(y2, abs=0.2)
    assert re.search(r">full needs</text>.*>1\.6\d×</text>.*>1\.\d\d to 1\.\d\d</text>", chart)


def test_a_bound_is_an_arrow_that_goes_on(races: Path) -> None:
    chart = drawn(page(races, "bound"), "accuracy", "seconds")
    assert 'class="gap open"' in chart
    assert "&gt;2.00×" in chart
    assert 'class="span"' not in chart


def test_every_measure_and_unit_has_a_picture_and_tables(races: Path) -> None:
    text = page(races, "won")
    for measure in ("loss", "accuracy"):
        for unit in ("operations", "seconds"):
            for size in ("wide", "narrow"):
                chart = drawn(text, measure, unit, size)
                assert chart.count('class="mean"') == len(LADDER) * len(SPEEDS)
                assert chart.count('class="seed"') == 5 * len(LADDER) * len(SPEEDS)
            assert f'<div class="v {measure} {unit} scroll"><table>' in text
    assert "Time to target, as in the paper" in text
    assert "How noisy each layer" in text


def test_a_loss_on_bytes_is_drawn_in_bits(races: Path) -> None:
    chart = drawn(page(races, "lost"), "loss", "operations")
    assert "bits per byte, lower is better" in chart
    ticks = [float(t) for t in re.findall(r'class="tick end">([\d.]+)<', chart)]
    assert max(ticks) > 1.0


def test_what_a_reader_must_know_is_said_at_the_top(races: Path) -> None:
    cut = page(races, "cut")
    for caution in (
        "scaled down to 0.5",
        "Unfinished: 2 of 5 budgets are left out",
        "Not tuned",
        "drop-muon:uniform diverged 3 times",
    ):
        assert 0 < cut.index(caution) < cut.index("<h1")
    assert "One seed only" in page(races, "bound")
    assert "Tuned with 6 trials per method only" in page(races, "bound")
    assert "full at 0.5 times the budget: tuning ended at the end of what" in page(races, "bound")
    assert "2 seeds only" in page(races, "lost")
    assert "caution" not in page(races, "won").partition("<body>")[2]


def test_a_race_that_has_just_begun_can_be_reported(races: Path) -> None:
    for name, count in (("begun", 1), ("empty", 0)):
        assert f"Nothing to compare yet: {count} of 5 budgets finished" in page(races, name)
    assert "Nothing to draw yet." in page(races, "empty")
    assert 'class="mean"' in page(races, "begun")


@pytest.mark.parametrize("name", [name for name in KINDS if name != "empty"])
def test_the_picture_is_a_file_of_its_own_with_both_themes(races: Path, name: str) -> None:
    text = (races / name / "picture.svg").read_text()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in text


@needs_chromium
def test_a_browser_shows_one_picture_for_its_width_and_reports_no_error(races, tmp_path) -> None:
    changed = tmp_path / "asked.html"
    changed.write_text(page(races, "won").replace("</body>", ASKED))
    for size, width in (("wide", 1280), ("narrow", 600)):
        flags = (f"--window-size={width},900", "--dump-dom")
        dom = browse(changed, tmp_path / size, *flags)
        assert "data-error" not in dom
        assert re.search(r'data-seen="([^"]*)"', dom)[1] == f"chart race {size}: Test accuracy aga"


@needs_chromium
@pytest.mark.parametrize("size", ["1280,1200", "500,1200"])
def test_the_page_is_light_or_dark_and_never_blank(races, tmp_path, size: str) -> None:
    light = picture(races / "won/report.html", tmp_path, f"--window-size={size}")
    assert light.std() > 15
    assert np.median(light) > 240
    themed = tmp_path / "dark.html"
    themed.write_text(page(races, "won").replace("<html", '<html data-theme="dark"', 1))
    dark = picture(themed, tmp_path, f"--window-size={size}")
    assert dark.std() > 15
    assert np.median(dark) < 40
