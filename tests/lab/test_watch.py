"""Loggers: what they are told, and what happens when they fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dropmuon.lab.config import Config
from dropmuon.lab.run import Evaluation
from dropmuon.lab.watch import logger_named


def evaluation(step: int, seed: int = 0) -> Evaluation:
    loss = None if step == 10 else 1.5
    return Evaluation("drop-muon:uniform", seed, step, step / 10, 0.5, 1e6, 0.25, loss, 0.125, 2.0)


def test_tensorboard_keeps_a_run_per_method_and_seed(tmp_path: Path) -> None:
    logger = logger_named("tensorboard", tmp_path)
    logger.begin(Config(), 20)
    for seed in (0, 1):
        for step in (0, 10, 20):
            logger.evaluated(evaluation(step, seed))
    logger.end()
    for seed in (0, 1):
        found = EventAccumulator(str(tmp_path / "tensorboard/drop-muon%3Auniform" / f"seed{seed}"))
        found.Reload()
        accuracies = found.Scalars("test/accuracy")
        assert [(each.step, each.value) for each in accuracies] == [(s, 0.125) for s in (0, 10, 20)]
        assert [each.step for each in found.Scalars("train/loss")] == [0, 20]


def test_an_unknown_logger_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'wandb'"):
        logger_named("wanb", tmp_path)


def broken(logger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("no route to the server")

    monkeypatch.setattr(logger, "_log", fail)


def test_a_logger_that_never_worked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logger_named("tensorboard", tmp_path)
    broken(logger, monkeypatch)
    with pytest.raises(OSError, match="logger tensorboard failed: ConnectionError: no route"):
        logger.evaluated(evaluation(0))
    logger.end()


def test_a_logger_that_fails_later_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logger_named("tensorboard", tmp_path)
    logger.evaluated(evaluation(0))
    broken(logger, monkeypatch)
    with pytest.warns(UserWarning, match="training continues without it"):
        logger.evaluated(evaluation(10))
    logger.evaluated(evaluation(20))
    logger.end()
