"""Configurations of comparisons: checked settings, from files or code, and the paper's own."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from dropmuon.checks import unknown_name, whole_number
from dropmuon.lab import data
from dropmuon.lab.methods import BASELINES, LARGEST_LR, Method, method_named
from dropmuon.lab.models import family_of
from dropmuon.lab.settings import RateSchedule, Settings

__all__ = ["EXPERIMENTS", "Config", "as_printed", "experiment", "read_settings"]

FORMAT = 2
BUDGETS = ("epochs", "ops", "seconds")

_MEANT_BEFORE: dict[int, dict[str, Any]] = {1: {"budget": "epochs", "schedule": "constant"}}
"""What runs of earlier formats did where their settings say nothing."""

_DERIVED = frozenset({"format", "baseline"})
_LARGEST_SEED = 2**63 - 1
_MOST_SEEDS, _MOST_THREADS = 10_000, 1024
_MOST_EVALUATIONS, _MOST = 1000, {"tune": 10_000}
_LEAST_CHANNELS, _LEAST_EPOCHS = 4, 2


@dataclass(frozen=True)
class Config(Settings):
    """Checked settings of a comparison."""

    def __post_init__(self) -> None:
        _check(self)
        family = family_of(self.model)
        object.__setattr__(self, "channels", tuple(self.channels) or family.channels)
        object.__setattr__(self, "policy", self.policy or family.policy)
        usual = "constant" if self.budget == "epochs" else "linear"
        object.__setattr__(self, "schedule", self.schedule or usual)
        if float(self.epochs).is_integer():
            object.__setattr__(self, "epochs", int(self.epochs))

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Config:
        """Make a configuration from plain values, such as those of a file; lists become tuples.

        Settings of a run of an earlier format mean what they meant then.
        """
        before = _MEANT_BEFORE.get(settings.get("format", FORMAT), {})
        return cls(**_values({**before, **settings}))

    def changed(self, settings: Mapping[str, Any]) -> Config:
        """Return a configuration with these settings changed, given as plain values."""
        return replace(self, **_values(settings))

    def to_json(self) -> dict[str, Any]:
        """Return all settings as plain values, with derived ones."""
        return {"format": FORMAT, **asdict(self), "baseline": self.baseline}

    @property
    def baseline(self) -> str:
        """What the others are measured against: `full`, or else the first method."""
        return next((name for name in BASELINES if name in self.methods), self.methods[0])

    @property
    def rate_schedule(self) -> RateSchedule:
        """The schedule of learning rates of methods that have none of their own."""
        return RateSchedule(self.schedule, self.warm_up, self.decay)

    @property
    def needs_plan(self) -> bool:
        """Whether some method uses the planner's sampler."""
        return any(self.method(name).needs_plan for name in self.methods)

    @property
    def piece(self) -> int:
        """How many examples pass through the model at once, if a method has no parts of its own.

        As many as in a part of the method that has the most: memory, the statistics of batch norm
        and the sizes of kernels are then the same for all methods.
        """
        return -(-self.batch_size // max(self.method(name).parts for name in self.methods))

    def method(self, name: str) -> Method:
        """Return one of the methods, with its options."""
        return method_named(name, self.options.get(name))


def read_settings(path: Path) -> dict[str, Any]:
    """Read settings from a YAML, TOML or JSON file, depending on its ending."""
    readers = {".yaml": yaml.safe_load, ".yml": yaml.safe_load}
    readers |= {".toml": tomllib.loads, ".json": json.loads}
    if path.suffix not in readers:
        raise ValueError(f"config {path} must end in .yaml, .yml, .toml or .json")
    try:
        found = readers[path.suffix](path.read_text())
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"config {path} cannot be read: {error}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"config {path} must hold settings by name, got {type(found).__name__}")
    return found


def experiment(name: str, scale: float = 1.0) -> Config:
    """Return the settings of one of the paper's experiments.

    A `scale` below 1 multiplies channels and epochs (at least 4 channels and 2 epochs are kept) and
    is recorded in the settings, so that the report says so.
    """
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    if not 0 < scale <= 1:
        raise ValueError(f"scale must be in (0, 1], got {scale!r}; 1.0 is the paper's size")
    whole = EXPERIMENTS[name]
    return replace(
        whole,
        channels=tuple(max(_LEAST_CHANNELS, round(width * scale)) for width in whole.channels),
        epochs=max(_LEAST_EPOCHS, round(whole.epochs * scale)),
        scale=scale,
    )


def as_printed(config: Config) -> Config:
    """Return the settings with epoch-shift by epochs, as the paper prints it.

    A method that has `epochs` of its own keeps them.
    """
    epochs = {"epochs": max(1, round(config.epochs))}
    shifting = [n for n in config.methods if config.method(n).base == "drop-muon:epoch-shift"]
    own = {name: {**epochs, **config.options.get(name, {})} for name in shifting}
    return replace(config, options={**config.options, **own})


def _values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values as the fields hold them; reject names that are not settings."""
    known = {each.name: each.type for each in fields(Settings)}
    given = {key: value for key, value in settings.items() if key not in _DERIVED}
    for key in given:
        if key not in known:
            raise unknown_name("setting", str(key), known)
    if isinstance(given.get("seeds"), int) and not isinstance(given["seeds"], bool):
        given["seeds"] = range(whole_number("seeds", given["seeds"], most=_MOST_SEEDS))
    return {
        key: _tuple(key, value) if str(known[key]).startswith("tuple") else value
        for key, value in given.items()
    }


def _of_type(name: str) -> list[str]:
    """Return the settings of a type, as written in `Settings`."""
    return [each.name for each in fields(Settings) if each.type == name]


def _check(config: Config) -> None:
    for name in _of_type("str"):
        if not isinstance(getattr(config, name), str):
            raise ValueError(f"{name} must be a string, got {getattr(config, name)!r}; quote it")
    if config.dataset not in data.NAMES:
        raise unknown_name("dataset", str(config.dataset), data.NAMES)
    family = family_of(config.model)
    kind = data.kind_of(config.dataset)
    if kind != family.kind:
        raise ValueError(
            f"model {config.model!r} takes {family.kind}, and dataset {config.dataset!r} has {kind}"
            f"; choose {_fitting(kind)}"
        )
    for name in _of_type("int"):
        least, most = 0 if name == "tune" else 1, _MOST.get(name)
        whole_number(name, getattr(config, name), least=least, most=most)
    if config.threads is not None:
        whole_number("threads", config.threads, most=_MOST_THREADS)
    _check_numbers(config)
    if config.budget not in BUDGETS:
        raise unknown_name("budget", config.budget, BUDGETS)
    RateSchedule(config.schedule or "constant", config.warm_up, config.decay)
    _check_lists(config)
    data.check_classes(config.dataset, config.classes)
    _check_tuning(config)
    if config.augment and kind != "images":
        raise ValueError("augment must be off for texts, got True; only images are augmented")
    try:
        if torch.device(config.device).type == "meta":
            raise ValueError("device must have data to train on, got 'meta'; choose cpu")
    except RuntimeError as error:
        raise ValueError(
            f"device must be a device of PyTorch, such as cpu, cuda or mps, got {config.device!r}"
        ) from error


def _check_numbers(config: Config) -> None:
    for name in ("lr", "plan_budget", "epochs", "evaluations_per_epoch"):
        value = getattr(config, name)
        if not _is_number(value) or not 0 < value < math.inf:
            hint = "; YAML reads 1e-3 as a string: write 1.0e-3" if isinstance(value, str) else ""
            raise ValueError(f"{name} must be a positive number, got {value!r}{hint}")
    if config.lr > LARGEST_LR:
        raise ValueError(f"lr must be at most {LARGEST_LR:g}, got {config.lr!r}; lower it")
    if config.evaluations_per_epoch > _MOST_EVALUATIONS:
        raise ValueError(
            f"evaluations_per_epoch must be at most {_MOST_EVALUATIONS}, got "
            f"{config.evaluations_per_epoch!r}; lower it"
        )
    if not _is_number(config.momentum) or not 0 <= config.momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), got {config.momentum!r}")
    if not _is_number(config.scale) or not 0 < config.scale <= 1:
        raise ValueError(f"scale must be in (0, 1], got {config.scale!r}")
    for name in _of_type("bool"):
        if not isinstance(getattr(config, name), bool):
            raise ValueError(f"{name} must be true or false, got {getattr(config, name)!r}")


def _check_tuning(config: Config) -> None:
    if not _is_number(config.tune_share) or not 0 < config.tune_share <= 1:
        raise ValueError(
            f"tune_share must be a share of the budget in (0, 1], got {config.tune_share!r}"
        )
    if not _is_number(config.validation) or not 0 < config.validation < 1:
        raise ValueError(
            f"validation must be a share of the training set in (0, 1), got {config.validation!r}; "
            "tuning needs a part to judge settings by, and must not see the test set"
        )
    asks = [name for name in config.methods if config.method(name).tunes_batch_size]
    if config.tune_batch_size or asks:
        what = f"method {asks[0]!r}" if asks else "tune_batch_size"
        if not config.tune:
            raise ValueError(f"{what} needs tuning, got tune=0; add --tune 20")


def _check_lists(config: Config) -> None:
    for name, example in (("methods", "full"), ("seeds", "3 or 0,1,2")):
        if not getattr(config, name):
            raise ValueError(f"{name} must name at least one, got none; give {example}")
    for width in config.channels:
        whole_number("channels", width)
    for seed in config.seeds:
        whole_number("seeds", seed, least=0, most=_LARGEST_SEED, remedy="give 3 or 0,1,2")
    for target in config.targets:
        if not _is_number(target) or not 0 < target <= 100:
            raise ValueError(f"targets must be percentages in (0, 100], got {target!r}")
    for name in ("methods", "seeds", "targets"):
        values = getattr(config, name)
        twice = next((v for v in values if values.count(v) > 1), None)
        if twice is not None:
            raise ValueError(f"{name} must be distinct, got {twice!r} twice; drop one")
    _check_methods(config)


def _check_methods(config: Config) -> None:
    if not isinstance(config.options, Mapping):
        raise ValueError(f"options must be settings by method, got {config.options!r}")
    for name, options in config.options.items():
        if name not in config.methods:
            argument = "a method in options, or in --lr METHOD=RATE,"
            raise unknown_name(argument, str(name), config.methods)
        if not isinstance(options, Mapping):
            raise ValueError(f"options of {name!r} must be settings by name, got {options!r}")
    for name in config.methods:
        config.method(str(name))


def _fitting(kind: str) -> str:
    if kind == "images":
        return "model cnn, mlp or resnet18, or dataset shakespeare or enwik8"
    return "model gpt, or a data set of images"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence | range):
        raise ValueError(f"{name} must be a list, got {value!r}; write it as [a, b, c]")
    return tuple(value)


_PAPER = Config(
    model="cnn",
    budget="epochs",
    schedule="constant",
    lr=0.1,
    momentum=0.5,
    seeds=(0, 1, 2, 3, 4),
    methods=("full", "drop-muon:uniform", "drop-muon:epoch-shift"),
)

_CIFAR10 = replace(
    _PAPER,
    dataset="cifar10",
    channels=(128, 256, 512),
    batch_norm=True,
    batch_size=8192,
    epochs=50,
    title="Paper: cifar10",
)

EXPERIMENTS: dict[str, Config] = {
    "mnist": replace(
        _PAPER,
        dataset="mnist",
        channels=(64, 128, 256),
        batch_size=8192,
        epochs=20,
        targets=(60.0, 70.0, 80.0, 90.0, 99.0),
        title="Paper: mnist",
    ),
    "fashion-mnist": replace(
        _PAPER,
        dataset="fashion-mnist",
        channels=(64, 128, 256),
        batch_size=32768,
        epochs=50,
        title="Paper: fashion-mnist",
    ),
    "cifar10": _CIFAR10,
    "cifar10-plain": replace(
        _CIFAR10, batch_norm=False, title="Paper: cifar10, without batch norm"
    ),
}
"""The paper's section "Experiments" and its appendix. The paper uses 20 or 50 epochs without
saying where: here MNIST has 20, and the others, which learn more slowly, have 50. On CIFAR-10 its
text has batch norm, and the name of its figure says that there is none: both are here."""
