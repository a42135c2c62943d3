"""What orthogonalising costs: "newton-schulz" and "fast" against `torch.optim.Muon`.

    python -m benchmarks.orthogonalize [--seconds 1.5] [--only TABLE] [--threads 1 2]
        [--precision bfloat16]

The figures of docs/benchmarks.md come from its output, kept in benchmarks/orthogonalize.txt.
Contestants take turns inside one process; times are ratios of minima, with the median of the
ratios beside them, and operations those of matrix products, counted. One thread is timed by its own
CPU time, which other processes change little; several threads by the clock on the wall. All
multiply in the same precision: float32, or bfloat16, which is torch's own and needs a CPU that has
it (`dropmuon doctor` tells).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim._muon import _zeropower_via_newtonschulz
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.step import SHAPES, in_float32, muon_step, operations, torch_muon
from dropmuon import DropMuon
from dropmuon.norms import Spectral, orthogonalize

Contest = dict[str, Callable[[], Any]]

METHODS = ("newton-schulz", "fast")
SQUARES = [(n, n) for n in (128, 192, 256, 384, 512, 768, 1024, 2048)]
OBLONG = [(128, 512), (512, 128), (256, 1024), (1024, 256), (512, 1024), (512, 2048), (2048, 512)]
MODELS = {
    **{title: SHAPES[title] for title in SHAPES if title.startswith("transformer")},
    "transformer, 1 block of width 768": [(768, 768)] * 4 + [(3072, 768), (768, 3072)],
    "GPT, 2 blocks of width 512, fused": [(1536, 512), (512, 512), (2048, 512), (512, 2048)] * 2,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="per shape, at least")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", choices=["shapes", "models", "values", "launches"])
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    precision = getattr(torch, options.precision)
    print(f"torch {torch.__version__}, {options.precision}, {options.seconds} s per shape")
    for threads in options.threads:
        torch.set_num_threads(threads)
        if options.only in (None, "shapes"):
            single_shapes(threads, options.seconds, precision)
        if options.only in (None, "models"):
            models(threads, options.seconds, precision)
    if options.only in (None, "launches"):
        launches()
    if options.only in (None, "values"):
        singular_values()


# One matrix, and eight of a kind


def single_shapes(threads: int, seconds: float, precision: torch.dtype) -> None:
    print(f"\northogonalised / torch's five steps, {threads} threads (goal: 0.70)")
    print(f"  {'':22}" + "".join(f"{method:>34}" for method in METHODS))
    for shape in SQUARES + OBLONG:
        for count in (1, 8) if shape[0] * shape[1] <= 2**19 else (1,):
            matrices = [torch.randn(shape) for _ in range(count)]
            contest: Contest = {"torch": partial(theirs, matrices, precision)}
            for method in METHODS:
                norm = Spectral(method, precision=precision)
                contest[method] = partial(norm.unit_directions, matrices)
            name = f"{count} of {shape[0]}x{shape[1]}"
            print(f"  {name:22}" + against(contest, "torch", seconds), flush=True)


def theirs(matrices: Sequence[Tensor], precision: torch.dtype = torch.float32) -> list[Tensor]:
    """torch's own iteration with its cast to bfloat16 changed to one to the precision."""
    with mock.patch.object(Tensor, "bfloat16", lambda x: x.to(precision, copy=True)):
        return [
            _zeropower_via_newtonschulz(m, (3.4445, -4.7750, 2.0315), 5, 1e-7) for m in matrices
        ]


def against(contest: Contest, name: str, seconds: float) -> str:
    """Return ratios of time, minima first, and of operations, against one contestant."""
    times = timed(contest, seconds)
    counted = {each: operations(step) for each, step in contest.items()}
    text = ""
    for each in contest:
        if each != name:
            pairs = zip(times[each], times[name], strict=True)
            middle = statistics.median(a / b for a, b in pairs)
            least = min(times[each]) / min(times[name])
            share = counted[each] / counted[name]
            text += f"   {least:5.2f} (median {middle:.2f}), operations {share:.2f}"
    return text


