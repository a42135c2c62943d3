"""The environment: what of it matters, what is wrong with it, and the remedy."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal

from dropmuon.checks import import_extra
from dropmuon.output import duration
from dropmuon.version import __version__

__all__ = ["Finding", "check_versions", "extras_of", "findings", "version_numbers"]

_WIDTH, _LAYERS, _ROUNDS, _PATIENCE = 256, 6, 9, 0.5
"""The model that is timed, the steps of each kind, and the seconds after which these end."""

_SLOW = 2.0
"""Times as slow as float32 from which bfloat16 is worth a note."""

_ISA = "ONEDNN_MAX_CPU_ISA"
_WITHOUT_AMX = "AVX512_CORE_BF16"

_PRODUCTS = """
import time, torch
def seconds(x):
    times = []
    for _ in range(5):
        start = time.perf_counter()
        x @ x
        times.append(time.perf_counter() - start)
    return min(times)
x = torch.randn(256, 256)
print(seconds(x.bfloat16()) / seconds(x))
"""


@dataclass(frozen=True)
class Finding:
    """One line of the report: a subject, whether it is fine, and what there is to say."""

    state: Literal["ok", "note", "wrong"]
    subject: str
    text: str


def findings() -> Iterator[Finding]:
    """Yield what there is to say, as it is found: some of it takes seconds."""
    yield _python()
    yield _package()
    torch, found = _torch()
    yield found
    if torch is not None:
        yield _threads(torch.get_num_threads(), _cores(), _load())
        yield _bfloat16()
        yield _step(torch)
    yield from _extras()
    yield _data()


def _python() -> Finding:
    system = f"{platform.system()} {platform.machine()}"
    return Finding("ok", "python", f"{platform.python_version()}, {system}, {sys.executable}")


def _package() -> Finding:
    return Finding("ok", "dropmuon", f"{__version__}, in {Path(__file__).parents[1]}")


def _torch() -> tuple[Any, Finding]:
    """Return torch, or None if it cannot be imported, and what there is to say about it."""
    start = time.perf_counter()
    try:
        torch = import_module("torch")
    except Exception as error:
        text = f"cannot be imported: {' '.join(str(error).split())}; pip install --force-reinstall"
        return None, Finding("wrong", "torch", f"{text} 'torch>=2.9'")
    taken = duration(time.perf_counter() - start)
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    text = f"{torch.__version__}, imported in {taken}; devices: {', '.join(devices)}"
    if version_numbers(torch.__version__) < version_numbers("2.9"):
        return torch, Finding("wrong", "torch", f"{text}; pip install --upgrade 'torch>=2.9'")
    return torch, Finding("ok", "torch", text)


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _load() -> float:
    """Return how many processes wanted a core in the last minute, where that is known."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _threads(threads: int, cores: int, load: float) -> Finding:
    text = f"{threads} of torch, {cores} cores, load {load:.1f}"
    if threads > cores:
        remedy = f"set OMP_NUM_THREADS={cores}"
        return Finding("note", "threads", f"{text}: more threads than cores are slow; {remedy}")
    if load > cores:
        return Finding("note", "threads", f"{text}: others keep the cores busy; times are too long")
    return Finding("ok", "threads", text)


def _bfloat16() -> Finding:
    """Multiply in a process of its own: on some virtual CPUs an illegal instruction ends it."""
    code, ratio = _products({})
    if code == 0:
        slow = ratio > _SLOW
        speed = f"takes {ratio:.2g} times as long as one in float32"
        remedy = ", and torch.optim.Muon uses it; dropmuon does not, on CPUs" if slow else ""
        text = f"a product of matrices {speed}{remedy}"
        return Finding("note" if slow else "ok", "bfloat16", text)
    end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    works = _products({_ISA: _WITHOUT_AMX})[0] == 0
    remedy = f"{_ISA}={_WITHOUT_AMX} prevents it" if works else "keep to float32"
    return Finding(
        "note",
        "bfloat16",
        f"a product of matrices ends the process here ({end}), and with it torch.optim.Muon; "
        f"dropmuon multiplies in float32 on CPUs unless asked otherwise. {remedy}",
    )


