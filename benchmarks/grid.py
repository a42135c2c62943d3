"""How well was a race tuned? The loss on its validation part over a grid of settings.

    python benchmarks/grid.py mnist 0.5 full --lr 0.1,0.2 --momentum 0,0.3,0.5

Names a race of docs/results/races, one of its budgets and a method. Prints a line per momentum, and
per learning rate of AdamW where some are given: the loss by learning rate, on the first seed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path

from dropmuon.lab import data
from dropmuon.lab.config import Config
from dropmuon.lab.ladder import RaceDirectory
from dropmuon.lab.train.equal_terms import initial_model, measured_budget, without_validation
from dropmuon.lab.train.trial import Trial, measured

RACES = Path(__file__).parents[1] / "docs/results/races"


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("race")
    parser.add_argument("rung", type=float)
    parser.add_argument("method")
    parser.add_argument("--lr", type=numbers, required=True)
    parser.add_argument("--momentum", type=numbers, required=True)
    parser.add_argument("--adamw-lr", type=numbers, default=[None])
    options = parser.parse_args()
    settings = RaceDirectory(RACES / options.race).settings
    if settings["init"]:
        parser.error(f"race {options.race} starts from trained weights, and a grid from new ones")
    config = Config.of({**settings, "epochs": settings["epochs"] * options.rung, "seeds": [0]})
    found = data.load(config.dataset, context=config.context, classes=config.classes)
    part = without_validation(found, config.validation)
    budget, initial = measured_budget(config, part), initial_model(config, part, 0)
    method = config.method(options.method)
    for adamw_lr, momentum in product(options.adamw_lr, options.momentum):
        own = {**method.options, "momentum": momentum}
        own |= {} if adamw_lr is None else {"adamw_lr": adamw_lr}
        losses, steps = {}, 0
        for lr in options.lr:
            tried = replace(method, options={**own, "lr": lr})
            trial = Trial(config, tried, 0, part, initial, budget)
            trial.advance(1.0)
            losses[lr], steps = round(measured(trial.model, part.test)[1], 4), trial.step
        where = f"{options.race} {options.rung} {options.method} steps {steps}"
        print(f"{where} adamw {adamw_lr} mom {momentum} {losses}", flush=True)


if __name__ == "__main__":
    main()
