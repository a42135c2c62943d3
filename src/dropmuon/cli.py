"""The command line: `dropmuon plan package.module:factory`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dropmuon.version import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; one clear line and exit code 2 for whatever a user can get wrong."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, TypeError, ImportError, OSError) as error:
        print(f"dropmuon: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dropmuon: stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dropmuon", description="Update fewer layers.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="command")
    plan = commands.add_parser("plan", help="say whether and how it pays on your model")
    plan.add_argument("factory", help="package.module:function that returns (model, loss, batches)")
    plan.add_argument("--lr", type=float, default=0.1)
    plan.add_argument("--by", default="module", help="module or block")
    plan.add_argument("--policy", default="spectral")
    plan.add_argument("--budget", type=float, default=60.0, help="seconds to spend, about")
    plan.add_argument("--updates-per-batch", type=int, default=2)
    plan.add_argument("--seed", type=int, default=0)
    plan.add_argument("--out", type=Path, help="write the plan to this file (JSON)")
    plan.add_argument("--figure", type=Path, help="write the figure to this file (PNG, SVG, PDF)")
    plan.set_defaults(run=_plan)
    return parser


def _plan(options: argparse.Namespace) -> int:
    planning = importlib.import_module("dropmuon.planning")
    model, loss, batches = _made(options.factory)
    found = planning.plan(
        model,
        loss,
        batches,
        lr=options.lr,
        by=options.by,
        policy=options.policy,
        budget=options.budget,
        updates_per_batch=options.updates_per_batch,
        seed=options.seed,
        on_progress=_bar() if sys.stderr.isatty() else None,
    )
    print(found)
    if options.out is not None:
        found.save(options.out)
    if options.figure is not None:
        found.plot(options.figure)
    return 0


def _made(factory: str) -> tuple[Any, Any, Any]:
    """Import `package.module:function`, call it, and check what it returned."""
    module_name, colon, name = factory.partition(":")
    if not (module_name and colon and name):
        raise ValueError(f"factory must be written package.module:function, got {factory!r}")
    sys.path.insert(0, str(Path.cwd()))
    module = importlib.import_module(module_name)
    if not hasattr(module, name):
        raise ValueError(f"factory {factory!r} cannot be found: {module_name} has no {name!r}")
    made = getattr(module, name)()
    if not isinstance(made, tuple) or len(made) != 3:
        raise ValueError(
            f"factory {factory!r} must return (model, loss, batches), got {type(made).__name__}"
        )
    return made


def _bar() -> Any:
    width = 30

    def show(what: str, share: float) -> None:
        filled = round(width * share)
        end = "\n" if share >= 1 else ""
        text = f"\r{what:24} [{'#' * filled}{'.' * (width - filled)}] {share:4.0%}"
        print(text, end=end, file=sys.stderr, flush=True)

    return show


if __name__ == "__main__":
    sys.exit(main())
