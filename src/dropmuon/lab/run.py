"""The directory of a run: small files that any tool can read, and a lock while one is written.

config.json       the settings of the comparison
environment.json  where it ran
methods.json      settings, layers and sampling distribution of every method
evaluations.jsonl one line per evaluation, appended as they come
weights/          the trained model of the baseline, and what the run started from
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dropmuon.output import clear_drafts, write_json, write_text

__all__ = ["Evaluation", "RunDirectory", "check_same", "finite", "methods_in", "try_lock"]


_TEXTS, _COUNTS = {"method"}, {"seed", "step"}
_LISTS = {"moved", "cutoffs", "shares", "noise"}
_MAY_BE_MISSING = {
    *("train_loss", "test_loss", "load", "progress", "train_bits_per_byte", "test_bits_per_byte"),
    *("noise",),
}


@dataclass(frozen=True)
class Evaluation:
    """The state of one method on one seed after a number of steps.

    Attributes:
        method: its name in the comparison.
        seed: of initial weights and data order; methods with one seed share both.
        step: steps taken so far; 0 is the untrained model.
        epoch: passes over the training set so far.
        seconds: spent in training steps so far, evaluation not counted.
        operations: floating-point operations of those steps.
        train_accuracy: share of correct predictions on training examples, in [0, 1].
        train_loss: mean loss there; None if it is not finite.
        test_accuracy: share of correct predictions on the test set.
        test_loss: mean loss there; None if it is not finite.
        moved: how often each layer moved since the last evaluation; empty without layers.
        cutoffs: how often each layer was the cutoff of a part since the last evaluation.
        load: the machine's load average at the time, None where there is none.
        shares: the portion of a batch that each layer's gradient is computed from, the mean since
            the last evaluation; empty without layers.
        noise: each layer's ratio of gradient noise to signal over a whole batch, None while it is
            unknown; empty for methods that do not measure it.
        progress: the share of training that is done, 1 at its end; None in runs of format 1.
        train_bits_per_byte: the loss in bits, for text; None for images.
        test_bits_per_byte: likewise.
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
    shares: tuple[float, ...] = ()
    noise: tuple[float | None, ...] = ()
    progress: float | None = None
    train_bits_per_byte: float | None = None
    test_bits_per_byte: float | None = None

    @property
    def is_final(self) -> bool:
        """Whether this is the end of training; unknown, and so False, in runs of format 1."""
        return self.progress is not None and self.progress >= 1.0

    def line(self) -> str:
        """Return one line of JSON, without a newline."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def parse(cls, line: str) -> Evaluation:
        """Read what `line` wrote; unknown fields of later versions are ignored."""
        content = json.loads(line)
        known = {each.name: content[each.name] for each in fields(cls) if each.name in content}
        for name, value in known.items():
            _check_value(name, value)
        return cls(**known | {name: tuple(known.get(name) or ()) for name in _LISTS})


@dataclass(frozen=True)
class RunDirectory:
    """The files of one comparison."""

    path: Path

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the comparison."""
        return self._read("config.json")

    @property
    def environment(self) -> dict[str, Any]:
        """Where it ran."""
        return self._read("environment.json")

    @property
    def methods(self) -> dict[str, Any]:
        """Settings, layers and sampling distribution of every method."""
        return self._read("methods.json")

    @property
    def tuned(self) -> dict[str, Any]:
        """What tuning found for every method; nothing if nothing was tuned."""
        path = self.path / "tuned.json"
        found = self._read(path.name) if path.exists() else {}
        for name, entry in found.items():
            if not (isinstance(entry, dict) and isinstance(entry.get("settings"), dict)):
                raise ValueError(f"{path} is damaged: it has no settings of {name!r}")
        return found

    @property
    def checkpoints(self) -> Path:
        """The directory of unfinished trials."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """The directory of weights: where the run started, if trained, and where it ended."""
        return self.path / "weights"

    def write(self, name: str, content: Any) -> None:
        """Write one of the JSON files as a whole."""
        write_json(self.path / name, content)

    def evaluations(self) -> list[Evaluation]:
        """Return all evaluations in the order they were made; an incomplete line is ignored."""
        path = self.path / "evaluations.jsonl"
        if not path.exists():
            return []
        lines = path.read_bytes().splitlines(keepends=True)
        return [
            _parsed(path, number, line)
            for number, line in enumerate(lines, start=1)
            if line.endswith(b"\n") and line.strip()
        ]

    def check_readable(self) -> None:
        """Raise ValueError if a file that was written before is damaged."""
        for name in ("config.json", "environment.json", "methods.json"):
            if (self.path / name).exists():
                self._read(name)
        _ = self.tuned
        self.evaluations()

    def clear_drafts(self) -> None:
        """Remove what killed processes left of files; only whoever has the lock may do that."""
        for directory in (self.path, self.checkpoints, self.weights):
            clear_drafts(directory)

    def append(self, evaluation: Evaluation) -> None:
        """Add one evaluation at the end."""
        with (self.path / "evaluations.jsonl").open("a") as file:
            file.write(evaluation.line() + "\n")

    def rewrite(self, evaluations: Iterable[Evaluation]) -> None:
        """Keep these evaluations and no others."""
        text = "".join(each.line() + "\n" for each in evaluations)
        write_text(self.path / "evaluations.jsonl", text)

    def check_usable(self, settings: dict[str, Any], *, resume: bool) -> None:
        """Raise ValueError if a comparison with these settings may not write here."""
        if resume:
            check_same(self.config, settings)
        elif self.path.exists() and not self.path.is_dir():
            raise ValueError(f"out {self.path} is a file; choose a directory")
        elif self.path.exists() and any(each.name != ".lock" for each in self.path.iterdir()):
            raise ValueError(
                f"out {self.path} exists and is not empty; add --resume to continue it, or choose "
                "another directory"
            )

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Try to be the only process that writes here; return whether it is."""
        with (self.path / ".lock").open("w") as file:
            yield try_lock(file.fileno())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn the error of a full disk inside the block into one that says what to do."""
        try:
            yield
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise
            raise OSError(
                error.errno,
                f"{error.strerror} for the run in {self.path}; free some space, and continue with "
                "--resume",
            ) from error

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ValueError(
                f"{self.path} is not a dropmuon run: it has no {name}; give a directory that "
                "`dropmuon compare --out` made"
            ) from error
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}; the run is damaged") from error
        if not isinstance(found, dict):
            raise ValueError(f"{path} must hold an object, got {type(found).__name__}")
        return found


def _parsed(path: Path, number: int, line: bytes) -> Evaluation:
    try:
        return Evaluation.parse(line.decode())
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}, line {number}, is damaged: {error}; restore the file, or start the run again"
        ) from error


def _check_value(name: str, value: object) -> None:
    """Raise ValueError if an evaluation has another kind of value than it should."""
    if value is None and name in _MAY_BE_MISSING:
        return
    each = value if name in _LISTS and isinstance(value, list) else [value]
    if name in _LISTS and each is not value:
        raise ValueError(f"{name} must be a list, got {value!r}")
    kind = str if name in _TEXTS else int if name in _COUNTS else (int, float)
    for one in each:
        right = isinstance(one, kind) and not isinstance(one, bool)
        if not (right or (one is None and name in _MAY_BE_MISSING)):
            raise ValueError(f"{name} is wrong: {one!r}")
        if isinstance(one, int | float) and not abs(one) < 1e300:  # beyond, sums overflow
            raise ValueError(f"{name} is wrong: {str(one)[:40]}")


def methods_in(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the methods in the order of their first evaluation."""
    return list(dict.fromkeys(each.method for each in evaluations))


def finite(value: float) -> float | None:
    """Return the number, or None if JSON cannot represent it."""
    return value if math.isfinite(value) else None


def check_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise ValueError if a run is resumed with other settings than it began with."""
    began, asked = (json.loads(json.dumps(each)) for each in (old, new))
    for key in sorted(set(began) | set(asked)):
        if began.get(key) != asked.get(key):
            raise ValueError(
                f"{key} must be what the run began with to resume it, {began.get(key)!r}, "
                f"got {asked.get(key)!r}; leave it out, or choose another --out"
            )


# Locks of the operating system end with the process that holds them.

if sys.platform == "win32":
    import msvcrt

    def try_lock(handle: int) -> bool:
        """Lock an open file without waiting, and return whether that worked."""
        os.lseek(handle, 1 << 30, os.SEEK_SET)  # far from the content, which others read
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(handle: int) -> bool:
        """Lock an open file without waiting, and return whether that worked."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a file system without locks
        return True
