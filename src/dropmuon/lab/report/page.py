"""A report in one file: no network, no scripts needed, light and dark, for screens and paper."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from dropmuon.files import write_text
from dropmuon.lab.analysis import formatting as wording
from dropmuon.lab.analysis.metrics import Final, Speedup
from dropmuon.lab.analysis.results import Results, headline, summarize, verdict
from dropmuon.lab.analysis.series import SPLITS, UNITS, Split, Unit
from dropmuon.lab.report.budget import distinct, groups
from dropmuon.lab.report.figures.palette import DASHES, PAPER_COLORS, SCREEN_COLORS, Palette
from dropmuon.lab.report.run_charts import Charts
from dropmuon.lab.report.sentences import describe, headings, overall, winner
from dropmuon.lab.run import RunDirectory

__all__ = ["write_report"]

_MOST_WITH_CHARTS = 16
"""Beyond so many runs the rest have tables only, or the file would grow too large to open."""

_BUSY = 1.25
"""Load per core from which times are not to be trusted; training alone brings it to about 1."""


def write_report(runs: Sequence[RunDirectory], path: Path) -> None:
    """Write one page about one run, or about many with an overview first."""
    if not runs:
        raise ValueError("runs must hold at least one run directory, got none")
    runs = distinct(runs)
    found = [(run, summarize(run)) for run in runs]
    methods = list(dict.fromkeys(method for _, results in found for method in results.methods))
    palette = Palette(methods, "muon" if "muon" in methods else found[0][1].baseline)
    css = {method: f"m{palette.place(method)} k{i}" for i, method in enumerate(methods)}
    sections = [
        Section(run, results, Charts(run, results, css) if i < _MOST_WITH_CHARTS else None)
        for i, (run, results) in enumerate(found)
    ]
    tasks = groups(runs) if len(runs) > 1 else []
    page = _template().render(
        sections=sections,
        first=sections[0],
        groups=tasks,
        headings=headings(tasks),
        winner=winner,
        overall=overall(tasks),
        methods=methods,
        css=css,
        colors=list(zip(PAPER_COLORS, SCREEN_COLORS, DASHES, strict=True)),
        splits=SPLITS,
        units=UNITS,
        word=wording,
    )
    write_text(path, page)


@dataclass(frozen=True)
class Section:
    """What the page says about one run."""

    run: RunDirectory
    results: Results
    charts: Charts | None

    @property
    def title(self) -> str:
        """As the run was named, or what it is about."""
        return str(self.run.config.get("title") or self.task)

    @property
    def task(self) -> str:
        """Data and model in a few words."""
        return describe(self.run.config)

    @property
    def name(self) -> str:
        """Its directory's name."""
        return self.run.path.resolve().name

    @property
    def config(self) -> Mapping[str, Any]:
        """What was asked for."""
        return self.run.config

    @property
    def environment(self) -> Mapping[str, Any]:
        """Where it ran; a run that was copied without it has none."""
        return self.run.environment if (self.run.path / "environment.json").exists() else {}

    @property
    def verdict(self) -> str:
        """The outcome in a sentence."""
        return verdict(self.results)

    @property
    def headline(self) -> Speedup | None:
        """What the verdict speaks of."""
        return headline(self.results)

    @property
    def final(self) -> Final | None:
        """Where the verdict's method ended."""
        return self.results.final(self.headline.method) if self.headline else None

    @property
    def baseline_final(self) -> Final | None:
        """Where the baseline ended."""
        return self.results.final(self.results.baseline)

    @property
    def standing(self) -> str:
        """Whether the verdict is a win, a draw, a loss or a miss."""
        return wording.standing(self.headline) if self.headline else "same"

    @property
    def second(self) -> str:
        """What goes with the verdict: accuracy at the end, and how everyone else did."""
        found, own, base = self.headline, self.final, self.baseline_final
        if found is None or own is None or base is None:
            return ""
        return f"{wording.comparison(own, base)} {self._tally(found)}".strip()

    @property
    def cautions(self) -> list[str]:
        """What a reader must know before believing anything."""
        return list(self._cautions())

    @property
    def command(self) -> str:
        """How to repeat the run: as it was started, or from its own configuration."""
        given = str(self.environment.get("command", ""))
        if given.startswith("dropmuon ") and "--resume" not in given:
            return given
        return "dropmuon compare --config config.json"

    def targets(self, split: Split, unit: Unit, method: str) -> list[tuple[list[str], str]]:
        """A row of the table of targets: the lines of each cell, and how it stands."""
        base = method == self.results.baseline
        row: list[tuple[list[str], str]] = []
        for target in self.results.targets:
            found = self.results.speedup(method, target, split, unit)
            good = "" if base or found is None else wording.standing(found)
            shown = wording.cell(found, baseline=base, separator="\n")
            row.append((shown.split("\n"), good))
        return row

    def _tally(self, found: Speedup) -> str:
        key = (found.target, found.split, found.unit)
        others = [
            each
            for each in self.results.speedups
            if (each.target, each.split, each.unit) == key
            and each.method not in {found.method, self.results.baseline}
        ]
        words = {
            "sooner": "sooner",
            "same": "no different",
            "later": "later",
            "missed": "not at all",
        }
        groups_ = {
            word: [e.method for e in others if wording.standing(e) == word] for word in words
        }
        parts = [f"{', '.join(names)} {words[word]}" for word, names in groups_.items() if names]
        return f"The others got there: {'; '.join(parts)}." if parts else ""

    def _cautions(self) -> Iterator[str]:
        scale = float(self.config.get("scale") or 1.0)
        if scale < 1:
            yield (
                f"This run is shrunk to scale {scale:g}: fewer channels and epochs than the "
                "original, so its numbers are not those of the full experiment."
            )
        open_trials = len(self.results.unfinished)
        if open_trials:
            yield (
                f"Unfinished: {open_trials} of {self.results.planned} trials have not gone through "
                "all epochs. What they miss now they may still reach."
            )
        if len(self.config.get("seeds", [])) == 1:
            yield "One seed only: there are no intervals, and luck cannot be told from merit."
        load, cores = self.results.load, _cores(self.environment)
        if load is not None and cores and load.mean > _BUSY * cores:
            yield (
                f"The machine was busy with other work: a load of {load.mean:.1f} on {cores} "
                f"{'core' if cores == 1 else 'cores'}. Trust operations more than seconds."
            )


def _cores(environment: Mapping[str, Any]) -> int | None:
    known = (environment.get(key) for key in ("cores", "cpus", "cpu_count", "processors"))
    return next((value for value in known if isinstance(value, int) and value > 0), None)


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dropmuon.lab.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": wording.value, "stressed": _stressed, "unbroken": _unbroken}
    environment.globals["raw"] = lambda name: Markup(_part(environment, name))
    return environment.get_template("report.html.j2")


def _part(environment: jinja2.Environment, name: str) -> str:
    """A file beside the template, as it is."""
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _unbroken(text: str) -> str:
    """No line may end between a number and its percent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _stressed(text: str) -> Markup:
    """The sentence with its first ratio marked."""
    escaped = str(escape(_unbroken(text)))
    return Markup(re.sub(r"(\b\d+\.\d\dx)", r"<em>\1</em>", escaped, count=1))
