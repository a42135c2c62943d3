"""What a comparison is asked to do: settings, where they come from, and what is refused."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
import yaml

from dropmuon.checks import unknown_name, whole_number
from dropmuon.lab import data
from dropmuon.lab.methods import Method, method_named
from dropmuon.lab.models import family_of

__all__ = ["Config", "read_settings"]

FORMAT = 1


@dataclass(frozen=True)
class Config:
    """All settings of a comparison; whatever is left out has the default of the demo.

    Attributes:
        dataset, model, channels, batch_norm: what is learned, and by which model.
        batch_size, epochs: how much of it at a time, and how long.
        seeds: each fixes initial weights and data order, for all methods alike.
        methods, options: names, and per name what differs from the shared settings.
        targets: accuracies in percent whose time is measured.
        lr, momentum, policy: shared by muon and drop-muon.
        evaluations_per_epoch: how often accuracies are taken; more make times to target finer.
        train_examples: how many training examples an evaluation looks at.
        augment: shift and flip images at random.
        context: bytes per example, of texts.
        plan_budget: seconds for `drop-muon:planned` to measure the model.
        device, threads: where it runs; threads None leaves PyTorch's choice.
        scale: below 1, the share of an experiment that was kept; stated in the report.
        title: of the report.
    """

    dataset: str = "fashion-mini"
    model: str = "cnn"
    channels: tuple[int, ...] = ()
    batch_norm: bool = False
    batch_size: int = 256
    epochs: int = 5
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] = ("muon", "drop-muon:uniform", "drop-muon:epoch-shift")
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    targets: tuple[float, ...] = (60.0, 70.0, 80.0, 90.0)
    lr: float = 0.1
    momentum: float = 0.5
    policy: str = ""
    evaluations_per_epoch: int = 2
    train_examples: int = 4_000
    augment: bool = False
    context: int = 64
    plan_budget: float = 20.0
    device: str = "cpu"
    threads: int | None = None
    scale: float = 1.0
    title: str = ""

    def __post_init__(self) -> None:
        _check(self)
        family = family_of(self.model)
        object.__setattr__(self, "channels", tuple(self.channels) or family.channels)
        object.__setattr__(self, "policy", self.policy or family.policy)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Config:
        """Make one from plain values, such as a file holds; lists become tuples."""
        known = {each.name for each in fields(cls)}
        given = {key: value for key, value in settings.items() if key not in _DERIVED}
        for key in given:
            if key not in known:
                raise unknown_name("setting", str(key), known)
        if isinstance(given.get("seeds"), int) and not isinstance(given["seeds"], bool):
            whole_number("seeds", given["seeds"])
            given["seeds"] = range(given["seeds"])
        for key in ("channels", "seeds", "methods", "targets"):
            if key in given:
                given[key] = _tuple(key, given[key])
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """All settings as plain values, with what follows from them."""
        return {"format": FORMAT, **asdict(self), "baseline": self.baseline}

    @property
    def baseline(self) -> str:
        """What the others are measured against: muon, or else the first method."""
        return "muon" if "muon" in self.methods else self.methods[0]

    @property
    def needs_plan(self) -> bool:
        """Whether some method uses the planner's sampler."""
        return any(self.method(name).needs_plan for name in self.methods)

    def method(self, name: str) -> Method:
        """One of the methods, with its options."""
        return method_named(name, self.options.get(name))


_DERIVED = frozenset({"format", "baseline"})


def read_settings(path: Path) -> dict[str, Any]:
    """Read settings from a YAML, TOML or JSON file, by its ending."""
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


def _check(config: Config) -> None:
    for name in ("dataset", "model", "policy", "device", "title"):
        if not isinstance(getattr(config, name), str):
            raise ValueError(f"{name} must be a text, got {getattr(config, name)!r}; quote it")
    if config.dataset not in data.NAMES:
        raise unknown_name("dataset", str(config.dataset), data.NAMES)
    family = family_of(config.model)
    kind = "bytes" if config.dataset == "shakespeare" else "images"
    if kind != family.kind:
        raise ValueError(
            f"model {config.model!r} takes {family.kind}, and dataset {config.dataset!r} has {kind}"
            f"; choose {_fitting(kind)}"
        )
    for name in ("batch_size", "epochs", "evaluations_per_epoch", "train_examples", "context"):
        whole_number(name, getattr(config, name))
    if config.threads is not None:
        whole_number("threads", config.threads)
    _check_numbers(config)
    _check_lists(config)
    if config.augment and kind != "images":
        raise ValueError("augment must be off for texts, got True; only images are augmented")
    try:
        torch.device(config.device)
    except RuntimeError as error:
        raise ValueError(
            f"device must be such as cpu, cuda or mps, got {config.device!r}"
        ) from error


def _check_numbers(config: Config) -> None:
    for name in ("lr", "plan_budget"):
        value = getattr(config, name)
        if not _is_number(value) or not 0 < value < math.inf:
            hint = "; YAML wants 1.0e-3 for 1e-3" if isinstance(value, str) else ""
            raise ValueError(f"{name} must be a positive number, got {value!r}{hint}")
    if not _is_number(config.momentum) or not 0 <= config.momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), got {config.momentum!r}")
    if not _is_number(config.scale) or not 0 < config.scale <= 1:
        raise ValueError(f"scale must be in (0, 1], got {config.scale!r}")
    for name in ("batch_norm", "augment"):
        if not isinstance(getattr(config, name), bool):
            raise ValueError(f"{name} must be true or false, got {getattr(config, name)!r}")


def _check_lists(config: Config) -> None:
    for width in config.channels:
        whole_number("channels", width)
    if not config.seeds or not all(map(_is_seed, config.seeds)):
        raise ValueError(f"seeds must be whole numbers from 0, got {config.seeds}; give 3 or 0,1,2")
    for target in config.targets:
        if not _is_number(target) or not 0 < target <= 100:
            raise ValueError(f"targets must be percentages in (0, 100], got {target!r}")
    if not config.methods:
        raise ValueError("methods must name at least one method, got none; give muon")
    for name in ("methods", "seeds", "targets"):
        values = getattr(config, name)
        twice = next((v for v in values if values.count(v) > 1), None)
        if twice is not None:
            raise ValueError(f"{name} must differ from each other, got {twice!r} twice; drop one")
    if not isinstance(config.options, Mapping):
        raise ValueError(f"options must be settings by method, got {config.options!r}")
    for name, options in config.options.items():
        if name not in config.methods:
            raise unknown_name("options", str(name), config.methods)
        if not isinstance(options, Mapping):
            raise ValueError(f"options of {name!r} must be settings by name, got {options!r}")
    for name in config.methods:
        config.method(str(name))


def _fitting(kind: str) -> str:
    if kind == "images":
        return "model cnn, mlp or resnet18, or dataset shakespeare"
    return "model gpt, or a data set of images"


def _is_seed(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence | range):
        raise ValueError(f"{name} must be a list, got {value!r}; write it as [a, b, c]")
    return tuple(value)
