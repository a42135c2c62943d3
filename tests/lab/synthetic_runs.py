"""Made-up run directories that look like those of real comparisons."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dropmuon.lab.analysis.metrics import Speedup
from dropmuon.lab.analysis.series import Unit
from dropmuon.lab.run import Evaluation, RunDirectory

LAYERS = ["conv1", "conv2", "conv3", "head"]
METHODS = ("muon", "drop-muon:uniform", "drop-muon:epoch-shift", "drop-muon:nice-2", "adamw")

# Final train accuracy, epochs to two thirds of it, seconds and operations of a step.
CHARACTER = {
    "muon": (0.985, 1.3, 0.0196, 3.1e9),
    "drop-muon:uniform": (0.972, 1.55, 0.0134, 2.1e9),
    "drop-muon:epoch-shift": (0.981, 1.35, 0.0147, 2.3e9),
    "drop-muon:nice-2": (0.931, 2.4, 0.0163, 2.9e9),
    "adamw": (0.89, 2.9, 0.0171, 2.6e9),
}


def write_run(
    path: Path,
    methods: tuple[str, ...] = METHODS,
    seeds: int = 3,
    epochs: int = 10,
    stop: dict[tuple[str, int], int] | None = None,
    shift: float = 0.0,
    first_seed: int = 0,
    settings: dict[str, dict[str, Any]] | None = None,
    **config: Any,
) -> RunDirectory:
    """A comparison with two evaluations per epoch.

    stop says after how many evaluations a trial was interrupted, 0 being never begun; shift
    moves every accuracy; settings are what methods.json records as used, nothing by default.
    """
    path.mkdir(parents=True)
    run = RunDirectory(path)
    run.write(
        "config.json", run_config(methods, range(first_seed, first_seed + seeds), epochs, config)
    )
    run.write("environment.json", _environment())
    used = {method: {"settings": found} for method, found in (settings or {}).items()}
    run.write("methods.json", {m: _method(m) | used.get(m, {}) for m in methods})
    rng = np.random.default_rng(first_seed)
    for seed in range(first_seed, first_seed + seeds):
        for method in methods:
            trial = _trial(method, seed, epochs, shift, rng)
            for evaluation in trial[: (stop or {}).get((method, seed), len(trial))]:
                run.append(evaluation)
    return run


def in_bits(run: RunDirectory) -> RunDirectory:
    """The same run, as if its losses were of text."""
    found = list(run.evaluations())
    bits = (replace(e, test_bits_per_byte=(e.test_loss or 0.0) / math.log(2)) for e in found)
    run.rewrite(bits)
    return run


def speedup(
    ratio: float | None,
    low: float | None = None,
    high: float | None = None,
    reached: int = 3,
    unit: Unit = "seconds",
    baseline_reached: int = 3,
    compared: int | None = None,
) -> Speedup:
    """Make the speed-up of method a to 90 % train accuracy, on three seeds."""
    both = reached if compared is None else compared
    ratios = {} if ratio is None else dict.fromkeys(range(both), ratio)
    return Speedup(
        method="a",
        split="train",
        unit=unit,
        target=90.0,
        ratio=ratio,
        low=low,
        high=high,
        ratios=ratios,
        time=12.34,
        reached=reached,
        seeds=3,
        baseline_reached=baseline_reached,
        baseline_seeds=3,
    )


def _trial(
    method: str, seed: int, epochs: int, shift: float, rng: np.random.Generator
) -> list[Evaluation]:
    top, pace, seconds, operations = CHARACTER.get(method, (0.95, 2.0, 0.015, 2.4e9))
    pace, top = pace * rng.uniform(0.9, 1.1), top + rng.uniform(-0.006, 0.006) + shift
    evaluations, clock, work = [], 0.0, 0.0
    chance = cutoffs(method, 0.5)
    for index in range(2 * epochs + 1):
        epoch, steps = index / 2, 20 if index else 0
        clock += steps * seconds * rng.uniform(0.92, 1.12)
        work += steps * operations * rng.uniform(0.99, 1.01)
        grown = 1 - math.exp(-epoch / pace)
        train = 0.1 + (top - 0.1) * grown + (rng.normal(0, 0.008) if index else 0.0)
        drawn = rng.multinomial(steps, cutoffs(method, epoch / epochs)) if chance else []
        evaluations.append(
            Evaluation(
                method=method,
                seed=seed,
                step=20 * index,
                epoch=epoch,
                seconds=clock,
                operations=work,
                train_accuracy=min(max(train, 0.0), 1.0),
                train_loss=2.3 * (1 - grown) + 0.05,
                test_accuracy=min(max(train - 0.05 * grown, 0.0), 1.0),
                test_loss=2.3 * (1 - grown) + 0.25,
                moved=_moved(method, drawn, steps),
                cutoffs=tuple(int(count) for count in drawn),
                load=1.1 + 0.2 * rng.random(),
            )
        )
    return evaluations


def cutoffs(method: str, progress: float) -> list[float]:
    """P(cutoff = layer), nothing for a method that draws no cutoff."""
    if not method.startswith(("muon", "drop-muon")) or "nice" in method:
        return []
    if method == "muon":
        return [1.0, 0.0, 0.0, 0.0]
    if "epoch-shift" not in method:
        return [0.25] * 4
    weights = [math.exp(0.9 * ((1 - progress) * (3 - i) + progress * i)) for i in range(4)]
    return [weight / sum(weights) for weight in weights]


def _moved(method: str, drawn: Any, steps: int) -> tuple[int, ...]:
    if "nice" in method:
        return (steps // 2,) * 4
    return tuple(int(count) for count in np.cumsum(drawn)) if len(drawn) else ()


def _method(method: str) -> dict[str, Any]:
    progress = [step / 20 for step in range(21)]
    chances = [cutoffs(method, each) for each in progress]
    known = bool(chances[0])
    layered = known or "nice" in method
    return {
        "layers": LAYERS if layered else [],
        "optimizer": f"DropMuon(sampler={method})" if layered else "AdamW(lr=0.001)",
        "sampler": f"Progressive({method.rsplit(':', maxsplit=1)[-1]})" if known else None,
        "progress": progress if known else [],
        "cutoff": chances if known else [],
        "moves": [list(np.cumsum(row)) for row in chances] if known else [],
    }


def run_config(
    methods: tuple[str, ...], seeds: range, epochs: int, changes: dict[str, Any]
) -> dict[str, Any]:
    """The settings of such a run."""
    return {
        "format": 1,
        "dataset": "fashion-mini",
        "model": "cnn",
        "channels": [16, 32, 64],
        "batch_norm": False,
        "batch_size": 512,
        "epochs": epochs,
        "seeds": list(seeds),
        "methods": list(methods),
        "options": {},
        "baseline": "muon" if "muon" in methods else methods[0],
        "targets": [60.0, 70.0, 80.0, 90.0, 95.0],
        "lr": 0.1,
        "momentum": 0.5,
        "evaluations_per_epoch": 2,
        "train_examples": 10000,
        "augment": False,
        "device": "cpu",
        "threads": None,
        "scale": 1.0,
        "title": "",
    } | changes


def _environment() -> dict[str, Any]:
    return {
        "python": "3.11.9",
        "torch": "2.9.0",
        "dropmuon": "0.1.0",
        "platform": "Linux",
        "processor": "a processor of two cores",
        "cores": 2,
        "started": "2025-11-16T01:00:00+00:00",
    }
