"""The settings of a comparison, listed once, and the learning-rate schedule that some of them make.

`Config` checks them, the command line derives its options from them, and a sweep its axes. This
file needs no extra package, so that the command line can be built without any.

A schedule is a factor on every learning rate, as a function of the spent budget. It does not count
steps: methods whose steps cost more or less than others reach the end of the same schedule at the
end of the same budget, each after as many steps as it could afford.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dropmuon.checks import unknown_name

__all__ = ["SCHEDULES", "SCHEDULE_OPTIONS", "RateSchedule", "Settings"]

SCHEDULES = ("constant", "linear", "cosine", "wsd")
"""Constant, linear to 0, half a cosine to 0, and warm-up-stable-decay: linear to 0 at the end."""

SCHEDULE_OPTIONS = frozenset({"schedule", "warm_up", "decay"})
"""Settings of a comparison, and options of a method, that make its schedule."""


def _setting(default: Any, meaning: str, *, task: bool = False) -> Any:
    """Make a field; `task` marks what the paper's experiments fix."""
    return field(default=default, metadata={"meaning": meaning, "task": task})


@dataclass(frozen=True)
class Settings:
    """All settings of a comparison; the defaults are those of `dropmuon compare`."""

    dataset: str = _setting(
        "fashion-mini",
        "fashion-mini (default), mnist, fashion-mnist, cifar10, digits, shakespeare or enwik8",
        task=True,
    )
    classes: tuple[int, ...] = _setting(
        (), "only these classes of images, such as 0,1,2,3,4; all by default", task=True
    )
    model: str = _setting("cnn", "cnn (default), mlp, resnet18 or gpt", task=True)
    channels: tuple[int, ...] = _setting((), "widths of the model, such as 64,128,256", task=True)
    batch_norm: bool = _setting(False, "use batch norm in cnn and mlp", task=True)
    join_head: bool = _setting(
        False,
        "count the head as part of the last layer; by default cnn 8,16,32 has 4 layers",
        task=True,
    )
    init: str = _setting(
        "",
        "start from trained weights, with a new head: a run, whose baseline is taken, or a file of "
        "torch.save(model.state_dict())",
        task=True,
    )
    batch_size: int = _setting(256, "examples per step")
    budget: str = _setting(
        "ops",
        "what --epochs counts: ops (default; every method may spend the operations of so many "
        "epochs of the baseline), seconds (likewise, on this machine) or epochs (of its own)",
    )
    epochs: float = _setting(5, "passes over the training set, of the baseline or of each method")
    schedule: str = _setting(
        "", "of all learning rates: constant, linear, cosine or wsd; linear unless --budget epochs"
    )
    warm_up: float = _setting(0.0, "share of the budget in which learning rates rise")
    decay: float = _setting(0.2, "share of the budget in which they fall, for wsd")
    tune: int = _setting(0, "trials that each method gets to tune its settings; 0 (default): none")
    tune_share: float = _setting(1.0, "share of the budget that a trial of tuning has")
    tune_batch_size: bool = _setting(False, "tune batch sizes too: the given one and smaller ones")
    validation: float = _setting(0.1, "share of the training set that tuning judges settings by")
    seeds: tuple[int, ...] = _setting(
        (0, 1, 2), "how many, or which: 5 or 0,7; a seed fixes initial weights and data order"
    )
    methods: tuple[str, ...] = _setting(
        ("full", "drop-muon:uniform", "drop-muon:epoch-shift"), "comma-separated, see below"
    )
    options: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict,
        metadata={"meaning": "by method, settings that differ from the shared ones", "task": False},
    )
    targets: tuple[float, ...] = _setting(
        (60.0, 70.0, 80.0, 90.0), "target accuracies in percent, whose time is measured: 60,70,80"
    )
    lr: float = _setting(
        0.1, "learning rate of full and drop-muon, or METHOD=0.01 for one method; repeatable"
    )
    momentum: float = _setting(0.5, "momentum of full and drop-muon")
    policy: str = _setting(
        "", "norm per parameter of full and drop-muon: spectral, muon, muon-adamw"
    )
    evaluations_per_epoch: float = _setting(
        2, "more give finer times to target, and take time themselves; 0.2 is once in 5 epochs"
    )
    train_examples: int = _setting(4_000, "training examples per evaluation, at most all of them")
    augment: bool = _setting(False, "shift and flip images at random", task=True)
    context: int = _setting(64, "bytes per example, for text", task=True)
    plan_budget: float = _setting(20.0, "seconds of planning, for drop-muon:planned")
    device: str = _setting("cpu", "cpu, cuda or mps")
    threads: int | None = _setting(None, "number of PyTorch threads; by default its own choice")
    scale: float = _setting(1.0, "below 1, the share of an experiment that is kept")
    title: str = _setting("", "title of the report", task=True)


@dataclass(frozen=True)
class RateSchedule:
    """A schedule of learning rates.

    Attributes:
        schedule: one of `SCHEDULES`.
        warm_up: share of the budget in which the factor first rises linearly to 1.
        decay: share of the budget in which `wsd` falls to 0, the last one.
    """

    schedule: str = "constant"
    warm_up: float = 0.0
    decay: float = 0.2

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", str(self.schedule), SCHEDULES)
        if not _is_number(self.warm_up) or not 0 <= self.warm_up < 1:
            raise ValueError(
                f"warm_up must be a share of the budget in [0, 1), got {self.warm_up!r}; give 0.05"
            )
        if not _is_number(self.decay) or not 0 < self.decay <= 1:
            raise ValueError(
                f"decay must be a share of the budget in (0, 1], got {self.decay!r}; a schedule "
                "without an end is 'constant'"
            )
        if self.schedule == "wsd" and self.warm_up + self.decay > 1:
            raise ValueError(
                f"warm_up and decay must be at most 1 together, got {self.warm_up!r} and "
                f"{self.decay!r}; lower one of them"
            )

    def changed(self, options: Mapping[str, Any]) -> RateSchedule:
        """Return the schedule of a method that has these options."""
        own = {key: value for key, value in options.items() if key in SCHEDULE_OPTIONS}
        return RateSchedule(**{**vars(self), **own}) if own else self

    def factor(self, start: float, end: float) -> float:
        """Return the factor of a step that takes the spent budget from one share to another.

        Of N equal steps, step k = 0, ..., N-1 has the factor 1 - k/N on the linear schedule, and
        (k + 1) / (warm_up N) while it warms up: no step is wasted on a factor of 0.
        """
        if end < self.warm_up:
            return max(end, 0.0) / self.warm_up
        place = min(max(start - self.warm_up, 0.0) / (1 - self.warm_up), 1.0)
        if self.schedule == "linear":
            return 1 - place
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * place)) / 2
        if self.schedule == "wsd":
            return min(1.0, max(1 - start, 0.0) / self.decay)
        return 1.0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
