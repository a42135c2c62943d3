"""Observers of a comparison: what they are told, and loggers that pass it on as it happens.

TensorBoard, Weights & Biases and MLflow are used through their own libraries.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dropmuon.checks import unknown_name
from dropmuon.lab.config import Config
from dropmuon.lab.run import Evaluation

__all__ = ["LOGGERS", "Watcher", "Watchers", "logger_named"]


class Watcher:
    """Base of all watchers, which does nothing."""

    def prepare(self, what: str) -> None:
        """Called before training with a few words about what takes time."""

    def begin(self, config: Config, total_steps: int) -> None:
        """Called when training starts; the baseline takes `total_steps` steps."""

    def progressed(self, method: str, seed: int, progress: float) -> None:
        """Called before `advance`, with the share of its training that a trial has done."""

    def advance(self, method: str, seed: int, step: int, seconds: float) -> None:
        """Called when a trial has reached a step after this many seconds of training."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """Called when a trial was evaluated."""

    def end(self) -> None:
        """Called when training has ended or was interrupted."""


class Watchers(Watcher):
    """Several watchers as one."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = tuple(watchers)

    def prepare(self, what: str) -> None:
        for each in self._watchers:
            each.prepare(what)

    def begin(self, config: Config, total_steps: int) -> None:
        for each in self._watchers:
            each.begin(config, total_steps)

    def progressed(self, method: str, seed: int, progress: float) -> None:
        for each in self._watchers:
            each.progressed(method, seed, progress)

    def advance(self, method: str, seed: int, step: int, seconds: float) -> None:
        for each in self._watchers:
            each.advance(method, seed, step, seconds)

    def evaluated(self, evaluation: Evaluation) -> None:
        for each in self._watchers:
            each.evaluated(evaluation)

    def end(self) -> None:
        for each in self._watchers:
            each.end()


def logger_named(name: str, out: Path) -> Watcher:
    """Return the logger of this name; its files go below the run's directory."""
    if name not in LOGGERS:
        raise unknown_name("logger", name, LOGGERS)
    return LOGGERS[name](out)


def _scalars(evaluation: Evaluation) -> dict[str, float]:
    """Return what is logged for an evaluation."""
    values = {
        "train/accuracy": evaluation.train_accuracy,
        "train/loss": evaluation.train_loss,
        "test/accuracy": evaluation.test_accuracy,
        "test/loss": evaluation.test_loss,
        "train/bits_per_byte": evaluation.train_bits_per_byte,
        "test/bits_per_byte": evaluation.test_bits_per_byte,
        "epoch": evaluation.epoch,
        "seconds": evaluation.seconds,
        "operations": evaluation.operations,
    }
    return {key: value for key, value in values.items() if value is not None}


class _PerTrial(Watcher):
    """A logger with one open run per method and seed.

    A failure at the first evaluation is an error. A logger that fails later is dropped with a
    warning, since training is worth more than its log.
    """

    def __init__(self, library: str, package: str) -> None:
        try:
            self._library = importlib.import_module(library)
            self._package = package
        except ModuleNotFoundError as error:
            raise ImportError(f"{error}; this logger needs it: pip install {package}") from error
        self._settings: dict[str, Any] = {}
        self._open: dict[tuple[str, int], Any] = {}
        self._has_worked = self._has_failed = False

    def begin(self, config: Config, total_steps: int) -> None:
        self._settings = config.to_json()

    def evaluated(self, evaluation: Evaluation) -> None:
        if self._has_failed:
            return
        key = evaluation.method, evaluation.seed
        try:
            if key not in self._open:
                self._open[key] = self._start(*key)
            self._log(self._open[key], _scalars(evaluation), evaluation.step)
        except Exception as error:
            self._fail(error)
        self._has_worked = True

    def end(self) -> None:
        try:
            for each in self._open.values():
                self._close(each)
        except Exception as error:
            self._fail(error)
        self._open.clear()

    def _fail(self, error: Exception) -> None:
        reason = f"logger {self._package} failed: {type(error).__name__}: {error}"
        if not self._has_worked:
            raise OSError(reason) from error
        warnings.warn(f"{reason}; training continues without it", stacklevel=4)
        self._has_failed = True

    def _start(self, method: str, seed: int) -> Any:
        raise NotImplementedError

    def _log(self, run: Any, scalars: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def _close(self, run: Any) -> None:
        raise NotImplementedError


class _TensorBoard(_PerTrial):
    """Event files below `tensorboard/`."""

    def __init__(self, out: Path) -> None:
        super().__init__("torch.utils.tensorboard", "tensorboard")
        self._out = out

    def _start(self, method: str, seed: int) -> Any:
        return self._library.SummaryWriter(
            str(self._out / "tensorboard" / quote(method, safe="") / f"seed{seed}")
        )

    def _log(self, run: Any, scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            run.add_scalar(name, value, step)

    def _close(self, run: Any) -> None:
        run.close()


class _Wandb(_PerTrial):
    """A run per trial, grouped by comparison."""

    def __init__(self, out: Path) -> None:
        super().__init__("wandb", "wandb")
        self._out = out

    def _start(self, method: str, seed: int) -> Any:
        return self._library.init(
            project="dropmuon",
            group=self._out.name,
            name=f"{method} seed {seed}",
            config={**self._settings, "method": method, "seed": seed},
            dir=str(self._out),
            reinit="create_new",
        )

    def _log(self, run: Any, scalars: dict[str, float], step: int) -> None:
        run.log(scalars, step=step)

    def _close(self, run: Any) -> None:
        run.finish()


class _MLflow(_PerTrial):
    """A run per trial in the experiment `dropmuon`, at the tracking URI that MLflow is set to."""

    def __init__(self, out: Path) -> None:
        super().__init__("mlflow", "mlflow")
        self._out = out

    def _start(self, method: str, seed: int) -> Any:
        self._library.set_experiment("dropmuon")
        client = self._library.MlflowClient()
        experiment = self._library.get_experiment_by_name("dropmuon")
        run = client.create_run(
            experiment.experiment_id, run_name=f"{self._out.name}: {method} seed {seed}"
        )
        for key, value in {**self._settings, "method": method, "seed": seed}.items():
            client.log_param(run.info.run_id, key, value)
        return client, run.info.run_id

    def _log(self, run: Any, scalars: dict[str, float], step: int) -> None:
        client, identity = run
        for name, value in scalars.items():
            client.log_metric(identity, name, value, step=step)

    def _close(self, run: Any) -> None:
        client, identity = run
        client.set_terminated(identity)


LOGGERS: dict[str, Callable[[Path], Watcher]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "mlflow": _MLflow,
}
