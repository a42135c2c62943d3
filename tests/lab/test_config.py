"""Settings are checked before anything runs, and the paper's experiments are what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dropmuon.lab.config import EXPERIMENTS, Config, as_printed, experiment, read_settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"datset": "mnist"}, "setting must be one of .* did you mean 'dataset'"),
        ({"dataset": "minst"}, "did you mean 'mnist'"),
        ({"model": "resnet"}, "did you mean 'resnet18'"),
        ({"dataset": "shakespeare"}, "'cnn' takes images, and dataset 'shakespeare' has bytes"),
        ({"dataset": "cifar10", "model": "gpt"}, "'gpt' takes bytes"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": 12.5}, "batch_size must be a whole number"),
        ({"epochs": True}, "epochs must be a positive number, got True"),
        ({"epochs": None}, "epochs must be a positive number, got None"),
        ({"epochs": 0}, "epochs must be a positive number, got 0"),
        ({"epochs": float("inf")}, "epochs must be a positive number, got inf"),
        ({"budget": "flops"}, "budget must be one of epochs, ops, seconds, got 'flops'"),
        ({"schedule": "linaer"}, "schedule must be one of .* did you mean 'linear'"),
        ({"schedule": "wsd", "decay": 0}, "decay must be .* a schedule without an end"),
        ({"schedule": "wsd", "warm_up": 0.9}, "warm_up and decay must be at most 1 together"),
        ({"warm_up": 1.0}, r"warm_up must be a share of the budget in \[0, 1\), got 1.0"),
        ({"warm_up": "0.1"}, "warm_up must be a share"),
        ({"tune": -1}, "tune must be a whole number from 0 to 10000, got -1"),
        ({"tune": 5, "validation": 0}, "validation must be .* tuning needs a part to judge"),
        ({"tune": 5, "validation": 1}, r"validation must be a share .* in \(0, 1\), got 1"),
        ({"tune": 5, "tune_share": 0}, r"tune_share must be .* in \(0, 1\], got 0"),
        ({"tune_batch_size": True}, "tune_batch_size needs tuning, got tune=0; add --tune 20"),
        ({"methods": ["full", "full@tuned"]}, "method 'full@tuned' needs tuning, got tune=0"),
        ({"targets": [0]}, r"targets must be percentages in \(0, 100\], got 0"),
        ({"targets": [50, 101]}, "got 101"),
        ({"targets": 90}, "targets must be a list"),
        ({"targets": [float("nan")]}, "got nan"),
        ({"methods": []}, "methods must name at least one"),
        ({"methods": "full"}, "methods must be a list"),
        ({"methods": ["full", "full"]}, "got 'full' twice"),
        ({"seeds": 0}, "seeds must be a whole number from 1 to 10000, got 0"),
        ({"seeds": [-1]}, "seeds must be a whole number from 0 to .*, got -1; give 3 or 0,1,2"),
        ({"seeds": []}, "seeds must name at least one, got none"),
        ({"title": 3}, "title must be a string, got 3; quote it"),
        ({"seeds": [1, 1]}, "got 1 twice"),
        ({"lr": 0}, "lr must be a positive number"),
        ({"lr": float("inf")}, "lr must be a positive number"),
        ({"lr": "0.1"}, "lr must be a positive number, got '0.1'"),
        ({"momentum": 1}, "momentum must be in"),
        ({"scale": 2}, "scale must be in"),
        ({"channels": [8, -1]}, "channels must be a whole number of at least 1, got -1"),
        ({"channels": 8}, "channels must be a list"),
        ({"classes": [1, 2, 1]}, "classes must be distinct, got 1 twice"),
        ({"classes": [1]}, r"classes must be at least two, got \(1,\)"),
        (
            {"dataset": "shakespeare", "model": "gpt", "classes": [0, 1]},
            "classes must be left out for texts",
        ),
        ({"batch_norm": "yes"}, "batch_norm must be true or false"),
        ({"dataset": "shakespeare", "model": "gpt", "augment": True}, "augment must be off"),
        (
            {"device": "gpu"},
            "device must be a device of PyTorch, such as cpu, cuda or mps, got 'gpu'",
        ),
        ({"threads": 0}, "threads must be a whole number"),
        ({"options": {"adamw": {}}}, r"in options, or in --lr METHOD=RATE, must be one of"),
        ({"options": {"full": 3}}, "options of 'full' must be settings by name"),
        ({"options": [1]}, "options must be settings by method"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config.of(settings)


def test_settings_survive_json() -> None:
    config = Config.of({"methods": ["adamw", "fast"], "options": {"fast": {"base": "sgd"}}})
    assert Config.of(json.loads(json.dumps(config.to_json()))) == config
    assert config.baseline == "adamw"
    assert Config().baseline == "full"


def test_a_number_of_seeds_is_as_many_from_zero() -> None:
    assert Config.of({"seeds": 4}).seeds == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.yaml", "epochs: 3\noptions: {full: {lr: 0.2}}"),
        ("a.yml", "epochs: 3\noptions:\n  full:\n    lr: 0.2"),
        ("a.toml", "epochs = 3\n[options.full]\nlr = 0.2"),
        ("a.json", '{"epochs": 3, "options": {"full": {"lr": 0.2}}}'),
    ],
)
def test_settings_are_read_from_any_of_three_kinds_of_file(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    config = Config.of(read_settings(tmp_path / name))
    assert config.epochs == 3
    assert config.method("full").lr(config.lr) == 0.2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.ini", ""),
        ("a.yaml", "a: [1"),
        ("a.toml", "a = "),
        ("a.json", "{"),
        ("a.json", "[1]"),
        ("a.yaml", "just words"),
    ],
)
def test_files_that_hold_no_settings_are_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=r"config .*a\."):
        read_settings(tmp_path / name)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    assert Config.of(read_settings(tmp_path / "a.yaml")) == Config()


def test_the_baseline_is_full_by_either_name_or_else_the_first_method() -> None:
    assert Config().baseline == "full"
    assert Config(methods=("adamw", "full")).baseline == "full"
    assert Config(methods=("adamw", "muon")).baseline == "muon"
    assert Config(methods=("torch-muon", "adamw")).baseline == "torch-muon"


def test_changed_settings_are_plain_values_and_checked() -> None:
    config = Config(epochs=3).changed({"seeds": 2, "targets": [50.0]})
    assert (config.epochs, config.seeds, config.targets) == (3, (0, 1), (50.0,))
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        config.changed({"epohcs": 3})


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_are_the_papers_at_full_size(name: str) -> None:
    config = experiment(name)
    assert (config.lr, config.momentum, config.scale, config.model) == (0.1, 0.5, 1.0, "cnn")
    assert config.batch_norm == (name == "cifar10")
    assert config.batch_size == (32768 if name == "fashion-mnist" else 8192)
    assert config.channels == ((128, 256, 512) if "cifar10" in name else (64, 128, 256))


def test_a_reproduction_shifts_by_epochs_whatever_their_number() -> None:
    shift = "drop-muon:epoch-shift"
    config = as_printed(experiment("mnist").changed({"epochs": 7}))
    assert config.options == {shift: {"epochs": 7}}
    own = experiment("mnist").changed({"options": {shift: {"epochs": 3, "alpha": 1.0}}})
    assert as_printed(own).options == {shift: {"epochs": 3, "alpha": 1.0}}
    assert as_printed(experiment("mnist").changed({"methods": ["full"]})).options == {}


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


def test_rates_fall_linearly_at_equal_cost_and_stay_at_equal_epochs() -> None:
    assert Config().budget == "ops"
    assert Config().schedule == Config(budget="seconds").schedule == "linear"
    assert Config(budget="epochs").schedule == "constant"
    assert Config(budget="epochs", schedule="cosine").schedule == "cosine"


def test_settings_of_format_1_mean_what_they_meant() -> None:
    old = Config.of({"format": 1, "epochs": 3})
    assert (old.budget, old.schedule) == ("epochs", "constant")
    assert Config.of(old.to_json()) == old


def test_whole_epochs_are_whole_numbers() -> None:
    assert repr(Config(epochs=2.0).epochs) == "2"
    assert Config(epochs=0.5).epochs == 0.5
