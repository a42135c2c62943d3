"""Polynomials by products: against singular values, in strips and stacks, and their cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from dropmuon import reference
from dropmuon.norms import ORTHOGONALIZERS, NewtonSchulz, PolarExpress, orthogonalize
from dropmuon.norms.iterations import _strip_height, _symmetric
from dropmuon.norms.numerics import CUBIC, best_polynomial
from tests.float32_muon import zeropower_without_cast
from tests.norms.singular_values import with_singular_values

FAST = ORTHOGONALIZERS["fast"]
LOWER = 2.2e-3 * 1.001
"""The share of the Schatten 8-norm from which "fast" brings singular values close to one."""

LOGS = st.lists(st.floats(-6.0, 0.0), min_size=2, max_size=12)


def in_strips(*batch: int) -> int:
    """Rows, of matrices in a batch, that are multiplied in strips; no multiple of anything."""
    return 3 * 64 * (1 if batch else torch.get_num_threads()) + 11


def schatten(values: Tensor) -> Tensor:
    return values.pow(8).sum().pow(1 / 8)


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize("aspect", [1.0, 2.3])
@pytest.mark.parametrize("gram", [False, True])
def test_strips_and_stacks_compute_what_the_reference_does(
    batch: tuple[int, ...], aspect: float, gram: bool
) -> None:
    rows = in_strips(*batch)
    x = torch.randn(*batch, rows, int(aspect * rows), dtype=torch.float64)
    assert _strip_height(x.new_empty(*batch, rows, rows)) < rows
    for method, p in (
        (NewtonSchulz(gram=gram), 2),
        (NewtonSchulz(CUBIC, 3, gram=gram), 2),
        (PolarExpress(schatten=8, gram=gram), 8),
        (PolarExpress(3, 2.2e-3, 1.001, degree=9, schatten=8, gram=gram), 8),
    ):
        twins = [
            reference.newton_schulz(one, method.polynomials(), p)
            for one in x.view(-1, *x.shape[-2:])
        ]
        torch.testing.assert_close(method(x), torch.stack(twins).view(x.shape), rtol=0, atol=1e-8)


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_a_symmetric_product_in_strips_is_mirrored_bit_for_bit(
    batch: tuple[int, ...], beta: float
) -> None:
    rows = in_strips(*batch)
    x = torch.randn(*batch, rows, 20, dtype=torch.float64)
    start = torch.eye(rows, dtype=torch.float64).expand(*batch, rows, rows)
    alpha = 2.5 if beta else 1.0
    found = _symmetric(start.clone(), x, x.mT, beta=beta, alpha=alpha)
    height = _strip_height(found)
    assert torch.equal(found[..., :height, height:], found[..., height:, :height].mT)
    torch.testing.assert_close(found, beta * start + alpha * x @ x.mT)


@given(LOGS, st.integers(0, 9), st.booleans(), st.integers(0, 2**31))
@settings(max_examples=60)
def test_fast_keeps_every_singular_value_in_its_bounds(
    logs: list[float], more: int, tall: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    values = 10 ** torch.tensor(logs, dtype=torch.float64)
    x = with_singular_values(values, len(logs) + more)
    found = torch.linalg.svdvals(FAST(x.mT if tall else x))
    share = values / schatten(values)
    least = torch.where(share > LOWER, 0.799, 0.799 * share / LOWER).sort(descending=True).values
    assert float(found.max()) < 1.201
    assert bool((found.sort(descending=True).values >= least - 1e-9).all())


@given(st.integers(2, 20), st.integers(2, 20), st.integers(-20, 20), st.integers(0, 2**31))
@settings(max_examples=60)
def test_fast_ignores_scale_and_commutes_with_transposition_and_stacking(
    rows: int, columns: int, exponent: int, seed: int
) -> None:
    torch.manual_seed(seed)
    x = torch.randn(rows, columns, dtype=torch.float64)
    found = FAST(x)
    torch.testing.assert_close(FAST(x * 10.0**exponent), found, rtol=0, atol=1e-7)
    torch.testing.assert_close(FAST(x.mT), found.mT, rtol=0, atol=1e-7)
    torch.testing.assert_close(
        FAST(torch.stack([x, -x])), torch.stack([found, -found]), rtol=0, atol=1e-7
    )


def momenta(rows: int, columns: int) -> dict[str, Tensor]:
    thin = torch.randn(rows, rows // 16) @ torch.randn(rows // 16, columns)
    return {
        "random": torch.randn(rows, columns),
        "low-rank": thin,
        "low-rank-and-noise": thin / (rows / 16) ** 0.5 + 0.01 * torch.randn(rows, columns),
        "condition-1e3": with_singular_values(torch.logspace(0, -3, rows), columns).float(),
        "condition-1e6": with_singular_values(torch.logspace(0, -6, rows), columns).float(),
        "power-law": with_singular_values(1 / torch.arange(1, rows + 1), columns).float(),
    }


@pytest.mark.parametrize("kind", list(momenta(16, 16)))
@pytest.mark.parametrize("shape", [(128, 128), (128, 512)], ids=str)
def test_fast_has_no_worse_singular_values_than_torch(shape: tuple[int, int], kind: str) -> None:
    x = momenta(*shape)[kind]
    rank = int(
        (torch.linalg.svdvals(x.double()) > 1e-6 * torch.linalg.matrix_norm(x.double(), 2)).sum()
    )
    theirs = zeropower_without_cast(x, (3.4445, -4.7750, 2.0315), 5, 1e-7)
    a, b = (torch.linalg.svdvals(y.double())[:rank] for y in (FAST(x), theirs))
    assert float(a.min()) >= float(b.min())
    assert float(a.max()) < 1.202  # the most that torch's polynomials reach
    assert float((1 - a).square().mean()) <= max(float((1 - b).square().mean()), 0.2**2)


@pytest.mark.parametrize("kind", list(momenta(16, 16)))
def test_fast_on_the_gram_matrix_is_as_good_in_float32(kind: str) -> None:
    x = momenta(128, 512)[kind]
    settings = {"degree": 9, "schatten": 8}
    plain, fast = (PolarExpress(3, 2.2e-3, 1.001, gram=g, **settings)(x) for g in (False, True))
    assert float(torch.linalg.matrix_norm(plain - fast, ord=2)) < 0.02


@pytest.mark.parametrize("kind", list(momenta(16, 16)))
def test_sixteen_bits_take_quintics_instead_of_powers_that_cancel(kind: str) -> None:
    for rows, columns in ((16, 24), (128, 128)):
        x = momenta(rows, columns)[kind]
        found = orthogonalize(x, "fast", torch.float16)
        assert torch.equal(found, orthogonalize(x, "polar-express", torch.float16))
        assert float(torch.linalg.matrix_norm(found.float(), ord=2)) < 1.2


@pytest.mark.parametrize("method", ["newton-schulz", "cubic", "polar-express", "fast"])
@pytest.mark.parametrize("shape", [(8, 8), (64, 400), (400, 64), (3, 70, 300)], ids=str)
def test_nothing_depends_on_values_so_nothing_waits_for_a_device(
    method: str, shape: tuple[int, ...]
) -> None:
    x = torch.empty(shape, device="meta")
    assert orthogonalize(x, method).shape == shape


class BatchedResults(TorchDispatchMode):
    """Notes the results of batched products."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name in ("aten::bmm", "aten::baddbmm"):
            self.found.append(result)
        return result


