"""`dropmuon compare | reproduce | race`: train with methods side by side; `report` on runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from dropmuon.checks import import_extra
from dropmuon.lab.settings import Settings
from dropmuon.output import readable

__all__ = ["add"]

_INTERRUPTED = 130
_METHODS = (
    "methods: full (all layers at every step, the baseline); drop-muon:KIND with uniform, linear, "
    "quadratic, exponential, epoch-shift, progressive, adaptive, planned, nice-TAU, submodel-TAU, "
    "random-subset, turns-R, parts-M, parts-M:1/4 or parts-M:KIND; torch-muon (torch.optim.Muon "
    "and AdamW); scion; adamw; sgd. METHOD@512 has batches of 512"
)
_APART = frozenset({"lr", "options", "scale"})
"""Settings that are not plain options: `--lr` also sets options of methods, `--scale` shrinks."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the four commands."""
    compare = commands.add_parser(
        "compare",
        help="train with several methods side by side and see which is fastest",
        description="Train with several methods side by side and see which is fastest. Without "
        "arguments: all layers at every step and two kinds of Drop-Muon, on the embedded data, "
        "at equal cost.",
        epilog=_METHODS,
    )
    compare.add_argument("--config", type=Path, help="settings in a YAML, TOML or JSON file")
    _add_settings(compare, fields(Settings))
    compare.set_defaults(run=_compare)
    reproduce = commands.add_parser(
        "reproduce", help="repeat the paper's experiments", epilog=_METHODS
    )
    reproduce.add_argument(
        "experiment",
        help="mnist, fashion-mnist, cifar10, cifar10-plain (without batch norm) or all",
    )
    reproduce.add_argument("--scale", type=float, default=1.0, help="shrinks channels and epochs")
    _add_settings(reproduce, [each for each in fields(Settings) if not each.metadata["task"]])
    reproduce.set_defaults(run=_reproduce)
    report = commands.add_parser("report", help="write one page about a race, or about runs")
    report.add_argument("runs", nargs="+", type=Path, metavar="DIR")
    report.add_argument("--out", type=Path, help="default: report.html, in DIR for a race")
    report.set_defaults(run=_report)
    _add_race(commands)


def _add_race(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "race",
        help="train at a ladder of budgets: how much faster at equal quality",
        description="Train with several methods at a ladder of budgets, and see how many times "
        "the cost the baseline needs for the quality that another method reaches.",
        epilog=_METHODS,
    )
    parser.add_argument(
        "--config", type=Path, help="settings in a YAML, TOML or JSON file, or a race.json"
    )
    parser.add_argument(
        "--ladder",
        type=_numbers,
        help="budgets as multiples of --epochs, ascending; default: 0.5,0.7,1,1.4,2",
    )
    _add_settings(parser, fields(Settings))
    parser.set_defaults(run=_race)


def _add_settings(parser: argparse.ArgumentParser, settings: Sequence[Field[Any]]) -> None:
    """Add an option per setting, and the other options of all commands that train."""
    for each in settings:
        flag, meaning = f"--{each.name.replace('_', '-')}", each.metadata["meaning"]
        if each.name == "lr":
            parser.add_argument(flag, action="append", default=[], help=meaning)
        elif each.name in _APART:
            continue
        elif each.type == "bool":
            parser.add_argument(flag, action="store_true", default=None, help=meaning)
        else:
            parser.add_argument(flag, type=_reader(each), help=meaning)
    parser.add_argument("--out", type=Path, help="directory of the run; runs/NAME by default")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument(
        "--tune-cache",
        type=Path,
        help="directory of tuned settings, or a tuned run or race to take them from; inside --out "
        "by default",
    )
    parser.add_argument("--logger", action="append", default=[], help="tensorboard, wandb, mlflow")


def _compare(options: argparse.Namespace) -> int:
    config = import_extra("dropmuon.lab.config", "lab")
    if options.resume:
        if options.out is None:
            raise ValueError("--resume needs --out, the directory of the run to continue")
        settings = import_extra("dropmuon.lab.run", "lab").RunDirectory(options.out).config
    else:
        settings = {} if options.config is None else config.read_settings(options.config)
    chosen = config.Config.of(settings | _given(options, settings.get("options")))
    out = options.out or Path("runs") / f"{chosen.dataset}-{datetime.now():%Y%m%d-%H%M%S}"
    return _run(chosen, out, options, resume=options.resume)


def _reproduce(options: argparse.Namespace) -> int:
    config = import_extra("dropmuon.lab.config", "lab")
    everything = options.experiment == "all"
    names = list(config.EXPERIMENTS) if everything else [options.experiment]
    for name in names:
        paper = config.experiment(name, options.scale)
        chosen = config.as_printed(paper.changed(_given(options, paper.options)))
        out = Path("runs") / "paper" / name
        if options.out is not None:
            out = options.out / name if everything else options.out
        begun = (out / "config.json").exists()
        code = _run(chosen, out, options, resume=options.resume and (begun or not everything))
        if code:
            return code
    return 0


def _report(options: argparse.Namespace) -> int:
    print(import_extra("dropmuon.lab.report", "lab").report_on(options.runs, options.out))
    return 0


def _run(config: Any, out: Path, options: argparse.Namespace, *, resume: bool) -> int:
    """Run a comparison with its watchers, then write tables, figures and a report."""
    compare = import_extra("dropmuon.lab.train.compare", "lab")
    try:
        watcher = _watchers(out, options.logger)
        run = compare.compare(
            config, out, resume=resume, watcher=watcher, tuning=options.tune_cache
        )
        code = 0
    except KeyboardInterrupt:
        if not (out / "config.json").exists():
            raise
        print(
            f"dropmuon: stopped; continue with: dropmuon compare --resume --out {out}",
            file=sys.stderr,
        )
        run, code = import_extra("dropmuon.lab.run", "lab").RunDirectory(out), _INTERRUPTED
    if run.evaluations():
        _conclude(run)
    return code


