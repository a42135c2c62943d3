"""Real bfloat16 products, in their own process: on some CPUs an illegal instruction."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import torch
from torch.optim._muon import _zeropower_via_newtonschulz
from dropmuon.norms import Spectral, orthogonalize

torch.manual_seed(0)
torch.set_num_threads(1)
jordan = (3.4445, -4.7750, 2.0315)
for shape in ((16, 64), (64, 16), (32, 32)):
    # entries +-1: the Frobenius norm is 32, exact in bfloat16 too, so the arithmetic is the same
    g = torch.randint(0, 2, shape).mul(2).sub(1).bfloat16()
    before = g.clone()
    ours = orthogonalize(g, "newton-schulz", precision=torch.bfloat16)
    assert torch.equal(g, before)
    theirs = _zeropower_via_newtonschulz(g.clone(), jordan, 5, 1e-7)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)

    g = torch.randn(shape).bfloat16()
    before = g.clone()
    norm = Spectral(precision=torch.bfloat16)
    for answer in (norm.direction(g), norm.lmo(g, 0.1), norm.sharp(g), *norm.directions([g, g])):
        assert answer.dtype == torch.bfloat16
        answer.add_(1)
    assert torch.equal(g, before)
    theirs = _zeropower_via_newtonschulz(g.clone(), jordan, 5, 1e-7).float()
    ours = norm.direction(g).float()
    assert (ours - theirs).norm() < 0.05 * theirs.norm()
    exact = Spectral().direction(g).float()
    assert (ours - exact).norm() < 0.05 * exact.norm()
print("done")
"""


def test_bfloat16_agrees_with_torch_and_leaves_its_input_alone() -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if run.returncode == -signal.SIGILL:
        pytest.skip("bfloat16 products are an illegal instruction here")
    assert run.stdout.strip() == "done", run.stderr
