"""Running a race: one comparison after the other, from the smallest budget to the largest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dropmuon.lab.config import Config
from dropmuon.lab.ladder import LADDER, RaceDirectory, checked_ladder
from dropmuon.lab.race.progress import Progress
from dropmuon.lab.run import RunDirectory, check_same
from dropmuon.lab.train.compare import compare as run_comparison
from dropmuon.lab.watch import Watcher, Watchers

__all__ = ["race", "rung_config"]


class Comparison(Protocol):
    """What runs one rung: `compare`, or a function with the same arguments."""

    def __call__(
        self, config: Config, out: Path, *, resume: bool, watcher: Watcher
    ) -> RunDirectory: ...


def race(
    config: Config,
    out: Path,
    *,
    ladder: Iterable[float] = LADDER,
    resume: bool = False,
    progress: Progress | None = None,
    watcher_of: Callable[[Path], Watcher] = lambda path: Watcher(),
    compare: Comparison = run_comparison,
) -> RaceDirectory:
    """Run a race into a directory; an interrupted one can be resumed from there.

    Args:
        config: the settings at a budget of 1.
        out: the directory of the race.
        ladder: the budgets, as multiples of that one.
        resume: continue the race in `out`, with the rung that was interrupted.
        progress: is told what is done.
        watcher_of: makes the watcher of a rung from its directory.
        compare: runs one rung.

    Raises KeyboardInterrupt on Ctrl-C, with all finished work on disk. A race that a rung rejects
    before anything was trained leaves nothing behind.
    """
    rungs = checked_ladder(ladder)
    configs = {rung: rung_config(config, rung) for rung in rungs}
    found, made = RaceDirectory(out), [p for p in (out, *out.parents) if not p.exists()]
    if resume:
        check_same({"ladder": found.ladder}, {"ladder": rungs})
        check_same(Config.of(found.settings).to_json(), config.to_json())
    else:
        found.begin(rungs, config.to_json())
    progress = progress or Progress(rungs)
    progress.start(found.finished)
    try:
        for rung in rungs:
            if rung not in found.finished:
                run = found.rung(rung)
                watcher = Watchers([progress, watcher_of(run.path)])
                is_begun = (run.path / "config.json").exists()
                progress.enter(rung)
                compare(configs[rung], run.path, resume=is_begun, watcher=watcher)
                found.finish(rung)
                progress.leave(rung)
    except Exception:
        if not resume:
            _withdraw(found, made)
        raise
    return found


def rung_config(config: Config, rung: float) -> Config:
    """Return the settings at one of the budgets: so many times the epochs."""
    return replace(config, epochs=config.epochs * rung)


def _withdraw(race: RaceDirectory, made: Iterable[Path]) -> None:
    """Remove what a race has written if no rung has begun: its file, and directories made."""
    if any(race.path.glob("rung-*")):
        return
    race.withdraw()
    for path in made:
        with suppress(OSError):
            path.rmdir()
