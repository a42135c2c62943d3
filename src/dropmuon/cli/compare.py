"""`dropmuon compare` and `dropmuon reproduce`: methods side by side, on real data."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from dropmuon.cli.extras import Commands, needed

__all__ = ["add"]

_INTERRUPTED = 130
_METHODS = (
    "methods: muon; drop-muon:KIND with uniform, linear, quadratic, exponential, epoch-shift, "
    "planned, nice-TAU, submodel-TAU or random-subset; scion; adamw; sgd"
)


def add(commands: Commands) -> None:
    """Add both commands."""
    compare = commands.add_parser(
        "compare",
        help="train with several methods side by side and see who is first",
        description="Train with several methods side by side and see who is first. Without "
        "arguments: Muon and two kinds of Drop-Muon on the embedded data.",
        epilog=_METHODS,
    )
    compare.add_argument("--config", type=Path, help="settings in a YAML, TOML or JSON file")
    compare.add_argument(
        "--dataset",
        help="fashion-mini (default), mnist, fashion-mnist, cifar10, digits or shakespeare",
    )
    compare.add_argument("--model", help="cnn (default), mlp, resnet18 or gpt")
    compare.add_argument("--channels", type=_whole_numbers, help="widths, such as 64,128,256")
    compare.add_argument("--batch-norm", action="store_true", default=None, help="in cnn, mlp")
    compare.add_argument("--augment", action="store_true", default=None, help="shift, flip")
    compare.add_argument("--context", type=int, help="bytes per example, of texts")
    compare.add_argument("--title", help="of the report")
    _add_shared(compare)
    compare.set_defaults(run=_compare)
    reproduce = commands.add_parser("reproduce", help="the paper's experiments", epilog=_METHODS)
    reproduce.add_argument("experiment", help="mnist, fashion-mnist, cifar10 or all")
    reproduce.add_argument("--scale", type=float, default=1.0, help="shrinks channels and epochs")
    _add_shared(reproduce)
    reproduce.set_defaults(run=_reproduce)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    """Settings that both commands accept."""
    parser.add_argument("--methods", type=_names, help="comma-separated, such as muon,adamw")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=_seeds, help="how many, or which: 5 or 0,7")
    parser.add_argument("--targets", type=_numbers, help="accuracies in percent: 60,70,80")
    parser.add_argument(
        "--lr", action="append", default=[], help="0.1 for muon and drop-muon; METHOD=0.01 for one"
    )
    parser.add_argument("--momentum", type=float)
    parser.add_argument("--policy", help="norm per parameter: spectral, muon, scion, ...")
    parser.add_argument("--evaluations-per-epoch", type=int, help="more make times finer")
    parser.add_argument("--train-examples", type=int, help="how many an evaluation looks at")
    parser.add_argument("--plan-budget", type=float, help="seconds, for drop-muon:planned")
    parser.add_argument("--device", help="cpu, cuda, mps")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="directory of the run; runs/NAME by default")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--logger", action="append", default=[], help="tensorboard, wandb, mlflow")


def _compare(options: argparse.Namespace) -> int:
    config_room = needed("dropmuon.lab.config", "lab")
    if options.resume:
        if options.out is None:
            raise ValueError("--resume needs --out, the directory of the run to go on with")
        records = needed("dropmuon.lab.run", "lab")
        settings = records.RunDirectory(options.out).config
    else:
        settings = {} if options.config is None else config_room.read_settings(options.config)
    names = ("dataset", "model", "channels", "batch_norm", "augment", "context", "title")
    settings |= _given(options, names) | _shared(options, settings)
    config = config_room.Config.of(settings)
    out = options.out or _default_out(config.dataset)
    return _run(config, out, options, resume=options.resume)


def _reproduce(options: argparse.Namespace) -> int:
    experiments = needed("dropmuon.lab.experiments", "lab")
    everything = options.experiment == "all"
    chosen = list(experiments.EXPERIMENTS) if everything else [options.experiment]
    for name in chosen:
        plain = experiments.experiment(name, options.scale)
        settings = plain.to_json()
        config = type(plain).of(settings | _shared(options, settings))
        out = Path("runs") / "paper" / name
        if options.out is not None:
            out = options.out / name if everything else options.out
        begun = (out / "config.json").exists()
        code = _run(config, out, options, resume=options.resume and (begun or not everything))
        if code:
            return code
    return 0


def _run(config: Any, out: Path, options: argparse.Namespace, *, resume: bool) -> int:
    """Run a comparison with whoever watches, then close it with tables, figures and a report."""
    compare = needed("dropmuon.lab.train.compare", "lab")
    report = needed("dropmuon.lab.report", "lab")
    records = needed("dropmuon.lab.run", "lab")
    try:
        compare.compare(config, out, resume=resume, watcher=_watchers(out, options.logger))
        code = 0
    except KeyboardInterrupt:
        if not (out / "config.json").exists():
            raise
        print(
            f"dropmuon: stopped; go on with: dropmuon compare --resume --out {out}", file=sys.stderr
        )
        code = _INTERRUPTED
    run = records.RunDirectory(out)
    if run.evaluations():
        report.conclude(run, terminal=sys.stdout.isatty())
    return code


def _watchers(out: Path, names: list[str]) -> Any:
    """The loggers that were asked for, and a display where a person looks on."""
    loggers = needed("dropmuon.lab.watch.loggers", "lab")
    progress = needed("dropmuon.lab.watch.progress", "lab")
    console = needed("rich.console", "lab").Console(stderr=True)
    watchers = [loggers.logger_named(name, out) for name in names]
    if console.is_terminal:
        watchers.append(progress.Display(console))
    return needed("dropmuon.lab.watch.watcher", "lab").Watchers(watchers)


def _shared(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    names = (
        "methods",
        "batch_size",
        "epochs",
        "seeds",
        "targets",
        "momentum",
        "policy",
        "evaluations_per_epoch",
        "train_examples",
        "plan_budget",
        "device",
        "threads",
    )
    found = _given(options, names)
    own = {name: dict(values) for name, values in (settings.get("options") or {}).items()}
    for text in options.lr:
        method, equals, value = text.rpartition("=")
        number = _number(value, "--lr")
        if equals:
            own.setdefault(method, {})["lr"] = number
        else:
            found["lr"] = number
    return {**found, "options": own} if own else found


def _given(options: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    return {n: getattr(options, n) for n in names if getattr(options, n) is not None}


def _default_out(dataset: str) -> Path:
    return Path("runs") / f"{dataset}-{datetime.now():%Y%m%d-%H%M%S}"


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _seeds(text: str) -> int | list[int]:
    numbers = _whole_numbers(text)
    return numbers[0] if "," not in text else numbers


def _whole_numbers(text: str) -> list[int]:
    return [int(each) for each in _parsed(text, int, "whole numbers such as 1,2,3")]


def _numbers(text: str) -> list[float]:
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
