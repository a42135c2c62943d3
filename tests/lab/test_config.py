"""Settings, methods by name, and experiments: what they mean and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dropmuon import DropMuon
from dropmuon.lab.config import Config, read_settings
from dropmuon.lab.experiments import EXPERIMENTS, experiment
from dropmuon.lab.methods import Setting, method_named, method_names
from dropmuon.lab.models import build
from dropmuon.samplers import Full, Nice, Progressive, RandomSubset, Submodel, epoch_shift, uniform

SETTING = Setting(lr=0.1, momentum=0.5, policy="spectral", total_steps=10, seed=7)


def optimizer(name: str, **options: Any) -> torch.optim.Optimizer:
    model = build("mlp", (1, 4, 4), 3, (5, 5))
    return method_named(name, options).optimizer(model, SETTING, planned=Nice(2))


@pytest.mark.parametrize(
    ("name", "sampler"),
    [
        ("muon", Full()),
        ("scion", Full()),
        ("drop-muon:uniform", Progressive(uniform)),
        ("drop-muon:linear", Progressive("linear")),
        ("drop-muon:quadratic", Progressive("quadratic")),
        ("drop-muon:exponential", Progressive("exponential")),
        ("drop-muon:epoch-shift", Progressive(epoch_shift(0.5))),
        ("drop-muon:nice-2", Nice(2)),
        ("drop-muon:submodel-3", Submodel(3)),
        ("drop-muon:random-subset", RandomSubset()),
        ("drop-muon:planned", Nice(2)),
    ],
)
def test_a_name_stands_for_its_sampler(name: str, sampler: object) -> None:
    made = optimizer(name)
    assert isinstance(made, DropMuon)
    assert made.sampler == sampler
    assert made.draws.seed == 7
    assert made.layers == ("hidden1", "hidden2", "head")


def test_muon_and_drop_muon_share_settings_and_others_have_their_own() -> None:
    for name in ("muon", "drop-muon:uniform"):
        group = optimizer(name).param_groups[0]
        assert (group["lr"], group["momentum"]) == (0.1, 0.5)
    assert isinstance(optimizer("adamw"), torch.optim.AdamW)
    assert optimizer("adamw").param_groups[0]["lr"] == 1e-3
    assert isinstance(optimizer("sgd"), torch.optim.SGD)
    assert optimizer("sgd").param_groups[0]["momentum"] == 0.9


def test_options_of_a_method_come_before_shared_settings() -> None:
    group = optimizer("drop-muon:uniform", lr=0.3, momentum=0.9).param_groups[0]
    assert (group["lr"], group["momentum"]) == (0.3, 0.9)
    made = optimizer("drop-muon:epoch-shift", alpha=2.0)
    assert isinstance(made, DropMuon)
    assert made.sampler == Progressive(epoch_shift(2.0))
    assert optimizer("adamw", lr=0.01, betas=[0.9, 0.95]).param_groups[0]["betas"] == (0.9, 0.95)


def test_a_name_of_ones_own_needs_a_base() -> None:
    made = optimizer("fast", base="muon", lr=1.0)
    assert isinstance(made, DropMuon)
    assert made.param_groups[0]["lr"] == 1.0


def test_all_names_are_accepted() -> None:
    for name in method_names():
        assert method_named(name.replace("TAU", "2")).base == name.replace("TAU", "2")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("moun", {}, "did you mean 'muon'"),
        ("drop-muon:unifrom", {}, "did you mean 'drop-muon:uniform'"),
        ("drop-muon:nice-0", {}, "tau must be at least 1"),
        ("drop-muon:adaptive", {}, "not there yet"),
        ("fast", {"lr": 1.0}, "method must be one of"),
        ("muon", {"momentun": 0.5}, "option of method 'muon' .* did you mean 'momentum'"),
        ("adamw", {"policy": "muon"}, "option of method 'adamw'"),
        ("muon", {"lr": -1}, "lr of method 'muon' must be a positive number, got -1"),
        ("muon", {"lr": "fast"}, "got 'fast'"),
        ("drop-muon:uniform", {"alpha": 1.0}, "option of method"),
    ],
)
def test_wrong_methods_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        method_named(name, options)


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
        ({"epochs": True}, "epochs must be a whole number"),
        ({"epochs": None}, "epochs must be a whole number"),
        ({"targets": [0]}, r"targets must be percentages in \(0, 100\], got 0"),
        ({"targets": [50, 101]}, "got 101"),
        ({"targets": 90}, "targets must be a list"),
        ({"targets": [float("nan")]}, "got nan"),
        ({"methods": []}, "methods must name at least one"),
        ({"methods": "muon"}, "methods must be a list"),
        ({"methods": ["muon", "muon"]}, "got 'muon' twice"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"seeds": [-1]}, "seeds must be whole numbers from 0"),
        ({"seeds": [1, 1]}, "got 1 twice"),
        ({"lr": 0}, "lr must be a positive number"),
        ({"lr": float("inf")}, "lr must be a positive number"),
        ({"lr": "0.1"}, "lr must be a positive number, got '0.1'"),
        ({"momentum": 1}, "momentum must be in"),
        ({"scale": 2}, "scale must be in"),
        ({"channels": [8, -1]}, "channels must be a whole number of at least 1, got -1"),
        ({"channels": 8}, "channels must be a list"),
        ({"batch_norm": "yes"}, "batch_norm must be true or false"),
        ({"dataset": "shakespeare", "model": "gpt", "augment": True}, "augment must be off"),
        ({"device": "gpu"}, "device must be such as cpu, cuda or mps, got 'gpu'"),
        ({"threads": 0}, "threads must be a whole number"),
        ({"options": {"adamw": {}}}, "options must be one of"),
        ({"options": {"muon": 3}}, "options of 'muon' must be settings by name"),
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
    assert Config().baseline == "muon"


def test_a_number_of_seeds_is_as_many_from_zero() -> None:
    assert Config.of({"seeds": 4}).seeds == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.yaml", "epochs: 3\noptions: {muon: {lr: 0.2}}"),
        ("a.yml", "epochs: 3\noptions:\n  muon:\n    lr: 0.2"),
        ("a.toml", "epochs = 3\n[options.muon]\nlr = 0.2"),
        ("a.json", '{"epochs": 3, "options": {"muon": {"lr": 0.2}}}'),
    ],
)
def test_settings_are_read_from_any_of_three_kinds_of_file(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    config = Config.of(read_settings(tmp_path / name))
    assert config.epochs == 3
    assert config.method("muon").lr(config.lr) == 0.2


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


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_are_the_papers_at_full_size(name: str) -> None:
    config = experiment(name)
    assert (config.lr, config.momentum, config.scale, config.model) == (0.1, 0.5, 1.0, "cnn")
    assert config.batch_norm == (name == "cifar10")
    sizes = {"mnist": 8192, "fashion-mnist": 32768, "cifar10": 8192}
    assert config.batch_size == sizes[name]


def test_scale_shrinks_channels_and_epochs_and_is_kept() -> None:
    config = experiment("cifar10", 0.25, seeds=(0,))
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
