"""What workers share: the directory of a sweep, its study, and the machine.

Many workers may open the study at once, but only one cell may run on a machine at a time.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalFileSymlinkLock
from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from dropmuon.lab.run import try_lock
from dropmuon.lab.sweep.spec import SweepSpec
from dropmuon.output import write_json

__all__ = ["Machine", "open_study", "prepare_directory"]

_TRIES = 6
_PATIENCE = 10.0
"""Seconds without progress in filling a new study after which other workers fill it, too."""

_SPEC, _FILLED = "spec", "filled"


LOCK_VARIABLE = "DROPMUON_MACHINE_LOCK"
"""Environment variable with another lock file, for workers that may share a machine."""


class Machine:
    """This machine, which only one cell may use at a time, even across users.

    The lock is the operating system's lock on a file, so it ends with the process that holds it.
    The file's content names the machine: while a worker holds the lock, no other cell that is
    recorded as running on a machine of that name is really running.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or _lock_path()
        self._handle = -1
        self.id = ""

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Try to hold the machine inside the block; yield whether that succeeded."""
        got = self._acquire()
        try:
            yield got
        finally:
            if got:
                os.close(self._handle)

    def keep(self) -> None:
        """Touch the lock file, so that cleaners of the temporary directory keep it."""
        with suppress(OSError):
            os.utime(self._path)

    def _acquire(self) -> bool:
        while True:
            handle = _opened(self._path)
            if not try_lock(handle):
                os.close(handle)
                return False
            if _is_at(handle, self._path):
                self._handle = handle
                os.lseek(handle, 0, os.SEEK_SET)
                self.id = os.read(handle, 64).decode()
                return True
            os.close(handle)


def prepare_directory(spec: SweepSpec, out: Path) -> None:
    """Make the directory of a sweep, or check that the existing one belongs to this sweep."""
    path = out / "sweep.json"
    if path.exists():
        try:
            kept = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}; the sweep is damaged") from error
        if kept != {"format": 1, **spec.to_json()}:
            raise ValueError(f"out {out} holds another sweep; choose another --out for this one")
        return
    if out.exists() and (not out.is_dir() or any(map(_is_foreign, out.iterdir()))):
        raise ValueError(f"out {out} exists and is not a sweep; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_json(path, {"format": 1, **spec.to_json()})


def open_study(
    spec: SweepSpec, out: Path, url: str | None, fill: Callable[[optuna.Study], None]
) -> optuna.Study:
    """Open the study of a sweep; the worker that makes it fills it, and the others wait for that.

    If that worker dies or is slow, several workers may call `fill`, which must then add only what
    is missing.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = _storage(out, url)
    sampler = optuna.samplers.RandomSampler()
    try:
        study = optuna.create_study(
            storage=storage,
            sampler=sampler,
            study_name=spec.study_name,
            direction=spec.objective.direction,
        )
        study.set_user_attr(_SPEC, spec.to_json())
    except DuplicatedStudyError:
        study = optuna.load_study(study_name=spec.study_name, storage=storage, sampler=sampler)
        _await_filled(study)
        _check_same(study, spec)
    fill(study)
    if not study.user_attrs.get(_FILLED):
        study.set_user_attr(_FILLED, True)
    return study


def _is_foreign(path: Path) -> bool:
    """Return whether a file is not one that another worker, just started, makes too."""
    return not re.match(r"\.?(sweep\.json|study\.journal|cells$)", path.name)


def _storage(out: Path, url: str | None) -> BaseStorage:
    if url is None:
        return _journal(out / "study.journal")
    try:
        shown = make_url(url).render_as_string(hide_password=True)
    except ArgumentError as error:
        raise ValueError(
            f"storage must be the URL of a database, such as postgresql://user@host/name or "
            f"sqlite:///sweep.db, got {url!r}"
        ) from error
    return _database(url, shown)


def _journal(path: Path) -> JournalStorage:
    lock_of = JournalFileOpenLock if sys.platform == "win32" else JournalFileSymlinkLock
    lock = lock_of(str(path))
    if _is_torn(path):
        lock.acquire()
        try:
            if _is_torn(path):
                whole = path.read_bytes().rpartition(b"\n")
                os.truncate(path, len(whole[0]) + len(whole[1]))
        finally:
            lock.release()
    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {error}; remove it: cells that are finished in their directories "
            "will not run again"
        ) from error


def _is_torn(path: Path) -> bool:
    """Return whether the last line is incomplete, as a full disk or a kill leaves it."""
    return path.exists() and path.read_bytes()[-1:] not in {b"", b"\n"}


def _database(url: str, shown: str) -> RDBStorage:
    """Connect; try again if another worker makes the same tables at the same time."""
    failure: Exception | None = None
    for attempt in range(_TRIES):
        try:
            storage = RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
        except ImportError as error:
            raise ValueError(
                f"storage {shown} needs a missing driver: {error.__cause__ or error}; install it, "
                "for example psycopg[binary] for postgresql"
            ) from error
        except (SQLAlchemyError, RuntimeError) as error:
            failure = error
            time.sleep(random.uniform(0.5, 1.0) * 0.05 * 2**attempt)
        else:
            if storage.engine.name == "sqlite":
                _take_turns(storage.engine)
            return storage
    reason = str(getattr(failure, "orig", None) or failure).strip().splitlines()[0]
    raise OSError(f"storage {shown} cannot be used: {reason}; check the URL") from failure


def _take_turns(engine: Engine) -> None:
    """Let every transaction of SQLite begin as a writer, or two workers could take one cell."""

    @event.listens_for(engine, "connect")
    def leave_transactions_alone(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA busy_timeout = 60000")

    @event.listens_for(engine, "begin")
    def begin_as_writer(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()


def _await_filled(study: optuna.Study) -> None:
    count, since = -1, time.monotonic()
    while not study.user_attrs.get(_FILLED) and time.monotonic() - since < _PATIENCE:
        now = len(study.get_trials(deepcopy=False))
        if now != count:
            count, since = now, time.monotonic()
        time.sleep(0.1)


def _check_same(study: optuna.Study, spec: SweepSpec) -> None:
    kept = study.user_attrs.get(_SPEC)
    if kept is None:
        study.set_user_attr(_SPEC, spec.to_json())
    elif kept != spec.to_json():
        raise ValueError(
            f"the study {spec.study_name!r} was made for another sweep; change its name, or choose "
            "another --out or --storage"
        )


def _lock_path() -> Path:
    given = os.environ.get(LOCK_VARIABLE)
    if given:
        return Path(given)
    shared = Path("/tmp")  # TMPDIR may differ between users
    place = shared if shared.is_dir() and sys.platform != "win32" else Path(tempfile.gettempdir())
    return place / "dropmuon-machine.lock"


def _opened(path: Path) -> int:
    """Open the lock file, which is created with its content and never written again."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            _make(path)
            return os.open(path, flags)
    except OSError as error:
        raise OSError(
            f"the machine's lock file {path} cannot be used: {error.strerror}; remove it, or name "
            f"another one in {LOCK_VARIABLE}"
        ) from error


def _make(path: Path) -> None:
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(uuid.uuid4().hex)
        Path(draft).chmod(0o644)
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        Path(draft).unlink()


def _is_at(handle: int, path: Path) -> bool:
    """Return whether the open file is still the one at its path, and has not been removed."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
