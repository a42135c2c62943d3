"""A report in one file: no network or scripts needed, light and dark, for screen and print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from dropmuon.lab.analysis import Results, headline, summarize, verdict, wording
from dropmuon.lab.analysis.equal_budget import distinct, tasks
from dropmuon.lab.analysis.metrics import Final, Speedup
from dropmuon.lab.analysis.series import SPLITS, UNITS, Split, Unit
from dropmuon.lab.analysis.wording import headings, overall, task_title, winner
from dropmuon.lab.report.drawing import COLORS, Palette
from dropmuon.lab.report.run_charts import RunCharts
from dropmuon.lab.run import RunDirectory
from dropmuon.output import write_text

__all__ = ["Section", "busy", "template", "write_report"]

_MOST_WITH_CHARTS = 16
"""Further runs have tables only, or the file would be too large to open."""

_BASELINES = ("full", "muon")
"""Methods that have the baseline's colour; runs of earlier versions have the second name."""

_BUSY = 1.25
"""Load per core above which times cannot be trusted; training alone makes it about 1."""


def write_report(runs: Sequence[RunDirectory], path: Path) -> None:
    """Write one page about one run, or about several with an overview first."""
    if not runs:
        raise ValueError("runs must hold at least one run directory, got none")
    runs = distinct(runs)
    found = [(run, summarize(run)) for run in runs]
    methods = list(dict.fromkeys(method for _, results in found for method in results.methods))
    usual = (name for name in _BASELINES if name in methods)
    palette = Palette(methods, next(usual, found[0][1].baseline))
    css = {method: f"m{palette.place(method)} k{i}" for i, method in enumerate(methods)}
    sections = [
        Section(run, results, RunCharts(run, results, css) if i < _MOST_WITH_CHARTS else None)
        for i, (run, results) in enumerate(found)
    ]
    compared = tasks(runs) if len(runs) > 1 else []
    page = template("report.html.j2").render(
        sections=sections,
        first=sections[0],
        tasks=compared,
        headings=headings(compared),
        winner=winner,
        overall=overall(compared),
        methods=methods,
        css=css,
        colors=COLORS,
        splits=SPLITS,
        units=UNITS,
        word=wording,
    )
    write_text(path, page)


@dataclass(frozen=True)
class Section:
    """The part of the page about one run."""

    run: RunDirectory
    results: Results
    charts: RunCharts | None

    @property
    def title(self) -> str:
        """The title that the run was given, or else its task."""
        return str(self.run.config.get("title") or self.task)

    @property
    def task(self) -> str:
        """Data and model in a few words."""
        return task_title(self.run.config)

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.run.path.resolve().name

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of the run."""
        return self.run.config

    @property
    def environment(self) -> Mapping[str, Any]:
        """Where it ran; empty for a run that was copied without this file."""
        return self.run.environment if (self.run.path / "environment.json").exists() else {}

    @property
    def verdict(self) -> str:
        """The outcome in a sentence."""
        return verdict(self.results)

    @property
    def headline(self) -> Speedup | None:
        """The speed-up that the verdict is about."""
        return headline(self.results)

    @property
    def final(self) -> Final | None:
        """The final state of the verdict's method."""
        return self.results.final(self.headline.method) if self.headline else None

    @property
    def baseline_final(self) -> Final | None:
        """The final state of the baseline."""
        return self.results.final(self.results.baseline)

    @property
    def standing(self) -> str:
        """Whether the verdict is a win, a draw, a loss or a miss."""
        return wording.standing(self.headline) if self.headline else "same"

    @property
    def second(self) -> str:
        """A second sentence after the verdict: final quality, and how the other methods did."""
        found, own, base = self.headline, self.final, self.baseline_final
        if found is None or own is None or base is None:
            return ""
        return f"{wording.comparison(own, base)} {self._tally(found)}".strip()

    @property
    def cautions(self) -> list[str]:
        """What a reader must know before trusting the numbers."""
        return list(self._cautions())

    @property
    def command(self) -> str:
        """The command that repeats the run: the recorded one, or one from its own settings."""
        given = str(self.environment.get("command", ""))
        if given.startswith("dropmuon ") and "--resume" not in given:
            return given
        return "dropmuon compare --config config.json"

    def targets(self, split: Split, unit: Unit, method: str) -> list[tuple[list[str], str]]:
        """Return a row of the table of targets: the lines of each cell, and its standing."""
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
        labels = {
            "sooner": "faster",
            "same": "about as fast",
            "later": "slower",
            "missed": "missed it",
        }
        methods = {
            standing: [each.method for each in others if wording.standing(each) == standing]
            for standing in labels
        }
        parts = [f"{', '.join(names)} {labels[key]}" for key, names in methods.items() if names]
        return f"The other methods: {'; '.join(parts)}." if parts else ""

    def _cautions(self) -> Iterator[str]:
        scale = float(self.config.get("scale") or 1.0)
        if scale < 1:
            yield (
                f"This run is scaled down to {scale:g}: it has fewer channels and epochs than the "
                "original, so its numbers are not those of the full experiment."
            )
        open_trials = len(self.results.unfinished)
        if open_trials:
            yield (
                f"Unfinished: {open_trials} of {self.results.planned} trials have not completed "
                "all epochs. They may still reach targets that they miss now."
            )
        if len(self.config.get("seeds", [])) == 1:
            yield "One seed only: there are no intervals, and any difference may be luck."
        if self.results.load is not None:
            yield from busy(self.results.load.mean, self.environment)


def busy(load: float, environment: Mapping[str, Any]) -> Iterator[str]:
    """Yield a caution if the machine had other work to do."""
    known = (environment.get(key) for key in ("cores", "cpus", "cpu_count", "processors"))
    cores = next((value for value in known if isinstance(value, int) and value > 0), None)
    if cores and load > _BUSY * cores:
        yield (
            f"The machine was busy with other work: a load of {load:.1f} on {cores} "
            f"{'core' if cores == 1 else 'cores'}. Trust operations more than seconds."
        )


def template(name: str) -> jinja2.Template:
    """Return one of the templates, with what all of them use."""
    loader = jinja2.PackageLoader("dropmuon.lab.report", "templates")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": wording.value, "stressed": _stressed, "unbroken": _unbroken}
    environment.globals["raw"] = lambda name: Markup(loader.get_source(environment, name)[0])
    return environment.get_template(name)


def _unbroken(text: str) -> str:
    """Keep a number and its percent sign on one line."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _stressed(text: str) -> Markup:
    """Return the sentence with its first ratio emphasised."""
    escaped = str(escape(_unbroken(text)))
    return Markup(
        re.sub(
            r"((?:more than |less than )?\b\d+\.\d\d(?:x| times))", r"<em>\1</em>", escaped, count=1
        )
    )
