"""With every layer active the optimizer is `torch.optim.Muon`."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from dropmuon import DropMuon
from dropmuon.norms import NewtonSchulz, Spectral
from tests.float32_muon import zeropower_without_cast
from tests.models import batches, train, transformer

SHAPES = {"tall": (24, 8), "wide": (8, 24), "square": (12, 12)}
ADJUST = {"muon": "original", "adamw": "match_rms_adamw"}
"""Our scale, and the name that torch has for it."""


@pytest.fixture
def uncast(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.optim.Muon in the type of its parameters, not in bfloat16."""
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", zeropower_without_cast)


def gradients(shape: tuple[int, int], steps: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    return [torch.randn(shape, generator=generator) for _ in range(steps)]


@pytest.mark.usefixtures("uncast")
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("scale", ADJUST)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_moves_a_matrix_as_torch_does(
    shape: str, scale: str, nesterov: bool, weight_decay: float
) -> None:
    start = gradients(SHAPES[shape], 1)[0]
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    settings: dict[str, Any] = {
        "lr": 0.02,
        "momentum": 0.9,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
    }
    norm = Spectral(NewtonSchulz(gram=False), scale=scale)
    group = {"params": [ours], "norm": norm}
    one = DropMuon([group], sampler="full", momentum_start="zero", **settings)
    other = torch.optim.Muon([theirs], adjust_lr_fn=ADJUST[scale], **settings)
    for g in gradients(SHAPES[shape], 20):
        ours.grad, theirs.grad = g.clone(), g.clone()
        one.step()
        other.step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert (ours - start).abs().max() > 1e-2


@pytest.mark.usefixtures("uncast")
@pytest.mark.parametrize("scale", ADJUST)
@pytest.mark.parametrize("nesterov", [True, False])
def test_it_trains_all_matrices_of_a_model_as_torch_does(nesterov: bool, scale: str) -> None:
    model, make_batch, loss = transformer(dtype=torch.float32)
    for p in model.parameters():
        p.requires_grad_(p.ndim == 2)
    other = copy.deepcopy(model)
    settings: dict[str, Any] = {
        "lr": 0.01,
        "momentum": 0.9,
        "nesterov": nesterov,
        "weight_decay": 0.1,
    }
    norm = Spectral(NewtonSchulz(gram=False), scale=scale)
    ours = DropMuon(
        model, sampler="full", policy=lambda member: norm, momentum_start="zero", **settings
    )
    matrices = [p for p in other.parameters() if p.requires_grad]
    theirs = torch.optim.Muon(matrices, adjust_lr_fn=ADJUST[scale], **settings)
    data = batches(make_batch, 10)
    train(model, ours, loss, data)
    train(other, theirs, loss, data)
    torch.testing.assert_close(
        list(model.parameters()), list(other.parameters()), rtol=0, atol=1e-6
    )


BFLOAT16 = """
import itertools
import torch
from dropmuon import DropMuon
from dropmuon.norms import NewtonSchulz, Spectral

torch.set_num_threads(1)
torch.manual_seed(0)


def distance(shape, scale, adjust, nesterov, weight_decay, gradients):
    # How far apart ours and torch's are after these gradients, and how far torch's went.
    start = torch.randn(shape)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    settings = dict(lr=0.02, momentum=0.5, nesterov=nesterov, weight_decay=weight_decay)
    norm = Spectral(NewtonSchulz(gram=False), scale=scale, precision=torch.bfloat16)
    one = DropMuon([{"params": [ours], "norm": norm}], sampler="full", momentum_start="zero",
                   **settings)
    other = torch.optim.Muon([theirs], adjust_lr_fn=adjust, **settings)
    for g in gradients:
        ours.grad, theirs.grad = g.clone(), g.clone()
        one.step()
        other.step()
    return (ours - theirs).detach(), (theirs - start).detach()


for shape, (scale, adjust), nesterov, decay in itertools.product(
    [(64, 16), (16, 64), (32, 32)],
    [("muon", "original"), ("adamw", "match_rms_adamw")],
    [True, False],
    [0.0, 0.1],
):
    case = (shape, scale, nesterov, decay)
    # Multiples of one matrix of signs by powers of two, and momentum 1/2: all that is cast to
    # bfloat16 is exact in it, as is the Frobenius norm, so both run the same iteration.
    signs = torch.randint(0, 2, shape).mul(2).sub(1).float()
    exact = [signs * c for c in (1.0, 1.0, -2.0, 0.5, 1.0, 1.0)]
    apart, moved = distance(shape, scale, adjust, nesterov, decay, exact)
    assert apart.abs().max() <= 1e-6, (case, apart.abs().max())
    assert moved.abs().max() > 1e-3, case
    # Elsewhere torch rounds before it divides by the norm, and ours after: bfloat16's rounding.
    rough = [torch.randn(shape) for _ in range(6)]
    apart, moved = distance(shape, scale, adjust, nesterov, decay, rough)
    assert apart.norm() <= 0.03 * moved.norm(), (case, apart.norm() / moved.norm())
print("done")
"""


def test_it_is_torch_muon_in_bfloat16_too() -> None:
    """In a process of its own: on some CPUs a bfloat16 product is an illegal instruction."""
    run = subprocess.run(
        [sys.executable, "-c", BFLOAT16],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode == -signal.SIGILL:
        pytest.skip("bfloat16 products are an illegal instruction on this CPU")
    assert run.stdout.strip() == "done", run.stderr
