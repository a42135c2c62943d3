"""`dropmuon race`: the same methods at a ladder of budgets, for their speed at equal quality."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from dropmuon.checks import import_extra
from dropmuon.cli.compare import METHODS, add_settings, given, numbers
from dropmuon.lab.settings import Settings

__all__ = ["add"]

_INTERRUPTED = 130


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "race",
        help="compare methods at a ladder of budgets: how much faster at equal quality",
        description="Train with several methods at a ladder of budgets, and see how many times "
        "the cost the baseline needs for the quality that another method reaches.",
        epilog=METHODS,
    )
    parser.add_argument(
        "--config", type=Path, help="settings in a YAML, TOML or JSON file, or a race.json"
    )
    parser.add_argument(
        "--ladder",
        type=numbers,
        help="budgets as multiples of --epochs, ascending; default: 0.5,0.7,1,1.4,2",
    )
    add_settings(parser, fields(Settings))
    parser.set_defaults(run=_race)


def _race(options: argparse.Namespace) -> int:
    config = import_extra("dropmuon.lab.config", "lab")
    ladder = import_extra("dropmuon.lab.ladder", "lab")
    settings, rungs = _began_with(options, config, ladder)
    rungs = ladder.checked_ladder(rungs if options.ladder is None else options.ladder)
    chosen = config.Config.of(settings | given(options, settings.get("options")))
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
            watcher_of=_watchers(options.logger, race, progress),
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


def _watchers(names: list[str], race: Any, progress: Any) -> Callable[[Path], Any]:
    """Return a function that makes the loggers of a rung, and its display on a terminal."""
    watch = import_extra("dropmuon.lab.watch", "lab")
    console = import_extra("rich.console", "lab").Console(stderr=True)
    display = [race.RaceDisplay(console, progress)] if console.is_terminal else []
    return lambda path: watch.Watchers([*(watch.logger_named(n, path) for n in names), *display])


def _say(line: str) -> None:
    print(f"dropmuon: {line}", file=sys.stderr)