def timed(contest: Contest, seconds: float) -> dict[str, list[float]]:
    """Times of each contestant, strictly interleaved, until the seconds are over."""
    times: dict[str, list[float]] = {each: [] for each in contest}
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    end = clock() + seconds
    rounds = -1  # the first is to warm up
    while rounds < 3 or clock() < end:
        for each, step in contest.items():
            getattr(step, "prepare", lambda: None)()
            start = clock()
            step()
            if rounds >= 0:
                times[each].append(clock() - start)
        rounds += 1
    return times


# All matrices of a model


def models(threads: int, seconds: float, precision: torch.dtype) -> None:
    print(f"\noptimizer step / torch.optim.Muon, {threads} threads (goal: 0.50)")
    for title, shapes in MODELS.items():
        step = muon_step(shapes, torch_muon)
        contest: Contest = {"torch": in_float32(step) if precision == torch.float32 else step}
        for method in METHODS:
            norm = Spectral(method, precision=precision)
            contest[method] = muon_step(shapes, partial(ours, norm))
        print(f"  {title:36}" + against(contest, "torch", seconds), flush=True)


def ours(norm: Spectral, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return DropMuon(
        parameters, lr=1e-3, momentum=0.95, nesterov=True, sampler="full", policy=lambda _: norm
    )


# What an accelerator would launch


class Launches(TorchDispatchMode):
    """Counts operators that compute, and those that would make the host wait."""

    VIEWS = ("view", "slice", "select", "t.", "transpose", "expand", "detach", "empty", "unsqueeze")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = str(func).removeprefix("aten.")
        if "_local_scalar_dense" in name:
            self.count["waits"] += 1
        elif not name.startswith((*self.VIEWS, "diagonal", "split", "alias", "_unsafe_view")):
            self.count["launches"] += 1
        return func(*args, **(kwargs or {}))


def launches() -> None:
    """Counted on tensors without data, which take the way of an accelerator."""
    print("\nkernels launched to orthogonalise, and times that the host waits for the device")
    for title, shapes in MODELS.items():
        matrices = [torch.empty(shape, device="meta") for shape in shapes]
        found = []
        steps: Contest = {"torch": partial(theirs, matrices)}
        for method in METHODS:
            steps[method] = partial(Spectral(method).unit_directions, matrices)
        for name, step in steps.items():
            with Launches() as counter, torch.no_grad():
                step()
            found.append(f"{name} {counter.count['launches']}, {counter.count['waits']}")
        print(f"  {title:36} " + "; ".join(found), flush=True)


# Singular values


def singular_values() -> None:
    """Of what each method returns, over the directions that a momentum has."""
    print("\nsingular values: least, largest, mean, and root mean square of the distance to one")
    torch.manual_seed(0)
    for shape in ((128, 128), (512, 512), (256, 1024)):
        for kind, x in momenta(*shape).items():
            values = torch.linalg.svdvals(x.double())
            rank = int((values > 1e-6 * values[0]).sum())
            text = ""
            for name in ("torch", *METHODS):
                y = theirs([x])[0] if name == "torch" else orthogonalize(x, name)
                found = torch.linalg.svdvals(y.double())[:rank]
                error = float((1 - found).square().mean().sqrt())
                text += (
                    f"   {name} {found.min():.3f} {found.max():.3f} {found.mean():.3f} {error:.3f}"
                )
            print(f"  {shape[0]}x{shape[1]} {kind:26}{text}", flush=True)


def momenta(rows: int, columns: int) -> dict[str, Tensor]:
    rank = rows // 16
    thin = torch.randn(rows, rank) @ torch.randn(rank, columns) / rank**0.5
    spike = torch.full((rows,), 3e-3)
    spike[0] = 1.0
    return {
        "random": torch.randn(rows, columns),
        f"rank {rank}": thin,
        f"rank {rank} and 1 % noise": thin + 0.01 * torch.randn(rows, columns),
        "condition 1e3": with_values(torch.logspace(0, -3, rows), columns),
        "condition 1e6": with_values(torch.logspace(0, -6, rows), columns),
        "power law 1/k": with_values(1 / torch.arange(1, rows + 1), columns),
        "one large, the rest 0.003": with_values(spike, columns),
    }


def with_values(values: Tensor, columns: int) -> Tensor:
    rows = len(values)
    u, _ = torch.linalg.qr(torch.randn(rows, rows, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(columns, rows, dtype=torch.float64))
    made: Tensor = (u * values.double()) @ v.mT
    return made.float()


if __name__ == "__main__":
    main()
