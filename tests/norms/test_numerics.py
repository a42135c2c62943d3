"""Which types are computed in, and lengths of very small and very large vectors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dropmuon.norms import ORTHOGONALIZERS, orthogonalize
from dropmuon.norms.numerics import length, unit

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
    batch = norm.unit_directions([g, g])
    for result in (norm.unit_direction(g), norm.lmo(g, 0.1), norm.sharp(g), *batch):
        assert result.dtype == torch.bfloat16
        result.add_(1)
    assert torch.equal(g, before)
    theirs = _zeropower_via_newtonschulz(g.clone(), jordan, 5, 1e-7).float()
    ours = norm.unit_direction(g).float()
    assert (ours - theirs).norm() < 0.05 * theirs.norm()
    exact = Spectral().unit_direction(g).float()
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
    )
    if run.returncode == -signal.SIGILL:
        pytest.skip("bfloat16 products are an illegal instruction here")
    assert run.stdout.strip() == "done", run.stderr


def test_16_bit_tensors_are_never_multiplied_in_16_bits_on_a_cpu() -> None:
    class Products(TorchDispatchMode):
        seen: set[torch.dtype] = set()  # noqa: RUF012

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if any(name in str(func) for name in ("mm", "matmul")):
                self.seen.update(a.dtype for a in args if isinstance(a, Tensor))
            return func(*args, **(kwargs or {}))

    for dtype in (torch.bfloat16, torch.float16):
        with Products() as products:
            for method in ORTHOGONALIZERS:
                orthogonalize(torch.randn(4, 6).to(dtype), method)
                orthogonalize(torch.randn(2, 4, 6).to(dtype), method)
        assert products.seen == {torch.float32}


def test_precision_is_obeyed() -> None:
    x = torch.randn(6, 9, dtype=torch.float64)
    for method in ("svd", "polar-express"):
        exact, coarse = orthogonalize(x, method), orthogonalize(x, method, torch.float32)
        assert coarse.dtype == torch.float64
        assert 1e-9 < float((exact - coarse).norm()) < 1e-4


@pytest.mark.parametrize("size", [1e-30, 1e-25, 1.0, 1e25, 1e30])
def test_lengths_neither_overflow_nor_underflow(size: float) -> None:
    x = torch.tensor([[3.0, 0.0], [4.0, 0.0]]) * size
    assert float(length(x)) == pytest.approx(5 * size)
    assert length(x, dim=0).tolist() == pytest.approx([5 * size, 0.0])
    torch.testing.assert_close(unit(x, dim=0), torch.tensor([[0.6, 0.0], [0.8, 0.0]]))
