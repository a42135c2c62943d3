"""The paper's experiments, whole and shrunk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dropmuon.lab.experiments import EXPERIMENTS, experiment


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_are_the_papers_at_full_size(name: str) -> None:
    config = experiment(name)
    assert (config.lr, config.momentum, config.scale, config.model) == (0.1, 0.5, 1.0, "cnn")
    assert config.batch_norm == (name == "cifar10")
    sizes = {"mnist": 8192, "fashion-mnist": 32768, "cifar10": 8192}
    assert config.batch_size == sizes[name]


def test_scale_shrinks_channels_and_epochs_and_is_kept() -> None:
    config = replace(experiment("cifar10", 0.25), seeds=(0,))
    assert (config.channels, config.epochs, config.scale) == ((32, 64, 128), 12, 0.25)
    assert config.seeds == (0,)
    least = experiment("mnist", 0.001)
    assert (least.channels, least.epochs) == ((4, 4, 4), 2)


@pytest.mark.parametrize("scale", [0, -1, 1.5, float("nan")])
def test_a_scale_that_shrinks_nothing_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be in"):
        experiment("mnist", scale)


def test_an_unknown_experiment_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        experiment("cifar")