def _conclude(run: Any) -> None:
    """Write results, figures and the report of a run, and print its tables."""
    import_extra("dropmuon.lab.report", "lab").conclude(run, terminal=sys.stdout.isatty())


def _watchers(out: Path, names: list[str]) -> Any:
    """Make the requested loggers, and a display if stderr is a terminal."""
    watch = import_extra("dropmuon.lab.watch", "lab")
    console = import_extra("rich.console", "lab").Console(stderr=True)
    watchers = [watch.logger_named(name, out) for name in names]
    if console.is_terminal:
        watchers.append(import_extra("dropmuon.lab.terminal", "lab").Display(console))
    return watch.Watchers(watchers)


def _given(
    options: argparse.Namespace, of_methods: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, Any]:
    """Return the settings that were given on the command line."""
    names = [each.name for each in fields(Settings) if each.name not in _APART]
    found = {n: getattr(options, n) for n in names if getattr(options, n, None) is not None}
    own = {name: dict(values) for name, values in (of_methods or {}).items()}
    for text in options.lr:
        method, equals, value = text.rpartition("=")
        number = _number(value, "--lr")
        if equals:
            own.setdefault(method, {})["lr"] = number
        else:
            found["lr"] = number
    return {**found, "options": own} if own else found


def _reader(setting: Field[Any]) -> Callable[[str], Any]:
    """Return the function that turns the text of an option into the value of a setting."""
    if setting.name == "seeds":
        return _seeds
    readers: dict[str, Callable[[str], Any]] = {
        "str": readable,
        "int": int,
        "int | None": int,
        "float": float,
        "tuple[str, ...]": _names,
        "tuple[int, ...]": _whole_numbers,
        "tuple[float, ...]": _numbers,
    }
    return readers[str(setting.type)]


def _names(text: str) -> list[str]:
    return [part.strip() for part in readable(text).split(",") if part.strip()]


def _seeds(text: str) -> int | list[int]:
    numbers = _whole_numbers(text)
    return numbers[0] if "," not in text else numbers


def _whole_numbers(text: str) -> list[int]:
    return [int(each) for each in _parsed(text, int, "whole numbers such as 1,2,3")]


def _numbers(text: str) -> list[float]:
    """Return the numbers of a comma-separated argument."""
    return [float(each) for each in _parsed(text, float, "numbers such as 60,70.5")]


def _parsed(text: str, kind: Callable[[str], Any], wanted: str) -> list[Any]:
    try:
        found = [kind(part) for part in _names(text)]
    except ValueError:
        found = []
    if not found:
        raise argparse.ArgumentTypeError(f"must be {wanted}, got {text!r}")
    return found


def _number(text: str, argument: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{argument} must be a number or METHOD=number, got {text!r}") from None


def _race(options: argparse.Namespace) -> int:
    config = import_extra("dropmuon.lab.config", "lab")
    ladder = import_extra("dropmuon.lab.ladder", "lab")
    settings, rungs = _began_with(options, config, ladder)
    rungs = ladder.checked_ladder(rungs if options.ladder is None else options.ladder)
    chosen = config.Config.of(settings | _given(options, settings.get("options")))
    out = options.out or Path("runs") / f"race-{chosen.dataset}-{datetime.now():%Y%m%d-%H%M%S}"
    race = import_extra("dropmuon.lab.race", "lab")
    progress = race.Progress(rungs, _say)
    try:
        race.race(
            chosen,
            out,
            ladder=rungs,
            resume=options.resume,
            progress=progress,
            watcher_of=_rung_watchers(options.logger, race, progress),
            compare=_comparison(options, out),
        )
        code = 0
    except KeyboardInterrupt:
        if not ladder.RaceDirectory(out).exists():
            raise
        print(
            f"dropmuon: stopped; continue with: dropmuon race --resume --out {out}",
            file=sys.stderr,
        )
        code = _INTERRUPTED
    race.conclude_race(ladder.RaceDirectory(out), terminal=sys.stdout.isatty())
    return code


def _began_with(options: argparse.Namespace, config: Any, ladder: Any) -> tuple[Any, Any]:
    """Return settings and ladder of the race to resume, of the file given, or the defaults."""
    if options.resume:
        if options.out is None:
            raise ValueError("--resume needs --out, the directory of the race to continue")
        race = ladder.RaceDirectory(options.out)
        return race.settings, race.ladder
    found = {} if options.config is None else config.read_settings(options.config)
    if "ladder" in found:
        return found.get("settings", {}), found["ladder"]
    return found, ladder.LADDER


def _comparison(options: argparse.Namespace, out: Path) -> Any:
    """Return what runs a rung; all rungs share a cache of tuned settings, if any are tuned."""
    compare = import_extra("dropmuon.lab.train.compare", "lab").compare
    return partial(compare, tuning=options.tune_cache or out / "tuning")


def _rung_watchers(names: list[str], race: Any, progress: Any) -> Callable[[Path], Any]:
    """Return a function that makes the loggers of a rung, and its display on a terminal."""
    watch = import_extra("dropmuon.lab.watch", "lab")
    console = import_extra("rich.console", "lab").Console(stderr=True)
    display = [race.RaceDisplay(console, progress)] if console.is_terminal else []
    return lambda path: watch.Watchers([*(watch.logger_named(n, path) for n in names), *display])


def _say(line: str) -> None:
    print(f"dropmuon: {line}", file=sys.stderr)
