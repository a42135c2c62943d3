"""Made-up races whose outcome is known: methods that are the baseline at another speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dropmuon.lab.ladder import LADDER, RaceDirectory
from dropmuon.lab.run import Evaluation
from tests.lab.synthetic_runs import LAYERS, run_config, write_run

SPEEDS = {"full": 1.0, "drop-muon:uniform": 0.8, "drop-muon:parts-4": 1.6}
COST = 8e12
"""Operations at a budget of 1; a second has 1e11 of them."""


def write_race(
    path: Path,
    speeds: Mapping[str, float] = SPEEDS,
    ladder: Sequence[float] = LADDER,
    seeds: int = 5,
    noise: float = 0.004,
    finished: int | None = None,
    clocks: Mapping[str, float] | None = None,
    diverged: tuple[str, ...] = (),
    luck: int = 1,
    **settings: Any,
) -> RaceDirectory:
    """A race in which a method at some cost does what the baseline does at `speed` times that.

    `finished` says how many rungs were, all by default; clocks are seconds of a method over those
    of the baseline at equal operations; a method in `diverged` has no loss on its first
    seed; luck seeds the noise. Shakespeare's losses are recorded in bits, too.
    """
    race, methods = RaceDirectory(path), tuple(speeds)
    settings = {"baseline": methods[0], **settings}
    race.begin(ladder, run_config(methods, range(seeds), 2, settings))
    rng = np.random.default_rng(luck)
    for place, rung in enumerate(ladder):
        run = write_run(race.rung(rung).path, methods, seeds, epochs=2, **settings)
        run.rewrite(
            evaluation
            for seed in range(seeds)
            for method, speed in speeds.items()
            for evaluation in _trial(
                method,
                seed,
                rung,
                speed,
                noise * rng.normal(),
                (clocks or {}).get(method, 1.0),
                method in diverged and seed == 0,
                settings.get("dataset") == "shakespeare",
            )
        )
        if finished is None or place < finished:
            race.finish(rung)
    return race


def loss_at(cost: float) -> float:
    """The baseline's loss at a cost, as a multiple of the budget."""
    return 0.25 + 0.28 * cost**-0.9


def _trial(
    method: str,
    seed: int,
    rung: float,
    speed: float,
    noise: float,
    clock: float,
    is_diverged: bool,
    is_text: bool,
) -> list[Evaluation]:
    found = []
    for part in range(9):
        done = part / 8
        progress = max(done, 0.02)
        loss = 2.3 + (loss_at(speed * rung) - 2.3) * progress**0.3 + (noise if done else 0.0)
        has_shares = "parts" in method
        found.append(
            Evaluation(
                method=method,
                seed=seed,
                step=round(400 * rung * speed * done),
                epoch=20 * rung * speed * done,
                seconds=COST / 1e11 * rung * done * clock,
                operations=COST * rung * done,
                train_accuracy=0.98 - 0.38 * loss / 2.3,
                train_loss=0.9 * loss,
                test_accuracy=0.96 - 0.38 * loss / 2.3,
                test_loss=None if is_diverged else loss,
                test_bits_per_byte=loss / math.log(2) if is_text and not is_diverged else None,
                load=1.0,
                shares=tuple(_shares(done)) if has_shares else (),
                noise=tuple(_noise(done)) if has_shares else (),
            )
        )
    return found


def _shares(done: float) -> list[float]:
    return [min(1.0, 0.125 * 2 ** round(3 * done * (1 + layer / 4))) for layer in range(3)] + [1.0]


def _noise(done: float) -> list[float | None]:
    if not done:
        return [None] * len(LAYERS)
    return [0.01 * (1 + layer) * 60**done for layer in range(len(LAYERS))]