def _products(variables: Mapping[str, str]) -> tuple[int, float]:
    """Return the exit code of a process that multiplies, and bfloat16's time over float32's."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PRODUCTS],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, float(done.stdout) if done.returncode == 0 else float("nan")


def _step(torch: Any) -> Finding:
    """Take steps; whatever goes wrong with them is a finding, and no reason to stop."""
    try:
        return _timed_steps(torch)
    except Exception as error:
        text = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
        return Finding("wrong", "step", f"{text}; pip check tells whether packages fit together")


def _timed_steps(torch: Any) -> Finding:
    """Take steps with all layers and with the last one alone, and check what these leave."""
    from dropmuon.optimizer import DropMuon  # noqa: PLC0415  (with torch, which --help does without)

    torch.manual_seed(0)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    model = torch.nn.Sequential(*(part for each in layers for part in (each, torch.nn.Tanh())))
    optimizer = DropMuon(model, lr=0.01)
    x = torch.randn(_WIDTH, _WIDTH)

    def step(active: Iterable[int]) -> float:
        optimizer.activate(active)
        start = time.perf_counter()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    full = _shortest(partial(step, range(_LAYERS)))
    before = [each.weight.detach().clone() for each in layers]
    last = _shortest(partial(step, [_LAYERS - 1]))
    moved = [not torch.equal(old, each.weight) for old, each in zip(before, layers, strict=True)]
    finite = all(bool(each.weight.isfinite().all()) for each in layers)
    text = f"{duration(full)} with all of {_LAYERS} layers, {duration(last)} with the last alone"
    if moved != [False] * (_LAYERS - 1) + [True] or not finite:
        return Finding("wrong", "step", f"{text}, but it moved layers {moved}; please report this")
    return Finding("ok", "step", f"{text}; {_WIDTH} wide, {_WIDTH} examples")


def _shortest(step: Callable[[], float]) -> float:
    """Return the shortest time of a few steps: what others do on the machine only adds to it."""
    step()  # what is loaded on demand
    times = [step(), step()]
    while len(times) < _ROUNDS and sum(times) < _PATIENCE:
        times.append(step())
    return min(times)


def _extras() -> Iterator[Finding]:
    """Yield what is installed of the extras, and what is there but too old."""
    try:
        requirements = metadata.requires("dropmuon") or []
    except metadata.PackageNotFoundError:
        yield Finding("note", "extras", "not known: dropmuon was imported without being installed")
        return
    complete, lacking, outdated = [], [], []
    for extra, needs in extras_of(requirements).items():
        missing, old = check_versions(needs, _installed)
        if missing:
            lacking.append(f"{extra} (lacks {', '.join(missing)})")
        else:
            complete.append(extra)
            outdated += old
    text = f"{', '.join(complete) or 'none'}" + (
        f"; not installed: {', '.join(lacking)}" if lacking else ""
    )
    if outdated:
        yield Finding("wrong", "extras", f"{text}; too old: {', '.join(sorted(set(outdated)))}")
    else:
        yield Finding("note" if lacking else "ok", "extras", text)


def extras_of(requirements: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the least version of each package of each extra; an extra may contain another."""
    found: dict[str, dict[str, str]] = {}
    inside: list[tuple[str, str]] = []
    for line in requirements:
        wanted, _, marker = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        name = re.match(r"[\w.-]+", wanted)
        if extra is None or name is None:
            continue
        own = found.setdefault(extra[1], {})
        if name[0] == "dropmuon":
            inside += [(extra[1], part) for part in re.findall(r"[\w-]+", wanted[len(name[0]) :])]
        else:
            least = re.search(r">=\s*([\d.]+)", wanted)
            own[name[0]] = least[1] if least else "0"
    for _ in inside:  # as often as extras can be nested
        for outer, inner in inside:
            found[outer] = found.get(inner, {}) | found[outer]
    return found


def check_versions(
    needs: Mapping[str, str], installed: Callable[[str], str | None]
) -> tuple[list[str], list[str]]:
    """Return the packages that are missing, and those that are older than the least version."""
    missing, old = [], []
    for name, least in needs.items():
        version = installed(name)
        if version is None:
            missing.append(name)
        elif version_numbers(version) < version_numbers(least):
            old.append(f"{name} {version}, needs {least}")
    return missing, old


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a release: (2, 13, 0) for 2.13.0+cpu."""
    release = re.match(r"[\d.]*", version)
    return tuple(int(part) for part in (release[0] if release else "").split(".") if part)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _data() -> Finding:
    """Look at the cache of data sets, and whether the set that comes with the package is intact."""
    try:
        data = import_extra("dropmuon.lab.data", "lab")
    except ImportError:
        return Finding("note", "data", "not checked: needs the lab extra")
    try:
        directory = data.cache_directory()
        states = {each.name: each.state for each in data.status()}
        included = [name for name, state in states.items() if state == "included"]
        damaged = [each.file for each in data.verify(names=included) if each.state != "ok"]
    except (ValueError, OSError) as error:
        return Finding("wrong", "data", f"{error}; set DROPMUON_DATA to a directory")
    ready = sum(state in ("included", "cached") for state in states.values())
    text = f"{ready} of {len(states)} sets ready; cache: {directory}"
    if damaged:
        return Finding("wrong", "data", f"{damaged[0]} is damaged; install dropmuon again")
    existing = next(each for each in (directory, *directory.parents) if each.exists())
    if not os.access(existing, os.W_OK):
        remedy = "set DROPMUON_DATA to a writable directory"
        return Finding("wrong", "data", f"{existing} cannot be written; {remedy}")
    incomplete = [name for name, state in states.items() if state == "incomplete"]
    if incomplete:
        remedy = f"dropmuon data fetch {' '.join(incomplete)}"
        return Finding("note", "data", f"{text}; incomplete: {', '.join(incomplete)}: {remedy}")
    return Finding("ok", "data", text)