@pytest.mark.parametrize("method", ["newton-schulz", "polar-express", "fast"])
@pytest.mark.parametrize("shape", [(3, 40, 40), (3, 32, 96), (3, 96, 32), (3, 140, 150)], ids=str)
@pytest.mark.parametrize("precision", [torch.float16, torch.float32])
def test_results_of_batched_products_are_contiguous(
    method: str, shape: tuple[int, ...], precision: torch.dtype
) -> None:
    """In bfloat16, a CPU takes hundreds of times as long to write them in another layout."""
    with BatchedResults() as products:
        orthogonalize(torch.randn(shape), method, precision)
    assert products.found
    assert all(each.is_contiguous() for each in products.found)


def operations(method: str | None, x: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        if method is None:
            zeropower_without_cast(x, (3.4445, -4.7750, 2.0315), 5, 1e-7)
        else:
            orthogonalize(x, method)
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    ("aspect", "plain", "fast"), [(1, 0.83, 0.70), (2, 0.75, 0.55), (4, 0.60, 0.40)]
)
def test_operations_are_saved_by_symmetry_and_by_fewer_steps(
    aspect: int, plain: float, fast: float
) -> None:
    rows = 4 * 64 * torch.get_num_threads()
    x = torch.randn(rows, aspect * rows)
    theirs = operations(None, x)
    assert operations("newton-schulz", x) < plain * theirs
    assert operations("fast", x) < fast * theirs


@pytest.mark.parametrize("low", [0.003, 0.03, 0.3])
def test_the_best_polynomial_of_degree_nine_errs_equally_at_six_points(low: float) -> None:
    coefficients = best_polynomial(low, 1.0, 9)
    x = torch.linspace(low, 1.0, 200001, dtype=torch.float64)
    error = sum(c * x ** (2 * i + 1) for i, c in enumerate(coefficients)) - torch.ones_like(x)
    top = float(error.abs().max())
    assert float(error[0]) == pytest.approx(-top, rel=1e-5)
    assert float(error[-1]) == pytest.approx(top, rel=1e-5)
    assert float(error.max()) == pytest.approx(-float(error.min()), rel=1e-5)
    assert int(error.sign().diff().ne(0).sum()) == 5
