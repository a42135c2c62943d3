"""Types and lengths; Newton-Schulz against its literal twin; the Polar Express as published."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dropmuon.norms import ORTHOGONALIZERS, NewtonSchulz, PolarExpress, orthogonalize
from dropmuon.norms.numerics import (
    CUBIC,
    JORDAN,
    best_polynomial,
    length,
    polar_express_coefficients,
    unit,
)
from tests.norms.singular_values import literal_newton_schulz, with_singular_values

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


SHAPES = [(6, 6), (4, 10), (10, 4), (64, 320), (320, 64), (3, 8, 5), (2, 2, 5, 9), (2, 64, 200)]

# Amsel et al. 2025, arXiv 2505.16932, the listing of the algorithm; without its safety factor.
PUBLISHED = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]


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


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_newton_schulz_equals_its_literal_twin(shape: tuple[int, ...], gram: bool) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    for method in (
        NewtonSchulz(gram=gram),
        PolarExpress(gram=gram),
        NewtonSchulz(CUBIC, gram=gram),
    ):
        got = method(x).reshape(-1, *shape[-2:])
        for one, result in zip(x.reshape(-1, *shape[-2:]), got, strict=True):
            twin = literal_newton_schulz(one, list(method.polynomials()))
            torch.testing.assert_close(result, twin, rtol=0, atol=1e-9)


def test_jordan_sends_singular_values_into_a_band_around_one() -> None:
    values = torch.logspace(0, -2, 40)
    x = with_singular_values(values, 60)
    got = torch.linalg.svdvals(orthogonalize(x, "newton-schulz"))
    assert 0.6 < float(got.min()) < float(got.max()) < 1.3


def test_newton_schulz_follows_torch_operation_by_operation() -> None:
    def torch_in_float32(grad: Tensor) -> Tensor:
        """torch.optim._muon._zeropower_via_newtonschulz with its cast to bfloat16 taken out."""
        a, b, c = JORDAN
        ortho = grad.T if grad.size(0) > grad.size(1) else grad
        ortho = ortho / ortho.norm().clamp(min=1e-7)
        for _ in range(5):
            gram = ortho @ ortho.T
            update = torch.addmm(gram, gram, gram, beta=b, alpha=c)
            ortho = torch.addmm(ortho, update, ortho, beta=a)
        return ortho.T if grad.size(0) > grad.size(1) else ortho

    for shape in ((16, 16), (32, 48), (48, 32)):
        g = torch.randn(shape)
        torch.testing.assert_close(
            NewtonSchulz(gram=False)(g), torch_in_float32(g), rtol=0, atol=2e-6
        )


def hard_matrices(m: int, n: int) -> dict[str, Tensor]:
    spike = torch.full((m,), 3e-4)
    spike[0] = 1.0
    return {
        "gaussian": torch.randn(m, n),
        "condition-1e3": with_singular_values(torch.logspace(0, -3, m), n).float(),
        "condition-1e12": with_singular_values(torch.logspace(0, -12, m), n).float(),
        "half-rank": with_singular_values((torch.arange(m) < m // 2).float(), n).float(),
        "spike": with_singular_values(spike, n).float(),
        "rank-one": torch.randn(m, 1) @ torch.randn(1, n),
        "zero": torch.zeros(m, n),
    }


@pytest.mark.parametrize("kind", list(hard_matrices(4, 8)))
@pytest.mark.parametrize("method", [NewtonSchulz, PolarExpress])
def test_iterating_on_the_gram_matrix_loses_no_accuracy_in_float32(
    kind: str, method: type[NewtonSchulz] | type[PolarExpress]
) -> None:
    x = hard_matrices(64, 320)[kind]
    plain, fast = method(gram=False)(x), method(gram=True)(x)
    difference = torch.linalg.matrix_norm(plain - fast, ord=2)
    assert float(difference) < 1e-4
    assert float((plain - fast).norm()) <= 2e-4 * float(plain.norm())


def test_the_gram_matrix_is_used_for_wide_float32_and_never_for_16_bits() -> None:
    method = NewtonSchulz()
    assert method._uses_gram(torch.empty(64, 576))
    assert not method._uses_gram(torch.empty(64, 96))
    assert not method._uses_gram(torch.empty(8, 576))
    assert not method._uses_gram(torch.empty(64, 576, dtype=torch.bfloat16))
    assert not NewtonSchulz(gram=False)._uses_gram(torch.empty(64, 576))


def test_polar_express_coefficients_are_the_published_ones() -> None:
    for ours, published in zip(polar_express_coefficients(5), PUBLISHED, strict=True):
        assert ours == pytest.approx(published, rel=1e-11)
    assert polar_express_coefficients(10)[-1] == (1.875, -1.25, 0.375)


def test_polar_express_safety_divides_the_argument() -> None:
    for (a, b, c), safe in zip(
        polar_express_coefficients(5), polar_express_coefficients(5, safety=1.01), strict=True
    ):
        assert safe == pytest.approx((a / 1.01, b / 1.01**3, c / 1.01**5))


@pytest.mark.parametrize("low", [0.03, 0.3, 0.9])
def test_best_quintic_errs_equally_at_four_points(low: float) -> None:
    a, b, c = best_polynomial(low, 1.0)
    x = torch.linspace(low, 1.0, 20001, dtype=torch.float64)
    error = a * x + b * x**3 + c * x**5 - 1
    top = float(error.abs().max())
    assert float(error[0]) == pytest.approx(-top, rel=1e-5)
    assert float(error[-1]) == pytest.approx(top, rel=1e-5)
    assert float(error.max()) == pytest.approx(-float(error.min()), rel=1e-5)
    inner = error[1:-1].sign().diff().ne(0).sum()
    assert int(inner) == 3  # three sign changes between four alternating extremes
