"""What a comparison leaves behind: a directory of small files that any tool can read.

config.json       what was asked for
environment.json  where it ran
methods.json      layers, sampler and sampling distribution of every method
evaluations.jsonl one line per evaluation, appended as they come
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dropmuon.files import write_json, write_text

__all__ = ["Evaluation", "RunDirectory"]


@dataclass(frozen=True)
class Evaluation:
    """One method on one seed, looked at after so many steps.

    Attributes:
        method: its name in the comparison.
        seed: of initial weights and data order; methods with one seed share both.
        step: steps taken so far; 0 is the untrained model.
        epoch: passes over the training set so far.
        seconds: spent in training steps so far, evaluation not counted.
        operations: floating-point operations of those steps.
        train_accuracy: share of right answers on training examples, in [0, 1].
        train_loss: mean loss there; None if it is not finite.
        test_accuracy: share of right answers on the test set.
        test_loss: mean loss there.
        moved: how often each layer moved since the last evaluation; empty without layers.
        cutoffs: how often each layer was the cutoff since the last evaluation.
        load: the machine's load average at the time, None where there is none.
    """

    method: str
    seed: int
    step: int
    epoch: float
    seconds: float
    operations: float
    train_accuracy: float
    train_loss: float | None
    test_accuracy: float
    test_loss: float | None
    moved: tuple[int, ...] = ()
    cutoffs: tuple[int, ...] = ()
    load: float | None = None

    def line(self) -> str:
        """One line of JSON, without its end."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def parse(cls, line: str) -> Evaluation:
        """Read what `line` wrote; unknown fields of later versions are left out."""
        content = json.loads(line)
        known = {each.name: content[each.name] for each in fields(cls) if each.name in content}
        known["moved"] = tuple(known.get("moved", ()))
        known["cutoffs"] = tuple(known.get("cutoffs", ()))
        return cls(**known)


@dataclass(frozen=True)
class RunDirectory:
    """The files of one comparison."""

    path: Path

    @property
    def config(self) -> dict[str, Any]:
        """What was asked for."""
        return self._read("config.json")

    @property
    def environment(self) -> dict[str, Any]:
        """Where it ran."""
        return self._read("environment.json")

    @property
    def methods(self) -> dict[str, Any]:
        """Layers and sampling distribution of every method."""
        return self._read("methods.json")

    @property
    def checkpoints(self) -> Path:
        """Where unfinished trials are kept."""
        return self.path / "checkpoints"

    def write(self, name: str, content: Any) -> None:
        """Write one of the JSON files as a whole."""
        write_json(self.path / name, content)

    def evaluations(self) -> list[Evaluation]:
        """All evaluations in the order they were made; a line that was cut off is left out."""
        path = self.path / "evaluations.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        return [Evaluation.parse(line) for line in lines if line.endswith("\n") and line.strip()]

    def append(self, evaluation: Evaluation) -> None:
        """Add one evaluation at the end."""
        with (self.path / "evaluations.jsonl").open("a") as file:
            file.write(evaluation.line() + "\n")

    def rewrite(self, evaluations: Iterable[Evaluation]) -> None:
        """Keep these evaluations and no others."""
        text = "".join(each.line() + "\n" for each in evaluations)
        write_text(self.path / "evaluations.jsonl", text)

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise ValueError(
                f"{self.path} is not a run of dropmuon: it has no {name}; give a directory that "
                "`dropmuon compare --out` made"
            ) from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON: {error}; the run is damaged") from error
        if not isinstance(found, dict):
            raise ValueError(f"{path} must hold an object, got {type(found).__name__}")
        return found


def finite(value: float) -> float | None:
    """The number, or None where JSON has no way to write it."""
    return value if math.isfinite(value) else None


def methods_in(evaluations: Sequence[Evaluation]) -> list[str]:
    """The methods in the order of their first evaluation."""
    return list(dict.fromkeys(each.method for each in evaluations))
