"""`dropmuon plan package.module:factory`: recommend settings for a model."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from dropmuon.checks import import_extra

__all__ = ["add"]

_FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
_BAR_WIDTH = 30


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "plan", help="say whether parts, turns or a smaller batch pay for your model"
    )
    parser.add_argument(
        "factory", help="package.module:function that returns (model, loss, batches)"
    )
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--by", default="module", help="module or block")
    parser.add_argument("--policy", default="spectral")
    parser.add_argument("--steps", type=int, help="the number of steps that training will take")
    parser.add_argument(
        "--regime",
        help="compare by bounds of the theory instead: smooth, 1/eps, 1/eps^2 or stochastic",
    )
    parser.add_argument(
        "--budget", type=float, default=60.0, help="approximate time to spend, in seconds"
    )
    parser.add_argument("--updates-per-batch", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the plan to this JSON file")
    parser.add_argument("--figure", type=Path, help="write a figure to this PNG, SVG or PDF file")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    planning = import_extra("dropmuon.planning", "plan")
    for argument in ("out", "figure"):
        _check_writable(argument, getattr(options, argument))
    made = _made(options.factory)
    bar = _Bar(sys.stderr) if sys.stderr.isatty() else None
    try:
        with _naming(options.factory, let_through=ValueError):
            found = planning.plan(
                *made,
                lr=options.lr,
                by=options.by,
                policy=options.policy,
                steps=options.steps,
                regime=options.regime,
                budget=options.budget,
                updates_per_batch=options.updates_per_batch,
                seed=options.seed,
                on_progress=bar,
            )
    finally:
        if bar is not None:
            bar.close()
    print(found)
    if options.out is not None:
        found.save(options.out)
    if options.figure is not None:
        found.plot(options.figure)
    return 0


def _check_writable(argument: str, path: Path | None) -> None:
    """Raise ValueError before the work begins if its result could not be written."""
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--{argument} {path} cannot be written: its directory does not exist")
    if argument == "figure" and path.suffix.lower() not in _FIGURE_SUFFIXES:
        raise ValueError(f"--figure must end in {', '.join(_FIGURE_SUFFIXES)}, got {path}")


def _made(factory: str) -> tuple[Any, Any, Any]:
    """Import `package.module:function`, call it, and check what it returned."""
    module_name, colon, name = factory.partition(":")
    if not (module_name and colon and name) or module_name.startswith("."):
        raise ValueError(f"factory must be written package.module:function, got {factory!r}")
    sys.path.insert(0, str(Path.cwd()))
    with _naming(factory):
        found: Any = importlib.import_module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"factory {factory!r} cannot be found: {module_name} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"factory {factory!r} must be a function, got {type(found).__name__}")
    with _naming(factory):
        made = found()
    if not isinstance(made, tuple) or len(made) != 3:
        size = f" of {len(made)}" if isinstance(made, tuple) else ""
        raise ValueError(
            f"factory {factory!r} must return (model, loss, batches), "
            f"got {type(made).__name__}{size}"
        )
    return made


@contextmanager
def _naming(factory: str, let_through: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Turn exceptions of the user's own code into one line that names the factory."""
    try:
        yield
    except let_through:
        raise
    except (Exception, SystemExit) as error:
        kind = type(error).__name__
        raise ValueError(f"factory {factory!r} failed: {kind}: {error}") from error


class _Bar:
    """A progress bar of the current stage, redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._stage = stream, ""

    def __call__(self, stage: str, share: float) -> None:
        """Show the share of the stage that is done."""
        if stage != self._stage:
            self.close()
            self._stage = stage
        filled = round(_BAR_WIDTH * share)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        self._stream.write(f"\r{stage:24} [{bar}] {share:4.0%}")
        self._stream.flush()

    def close(self) -> None:
        """End the line, if there is one."""
        if self._stage:
            self._stream.write("\n")
            self._stage = ""
